"""Tensor and sequence parallelism: collectives inside forward and backward, for which compute has to stop."""

from collections.abc import Callable

from minidist.analysis.steps import kind_of, step_length, traced_step
from minidist.show.demos import broken_tensors, halves, lanes
from minidist.show.demos.halves import Part
from minidist.show.demos.lanes import MS, Bar, Lanes
from minidist.show.demos.runs import fastest, told, warm_ranks
from minidist.show.demos.widths import check_width
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run

TITLES = {0: "Each half of a block ends with an all-reduce", 1: "A reduce-scatter and an all-gather between two halves"}


def tp(ranks: int, size: int, seed: int) -> Animation:
    """Train a model at least ``size`` wide, split over so many ranks; then with one of its all-reduces left out.

    Raises:
        ValueError: for a width at which there is nothing to be seen, or too much to wait for.
    """
    return _animation(
        "tp",
        "Tensor parallelism: two all-reduces a block each way",
        {"tp": Layout(tp=ranks)},
        config_of(ranks, size, seed),
        broken_tensors.drops_g,
        f"in forward, {broken_tensors.WITHOUT_G} is not summed over the ranks",
    )


def sp(ranks: int, size: int, seed: int) -> Animation:
    """The same with the tokens split where tensor parallelism splits nothing, and without; then a sum left out.

    Raises:
        ValueError: as ``tp``.
    """
    return _animation(
        "sp",
        "Sequence parallelism: the same bytes or fewer, and less to hold",
        {"tp + sp": Layout(tp=ranks, sp=1), "tp": Layout(tp=ranks)},
        config_of(ranks, size, seed),
        broken_tensors.drops_gains,
        "the gradients of LayerNorm's gains are not summed over the ranks' tokens",
    )


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    """A model whose heads and tokens the ranks divide."""
    check_width(size, *lanes.WIDTHS)
    width = _multiple(ranks, size)
    return TrainConfig(
        layers=2,
        heads=next(heads for heads in (2 * ranks, ranks) if width % heads == 0),
        width=width,
        context=_multiple(ranks, 64),
        global_batch=8,
        micro_batch=8,
        steps=3,
        seed=seed,
        clip=100.0,  # so high that a wrong gradient changes no other parameter
    )


