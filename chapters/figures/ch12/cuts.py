"""Saving twice on a disk that loses power after any operation: what the next run finds."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from figures.ch12.cut_protocol import NOTHING
from minidist.show.demos.failure.crashing_disk import CrashingDisk, PowerFailure
from minidist.train.checkpoint.commit import committed, discard, latest, make_root, name_of

ROOT = Path("/run")
Saver = Callable[[CrashingDisk, Path, int], None]  # of one rank: disk, folder of all checkpoints, step


def two_saves(disk: CrashingDisk, saver: Saver) -> None:
    """Save steps 10 and 20, then discard step 10."""
    make_root(disk, ROOT)
    saver(disk, ROOT, 10)
    saver(disk, ROOT, 20)
    if latest(disk, ROOT) == name_of(20) and name_of(10) in committed(disk, ROOT):
        discard(disk, ROOT, name_of(10))


def found_in(disk: CrashingDisk) -> str:
    """Return what the next run finds: the newest checkpoint if all of it is there, else NOTHING."""
    with suppress(OSError):
        if (name := latest(disk, ROOT)) is not None:
            step = disk.read(ROOT / name / "manifest.json").decode().removeprefix("manifest of ")
            if disk.read(ROOT / name / "rank-0").decode() == f"weights of {step}" and step in ("step 10", "step 20"):
                return step
    return NOTHING


def cut_everywhere(saver: Saver) -> list[tuple[str, str, str]]:
    """Cut ``two_saves`` after each operation.

    Returns:
        For each cut: the operation in words, what is found if the process was killed, and what is found if the power
        failed: NOTHING if any way of losing power leaves nothing.
    """
    whole, found = CrashingDisk(), []
    two_saves(whole, saver)
    for number, (verb, *paths) in enumerate(whole.operations):
        disk = CrashingDisk(power_fails_at=number + 1)
        with suppress(PowerFailure):
            two_saves(disk, saver)
        killed, *others = [found_in(left) for _, left in disk.left()]
        lost = sorted({killed, *others})
        words = f"{verb} {' -> '.join(path.name for path in paths)}"
        found.append((words, killed, NOTHING if NOTHING in lost else " or ".join(lost)))
    return found


def second_save(saver: Saver) -> list[tuple[str, str, str]]:
    """Return the cuts of ``cut_everywhere`` from the moment at which the first checkpoint is safe."""
    cuts = cut_everywhere(saver)
    announced = next(number for number, (words, *_) in enumerate(cuts) if words.endswith("-> latest"))
    return cuts[announced + 2 :]  # and the flush of its folder


def losses(saver: Saver) -> tuple[int, int, int]:
    """Count the cuts after the first save has ended.

    Returns:
        All cuts, those that leave nothing after a kill, and those that may leave nothing after a power cut.
    """
    first = CrashingDisk()
    make_root(first, ROOT)
    saver(first, ROOT, 10)
    cuts = cut_everywhere(saver)[len(first.operations) :]
    killed, lost = (sum(cut[column] == NOTHING for cut in cuts) for column in (1, 2))
    return len(cuts), killed, lost
