"""Stories of failures: a loss that jumps back when steps are taken again, and files that are safe or not."""

from collections.abc import Sequence

from minidist.show.demos.failure.power_cut import Left, Moment
from minidist.show.demos.failure.recording import FOLDER, OLD, RANKS, Recording
from minidist.show.demos.failure.run import Interrupted
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.stage.curve import Chart
from minidist.show.stage.marks import Mark, box, line, text
from minidist.show.stage.story import Beat, Question, Story
from minidist.train.checkpoint.commit import LATEST, MANIFEST, name_of

READ, SAFE, SAVED = MEANINGS["checkpoint"], MEANINGS["result"], MEANINGS["checkpoint"]
AGAIN = MEANINGS["reduce-scatter"]
PACE = 1.3  # seconds from one operation to the next
SAYS = {
    ("write", RANKS): "Each rank writes its file, under another name.",
    ("flush", RANKS): "Each rank flushes its file: its content is on the disk.",
    ("rename", RANKS): "Each rank renames its file.",
    ("flush_folder", RANKS): "Each rank flushes the folder: the files' names are on the disk.",
    ("write", MANIFEST): "Rank 0 writes the manifest, under another name.",
    ("flush", MANIFEST): "Rank 0 flushes the manifest.",
    ("rename", MANIFEST): "Rank 0 names the manifest: now the folder is a checkpoint.",
    ("flush_folder", MANIFEST): "Rank 0 flushes the folder.",
    ("flush_folder", FOLDER): "Rank 0 flushes the folder above.",
    ("write", LATEST): "Rank 0 writes a new `latest`, under another name.",
    ("flush", LATEST): "Rank 0 flushes it.",
    ("rename", LATEST): "Rank 0 renames it: `latest` moves on.",
    ("flush_folder", LATEST): "Rank 0 flushes the folder: `latest` is on the disk.",
    ("remove", OLD): "Rank 0 removes files of the old checkpoint.",
    ("flush_folder", OLD): "Rank 0 flushes the old folder.",
}


def dies(run: Interrupted, details: str, right: Interrupted | None = None, bug: str = "") -> Story:
    """Plot the loss of a run that loses a rank; ``right`` is the same run without the bug, or None if there is none."""
    before, after, left = run.before, run.after, run.after.layout.world_size
    losses = list(enumerate(before.losses[run.fault.rank]))
    again = [(after.first + i, loss) for i, loss in enumerate(after.losses[0])]
    reference = [(right.after.first + i, loss) for i, loss in enumerate(right.after.losses[0])] if right else []
    values = [loss for _, loss in losses + again + reference]
    chart = Chart(
        (130, 40, 1090, 380),
        (0, run.steps - 1),
        (min(values), max(values)),
        ("step", "loss"),
        (sorted({0, after.first, before.ended, run.steps - 1}), ()),
    )
    chart.curve(losses, "#0072B2", -3.0, 4.2)  # it has trained for a while
    marks = chart.marks()
    x, y = chart.at(*losses[-1])
    cross = [line([(x - 22, y + s * 22), (x + 22, y - s * 22)], "wrong", 8) for s in (1, -1)]
    marks += [stroke.enter(1.9, 0.1) for stroke in cross]
    saved, died = (chart.at(steps - 0.5, values[0])[0] for steps in (after.first, before.ended))  # between two steps
    lost = box(saved, 40, died - saved, 380, "#F2C4C4", "steps in no checkpoint").enter(4.2, 0.3)
    marks.insert(0, lost)
    marks.append(text((saved + died) / 2, 390, "lost", 36, "#8A1020", weight=700).enter(4.2, 0.3))
    marks.append(line([(saved, 40), (saved, 420)], SAVED, 8))
    marks.append(text(saved + 12, 62, f"checkpoint: {after.first} steps", 32, anchor="start"))
    ranks = before.layout.world_size
    wide = 1090 / ranks
    for rank in range(ranks):
        gpu = box(130 + rank * wide + 4, 500, wide - 8, 62, of_rank(rank), text=f"rank {rank}", weight=700)
        if rank == run.fault.rank:
            gpu.to(1.9, 0.2, fill="wrong")
        marks.append(gpu)
    back = chart.at(*again[0])[1]
    arc = [(x + (saved - x) * i / 12, y + (back - y) * i / 12 - 110 * (1 - (i / 6 - 1) ** 2)) for i in range(13)]
    marks.append(line(arc, AGAIN, 8, head=True).begin(turn=0).to(5.2, 0.8, turn=1))
    for points, colour in ((reference, "right"), (again, AGAIN)):
        if points:
            curve = line([chart.at(*point) for point in points], colour, 10 if colour == AGAIN else 6)
            marks.append(curve.trace(6.2, 3))
    where = Question(
        f"The rank died after {before.ended_by(run.fault.rank)} steps. Which step comes next?",
        ("the one after the checkpoint", "the one in which it died", "the first"),
        0,
        "The dead rank's state is left only in the checkpoint: all steps after it are taken again.",
    )
    end = "The same bits, step for step: nobody can tell that it was killed."
    if right:
        end = f"Training goes on, as a different run: the loss is {again[-1][1]:.4f} instead of {reference[-1][1]:.4f}."
    beats = [
        Beat(0, f"{ranks} ranks train. One of them will be killed.", cue="Of 16,384 GPUs one fails every three hours."),
        Beat(3.3, f"Rank {run.fault.rank} is dead, and its memory is gone.", asks=where),
        Beat(
            6.2,
            f"Steps lost: {len(run.lost)}. {left} rank{'s go' if left > 1 else ' goes'} on from the checkpoint.",
            {
                "layout": str(after.layout),
                "checkpoint": f"{run.files} files, {run.nbytes:,} bytes",
                "error": str(run.error),
            },
            answers=where,
        ),
        Beat(9.4, end),
    ]
    verdict = f"SHA-256 {run.fingerprint[:8]}; never interrupted: {run.reference[:8]}."
    return Story("die, go on", "A rank dies. What is lost?", marks, beats, verdict, bug, details)