def _multiple(of: int, least: int) -> int:
    return -(-least // of) * of


def _animation(
    name: str, title: str, layouts: dict[str, Layout], config: TrainConfig, drops: Callable, bug: str
) -> Animation:
    layout = next(iter(layouts.values()))
    with warm_ranks() as warm:
        runs = {scene: fastest(warm, config, chosen) for scene, chosen in layouts.items()}
        proofs = {scene: warm.prove(config, run) for scene, run in runs.items()}
        broken = fastest(warm, config, layout, drops)
        parting = told(warm.parting(config, broken, drops))
    longest = max(step_length(_step(run)) for run in (*runs.values(), broken))
    scenes = tuple(_scene(scene, run, longest, proofs[scene]) for scene, run in runs.items())
    logs = [rank.log for rank in next(iter(runs.values())).ranks]
    return Animation(name, title, scenes, _scene("broken", broken, longest, parting), bug, logs)


def _step(run: Run) -> list[list[Event]]:
    return traced_step([rank.log for rank in run.ranks])


def _bars(log: list[Event], run: Run) -> list[Bar]:
    """One rank's step: whenever it communicates, its compute stands still."""
    parts = halves.parts(log, run.config, run.layout)
    inside = [part.event for part in parts]
    outside = [event for event in lanes.communications(log) if event not in inside]
    bars = [lanes.update(log), *(lanes.bar(event, "communication") for event in outside)]
    for part in parts:
        if part.kind == "compute":
            half = "attn" if part.place.startswith("attention") else part.place.split()[0]
            bars.append(lanes.bar(part.event, part.phase, half, half[0].upper()))
            continue
        bars.append(lanes.bar(part.event, "wait"))
        if lanes.is_dropped(part.event):
            bars.append(lanes.missing(part.event, "g" if part.kind else ""))
        elif part.kind == "all-reduce":
            bars.append(lanes.bar(part.event, "communication", "g" if part.phase == "forward" else "f"))
        else:
            bars.append(lanes.bar(part.event, part.kind or "communication"))
    return bars


def _scene(name: str, run: Run, longest: int, proof: str) -> Scene:
    step, config, ranks = _step(run), run.config, len(run.ranks)
    end, parts = step_length(step), halves.parts(step[0], config, run.layout)
    picture = Lanes([_bars(log, run) for log in step], end, longest)
    drops = [event.end for event in step[0] if lanes.is_dropped(event)]
    moments = {0: "Every rank has the same samples, and its own heads, hidden units and part of the vocabulary."}
    for part in parts:
        if lanes.is_dropped(part.event) or part.kind not in ("", "compute"):
            moments[part.event.end] = halves.sentence(part, ranks)
    optimizer = next(event for event in step[0] if kind_of(event) == "optimizer")
    moments[optimizer.start] = (
        "Backward is over: each rank has the gradients of its own weights, and no sums to wait for."
    )
    moments[end] = "The step has ended: each rank has updated its own weights."
    if drops:
        moments[end] = "The step has ended: each rank has updated its weights with wrong gradients."
    frames, first_wrong = [], None
    for number, (time, note) in enumerate(sorted(moments.items())):
        if first_wrong is None and any(drop <= time for drop in drops):
            first_wrong = number
        frames.append(picture.frame(time, note, _facts(run, parts, time, end)))
    words = f"{proof} Rank 0's compute stood still for {_still(parts) / end:.0%} of the step."
    sizes = f"L = {config.layers} blocks, B T C = {config.micro_batch} x {config.context} x {config.width}"
    title = f"{TITLES[run.layout.sp]} (N = {ranks} ranks, {sizes})"
    third = len(frames) // 3
    stills = tuple(sorted({third, 2 * third if first_wrong is None else first_wrong, len(frames) - 1}))
    return Scene(name, title, tuple(frames), picture.height, _key(run, drops), words, first_wrong, stills)


def _key(run: Run, drops: list) -> dict[str, str]:
    names = {"forward": "forward", "backward": "backward", "optimizer": "optimizer", "wait": "compute stands still"}
    names |= {"communication": "all-reduce"} | ({kind: kind for kind in halves.calls(1, True)} if run.layout.sp else {})
    return {words: lanes.COLOURS[kind] for kind, words in names.items()} | ({"left out": "wrong"} if drops else {})


def _still(parts: list[Part]) -> int:
    """How long compute stood still, in ns."""
    return sum(part.event.end - part.event.start for part in parts if part.kind != "compute")


def _facts(run: Run, parts: list[Part], time: int, end: int) -> dict[str, str]:
    config, sequence = run.config, bool(run.layout.sp)
    past = [part for part in parts if part.event.end <= time and not lanes.is_dropped(part.event)]
    facts = {"time": f"{time / MS:.1f} of {end / MS:.1f} ms"}
    for called, count in halves.calls(config.layers, sequence).items():
        formula = f"formula {'4 L + 2' if called == 'all-gather' else '4 L + 1'}"
        facts[f"{called}s of activations"] = f"{sum(part.kind == called for part in past)} ({formula}: {count})"
    elements = config.micro_batch * config.context * config.width
    rows = [row for rank in run.ranks for row in rank.collectives if row["elements"] == elements]
    sent = sum(row["bytes_sent"] for row in rows if (row["name"], row["dtype"]) != ("all_reduce", "float32"))
    calls = "(3 L + 1)" if sequence else "(4 L + 1)"  # 4 (4 L + 2) + 8 (4 L + 1) or 16 (4 L + 1) bytes a number
    return facts | {
        "compute stood still": f"{_still(past) / MS:.1f} ms",
        "sent for them, all ranks": f"{sent:,} B",
        f"formula 16 (N−1) {calls} B T C": f"{halves.nbytes(config, len(run.ranks), sequence):,} B",
        "activations at peak": f"{run.ranks[0].memory['activations'] / 2**10:,.0f} KiB",
    }
