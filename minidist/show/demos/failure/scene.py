"""What the animation of a rank's death says: what is lost, and how the run goes on."""

from minidist.show.demos.failure import picture
from minidist.show.demos.failure.run import Interrupted
from minidist.show.player.scene import Frame, Scene

DIES = "die, go on"  # the name of the scene


def of_run(run: Interrupted, every: int, verdict: str, right: Interrupted | None = None) -> Scene:
    """A frame for each step, and some for what happens between the two parts of the run.

    Args:
        right: the right run, if this one has a bug.
    """
    shown = picture.Losses(run, right)
    columns = picture.columns(run)
    died = next(place for place, column in enumerate(columns) if column.died) + 1
    frames = [_frame(shown, 0, False, f"Training begins, {run.before.layout}. "
                                    f"A checkpoint is saved every {every} steps.")]  # fmt: skip
    for now in range(1, died):
        frames.append(_frame(shown, now, False, _step_note(shown, columns[now - 1])))
    killed, survivors = run.fault.rank, run.after.layout.world_size
    frames.append(_frame(shown, died, False, f"Rank {killed} is killed in step {columns[died - 1].step}. "
                                           "No other rank can go on without it: all stop."))  # fmt: skip
    frames.append(_frame(shown, died, True, f"Lost: {_steps(run.lost)}. Only step {run.after.first} and those before "
                                          "it are in a checkpoint."))  # fmt: skip
    restarts = len(frames)
    left = f"{survivors} ranks are left. New layout: {run.after.layout}." if survivors > 1 else "1 rank is left."
    frames.append(_frame(shown, died + 1, True, f"{left} Back to the checkpoint of step {run.after.first}."))
    for now in range(died + 2, len(columns) + 1):
        frames.append(_frame(shown, now, True, _step_note(shown, columns[now - 1])))
    last = frames[-1]
    note = "The same SHA-256 over weights, optimizer state and losses: the run cannot tell that it was killed."
    if right:
        note = "Another SHA-256: this is not the run that was killed."
    frames.append(Frame((*last.shapes, *picture.fingerprints(run)), note, last.facts))
    title = f"A rank dies, the run goes on: {run.before.layout}, then {_layout(run)}"
    wrong, key = None, picture.KEY
    if right:
        key = {"killed, wrong" if name == "killed" else name: colour for name, colour in picture.KEY.items()}
        place = next(i for i, pair in enumerate(zip(run.after.losses[0], right.after.losses[0], strict=True))
                     if pair[0] != pair[1])  # fmt: skip
        wrong = restarts + 1 + place
    return Scene(
        f"broken {DIES}" if right else DIES, title, tuple(frames), picture.HEIGHT, key, verdict, wrong,
        stills=(died, restarts, len(frames) - 1), twin=DIES if right else "",
    )  # fmt: skip


def _frame(shown: picture.Losses, now: int, lost: bool, note: str) -> Frame:
    """The first ``now`` columns."""
    run = shown.run
    seen = picture.columns(run)[:now]
    taken = [column for column in seen if column.step is not None and not column.died]
    parts = (run.before, run.after)
    saved = [column.step for column in taken if column.step in parts[column.part].saved]
    back = bool(seen) and seen[-1].step is None
    step = run.after.first if back or not taken else taken[-1].step
    facts = {
        "steps": f"{step if taken else 0} of {run.steps}",
        "newest checkpoint": f"step {saved[-1]}" if saved else "none",
        "steps lost": str(len(run.lost) if lost else 0),
        "ranks": str(parts[seen[-1].part if seen else 0].layout.world_size),
    }
    return Frame((*picture.ranks(run, now), *shown.draw(now, lost)), note, facts)


def _step_note(shown: picture.Losses, column: picture.Column) -> str:
    run = shown.run
    part = (run.before, run.after)[column.part]
    if column.step in part.saved:
        return f"Step {column.step} is saved."
    if column.part == 1 and shown.right and column.step - 1 in run.lost:
        place = column.step - 1 - run.after.first
        same = run.after.losses[0][place] == shown.right.after.losses[0][place]
        return f"Step {column.step} again: {'the same loss' if same else 'another loss than the first time'}."
    if column.part == 1 and column.step - 1 in run.lost:
        losses = "losses" if len(run.lost) > 1 else "loss"
        return f"{_steps(run.lost).capitalize()} again: the same {losses}, bit for bit."
    return f"New steps, {_layout(run)}." if column.part else f"Training, {part.layout}."


def _layout(run: Interrupted) -> str:
    """That of the second part."""
    return str(run.after.layout) if run.after.layout.world_size > 1 else "one process"


def _steps(numbers: range) -> str:
    first, last = numbers.start + 1, numbers.stop
    return f"step {first}" if first == last else f"steps {first} to {last}"


def verdict(run: Interrupted, proof: str) -> str:
    """What the death cost, and that it left no trace."""
    again = f"{len(run.lost)} steps" if len(run.lost) > 1 else "1 step"
    reads = " to ".join(f"{count:,}" for count in sorted({min(run.bytes_read), max(run.bytes_read)}))
    who = "each rank of the new layout" if len(run.bytes_read) > 1 else "the one rank"
    return f"The run took {again} twice. Of {run.nbytes:,} B in {run.files} files {who} read {reads} B. {proof}"


def harm(run: Interrupted, right: Interrupted) -> str:
    """What becomes of the run with a bug.

    Raises:
        RuntimeError: if it becomes the same.
    """
    if run.fingerprint == right.fingerprint:
        raise RuntimeError("the run that forgot its moments ends on the same bits: this is a bug in minidist")
    ends = [one.after.losses[0][-1] for one in (run, right)]
    return (
        f"Another model, and no error. Its last loss is {ends[0]:.4f} instead of {ends[1]:.4f}; its SHA-256 is "
        f"{run.fingerprint[:8]} instead of {right.fingerprint[:8]}."
    )
