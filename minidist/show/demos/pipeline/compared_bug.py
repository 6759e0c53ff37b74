"""All schedules with the bug, on the time axis that they have without it."""

from minidist.show.demos.pipeline.bug import MISTAKEN, corrupted_by, slots_with_bug, waits_with_bug
from minidist.show.demos.pipeline.compared import KEY, STORES, most_stored
from minidist.show.demos.pipeline.kinds import KINDS, Kind, end_of
from minidist.show.demos.pipeline.mini import Band, Chart
from minidist.show.player.scene import Frame, Scene


def with_bug(correct: Scene, ranks: int, micro_batches: int) -> Scene:
    """The twin of the scene with all plans, frame by frame."""
    bands = [_band(kind, ranks, micro_batches) for kind in KINDS]
    chart = Chart(bands, "slots", right=STORES - 2)
    facts = {band.name: f"{len(band.corrupted)} wrong cells" if band.corrupted else band.told for band in bands}
    frames = []
    for now in (frame.at for frame in correct.frames):
        frames.append(Frame((*chart.shapes(now), *most_stored(chart, now)), _note(bands, now), facts, now))
    key = KEY | {"the swap": "ink", "wrong micro-batch, and what it corrupts": "wrong"}
    verdict = "Four go on with wrong numbers; naive deadlocks."
    return Scene(
        "broken all", f"All, broken: {ranks} ranks, {micro_batches} micro-batches", tuple(frames), chart.height, key,
        verdict, 0, twin=correct.name,
    )  # fmt: skip


def _band(kind: Kind, ranks: int, micro_batches: int) -> Band:
    rows = slots_with_bug(kind, ranks, micro_batches)
    if waits_with_bug(kind, ranks, micro_batches):
        return Band(kind.name, rows, "deadlock", stuck_until=kind.length(ranks, micro_batches))
    return Band(kind.name, rows, f"{end_of(rows):g} slots", mistaken=MISTAKEN, corrupted=corrupted_by(MISTAKEN, rows))


def _note(bands: list[Band], now: float) -> str:
    begun = [(slot.action, band) for band in bands for row in band.rows for slot in row if slot.start < now]
    wrong = sum(action in band.corrupted for action, band in begun)
    return f"After {now:g} slots: {wrong} cells have worked on wrong numbers."