def save(recording: Recording, moments: Sequence[Moment], ranks: int, details: str, bug: str = "") -> Story:
    """Show a save operation by operation: what programs read and, below it, what a power cut would leave."""
    table = _Files(recording, ranks)
    count = len(table.names)
    wide = 1130 / count
    marks: list[Mark] = [
        text(8, y, words, anchor="start") for y, words in ((120, "read"), (290, "after"), (320, "a cut"))
    ]
    for i, name in enumerate(table.names):  # if there are many, every second one stands lower
        marks.append(text(140 + (i + 0.5) * wide, 26 if wide > 150 else 12 + 28 * (i % 2), name))
    for row, (y, states) in enumerate(((60, table.read), (240, table.left))):
        for i in range(count):
            cell = box(
                140 + i * wide + 5,
                y,
                wide - 10,
                130,
                "faint",
                f"{table.names[i]}: {('what programs read', 'after a power cut')[row]}",
            )
            for number, moment in enumerate(moments):
                colour = states(moment)[i]
                if not number:
                    cell.begin(fill=colour)
                elif colour != cell.now["fill"]:
                    cell.to(number * PACE - 0.5, 0.3, fill=colour)
            marks.append(cell)
    words = [table.resume(moment) for moment in moments]
    changes = [number for number in range(len(words)) if not number or words[number] != words[number - 1]]
    for place, number in enumerate(changes):
        mark = text(
            640,
            480,
            f"If the power fails now: {words[number]}",
            40,
            "wrong" if "refused" in words[number] else "right",
            weight=700,
        )
        mark = mark.enter(number * PACE - 0.3, 0.1) if number else mark
        marks.append(mark.leave(changes[place + 1] * PACE - 0.35, 0.05) if place + 1 < len(changes) else mark)
    commit = next(
        i for i, group in enumerate(recording.groups, 1) if (group.method, group.about) == ("rename", MANIFEST)
    )
    asked = Question(
        "The power fails while ranks write their files. What does a run go on from?",
        ("the new checkpoint", "the old checkpoint", "nothing: both are spoiled"),
        1,
        "The manifest comes last, and `latest` after it. Until then nobody looks at the new folder.",
    )
    tried = 0
    beats = []
    for number, moment in enumerate(moments):
        tried += len(moment.left)
        says = f"Step {recording.old} is saved. Now {ranks} ranks save step {recording.new}."
        if number:
            group = recording.groups[number - 1]
            says = SAYS[group.method, group.about]
        facts = {"operations": f"{number} of {len(recording.groups)}", "power cuts tried": str(tried)}
        beats.append(
            Beat(number * PACE, says, facts, asked if not number else None, asked if number == commit else None)
        )
    refused = sum(one.step is None for moment in moments for one in moment.left)
    verdict = (
        f"{refused} of {tried} power cuts leave nothing to resume from."
        if bug
        else f"{tried} power cuts tried: always whole."
    )
    key = {"can be read": READ, "safe": SAFE, "not sure": "faint", "spoiled": "wrong"}
    return Story("save", "When is a checkpoint safe?", marks, beats, verdict, bug, details, key=key)


class _Files:
    """Colours of all files at a moment."""

    def __init__(self, recording: Recording, ranks: int) -> None:
        self.old, new = name_of(recording.old), name_of(recording.new)
        self.contents = {f"{new}/{name}": content for name, content in recording.contents(recording.new).items()}
        old = recording.contents(recording.old)
        self.old_contents = {f"{self.old}/{name}": content for name, content in old.items()}
        self.paths = [f"{new}/rank-{rank}.safetensors" for rank in range(ranks)] + [f"{new}/{MANIFEST}"]
        self.names = [f"step {recording.old}", *(f"rank {rank}" for rank in range(ranks)), "manifest", LATEST]

    def read(self, moment: Moment) -> list[str]:
        """Return the colours of the files as programs read them."""
        files = moment.read
        old = READ if self.old_contents.items() <= files.items() else "faint"
        return [old, *(READ if files.get(path) == self.contents[path] else "faint" for path in self.paths), READ]

    def left(self, moment: Moment) -> list[str]:
        """Return the colours of the files after a power cut."""
        refused = [one for one in moment.left if one.step is None]
        states = {path: {one.files.get(path) == self.contents[path] for one in moment.left} for path in self.paths}
        bad = {path for path in self.paths if any(one.files.get(path) != self.contents[path] for one in refused)}
        olds = {self._has_old(one) for one in moment.left}
        old = "wrong" if any(not self._has_old(one) for one in refused) else SAFE if olds == {True} else "faint"
        cells = ["wrong" if path in bad else SAFE if states[path] == {True} else "faint" for path in self.paths]
        return [old, *cells, SAFE if len({one.files[LATEST] for one in moment.left}) == 1 else "faint"]

    def _has_old(self, left: Left) -> bool:
        return self.old_contents.items() <= left.files.items()

    def resume(self, moment: Moment) -> str:
        """Return, in words, the steps that a run may resume from after a power cut."""
        steps = " or ".join(f"step {step}" for step in sorted(step for step in moment.resumes if step is not None))
        return steps if None not in moment.resumes else f"{steps} or refused" if steps else "refused"
