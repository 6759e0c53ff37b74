"""Chapter 12: when machines fail: sharded checkpoints, the commit protocol, stragglers, and replicas that vote.

**Runs.** Flatten a parameter in C order. Every part that some rank has of it is a tuple of *runs*, pairs (start, stop)
of places in the flat parameter, in the order in which the part has them. Columns 1 and 2 of a (2, 3) matrix are
((1, 3), (4, 6)).

**A checkpoint** is a folder: a file of each rank, and ``manifest.json``, which is written last and lists the contents.
A folder with a manifest is a checkpoint; one without is left over from a save that was cut off. Next to these folders
is the file ``latest``, with the name of the newest checkpoint.

Most functions outside the worksheets have the names and arguments of minidist's own, so the library can save, resume
and watch with them:

    minidist train --impl exercises --dp 2 --zero 3 --save runs/one --save-every 20

You may use the imports below, NumPy, and what you write here. ``minidist check 12`` grades this file,
``minidist check --hint 12.3`` gives a hint.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import comb, exp, expm1, sqrt
from pathlib import Path

import numpy as np
from safetensors.numpy import save as encode

from minidist.train.checkpoint import commit as protocol
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import ArrayEntry, BadCheckpoint
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

Run = tuple[int, int]  # start and stop
MANIFEST, LATEST = "manifest.json", "latest"


# 12.1  The commit protocol
#
# When the power fails, whatever was written and not flushed may be lost, as a whole or in part: the contents of files,
# and their names too, which are the content of their folder. Each may be lost without the other, and in any order. A
# rename is atomic: at any moment the name stands for the old file or for the new one.
#
#     disk.write(path, content)   disk.rename(old, new)   disk.remove(path)   disk.remove_folder(path), an empty one
#     disk.flush(path)            the content of a file is on the disk
#     disk.flush_folder(path)     the names in a folder are on the disk
#     disk.names(path)            what is in a folder
#
# Removing a file that does not exist does nothing, and is no error.
#
# The grader cuts the power at every operation, and checks every state that may be left. Flushes are slow: make no more
# than you need.


def write_durably(disk: Disk, path: Path, content: bytes) -> None:
    """12.1  Write a file, and return once it is on the disk, content and name.

    At any moment, whatever is lost, ``path`` is what it was before (a file, or nothing) or has all of ``content``.

    Args:
        path: in an existing folder. You may use another name in that folder on the way; none of it stays.
    """
    raise NotImplementedError("task 12.1")


def commit(disk: Disk, root: Path, name: str, manifest: bytes) -> None:
    """12.1  Make a checkpoint of the folder ``root / name``, and let ``latest`` point to it; both are then on the disk.

    At any moment, whatever is lost, ``latest`` has the name of a checkpoint, if it had one before, and a folder with a
    manifest has the complete checkpoint.

    Args:
        name: name of a folder whose files are all on the disk. But the folder is new: its own name in ``root`` may not
            be on the disk yet.
        manifest: the content of its manifest.
    """
    raise NotImplementedError("task 12.1")


def discard(disk: Disk, root: Path, name: str) -> None:
    """12.1  Remove the folder ``root / name`` with its files: a checkpoint, or a save without a manifest.

    At any moment, whatever is lost, a folder with a manifest has all files that it had. The removal itself need not be
    on the disk at the end; but if the folder comes back after a power cut, it must not be a checkpoint.
    """
    raise NotImplementedError("task 12.1")


# 12.2  What is wrong with a checkpoint?


def damaged(folder: Path, files: dict[str, tuple[int, str]]) -> dict[str, str]:
    """12.2  The files of a checkpoint that are not as they were written.

    Args:
        folder: the checkpoint's, on a real disk. It may have other files as well.
        files: the files in the manifest: name -> (bytes, the SHA-256 of the content in hexadecimal digits).

    Returns:
        name -> "missing"; "truncated", if it has fewer bytes; "changed", if it differs in any other way. Undamaged
        files are left out.

    A file may be larger than memory: read no more than 1 MiB (2**20 bytes) of it at once. A file whose size is wrong
    need not be read.
    """
    raise NotImplementedError("task 12.2")


def _sha256(path: Path) -> str:
    """12.2  The SHA-256 of a file in hexadecimal digits. (Change it as you like.)"""
    raise NotImplementedError("task 12.2")


def missing_elements(array: ArrayEntry) -> int:
    """12.2  The number of elements of a full array that are in none of its slices.

    Args:
        array: ``array.shape`` of the full array; ``array.slices``, each with its ``runs``. Slices may overlap, and come
            in any order. The array may be larger than memory: do not make one of its size.
    """
    raise NotImplementedError("task 12.2")


def part_of_runs(runs: tuple[Run, ...], places: list[Run]) -> tuple[Run, ...]:
    """12.3  The runs, in the full array, of a part of a part.

    Tensor parallelism takes some rows or columns of a parameter, expert parallelism a part of that, ZeRO a stretch of
    what is left. Each says what it takes, as places in the part before it.

    Args:
        runs: the runs of a part, in the full array. They need not ascend.
        places: the places of some of its elements in the flattened part: pairs (start, stop) of Python integers,
            ascending. They may touch, and may be empty.

    Returns:
        The runs of those elements in the full array, in their order, as Python integers. Runs that touch are joined,
        and none is empty.
    """
    raise NotImplementedError("task 12.3")


def writers(held: list[dict[str, tuple[Run, ...]]]) -> list[set[str]]:
    """12.4  The parameters of which each rank saves its part. Where ranks have the same part, one of them saves it.

    Parts are the same if they are of the same parameter and have the same runs. Go through them in the order in which
    they first appear, rank 0's first. Each part goes to the rank, of those that have it, with the fewest elements so
    far; on a tie, to the lowest rank. Every rank computes this for itself, and all must come to the same result.

    Args:
        held: for each rank the parts that it has: name -> runs. They come from JSON, so runs may be lists; not
            modified.

    Returns:
        For each rank the set of names.
    """
    raise NotImplementedError("task 12.4")


def overlaps(wanted: tuple[Run, ...], there: tuple[Run, ...]) -> Iterator[tuple[int, int, int]]:
    """12.5  The pieces that two parts of the same array have in common.

    Args:
        wanted, there: the runs of both. No element occurs twice in one part.

    Yields:
        ``(place in wanted, place in there, length)``, each place counted in its own part, laid flat, for each pair of a
        run of ``wanted`` and a run of ``there`` that have elements in common, in the order of ``wanted``, then of
        ``there``.
    """
    raise NotImplementedError("task 12.5")


def read_part(
    array: ArrayEntry, name: str, runs: tuple[Run, ...], read: Callable[[str, str, int, int], np.ndarray]
) -> np.ndarray:
    """12.5  One part of a full array, from the slices that any layout has written.

    Args:
        array: ``array.dtype``, and ``array.slices``: each has ``file``, and the ``runs`` of what is in that file.
        name: of the array.
        runs: the part's runs.
        read: ``read(file, name, start, stop)`` returns the elements ``start`` to ``stop`` of the flattened slice in
            that file.

    Returns:
        The part, flat: a new array of ``array.dtype``.

    Raises:
        BadCheckpoint: if some of its elements are in no slice.

    Read no element that the part does not need. Slices do not overlap each other.
    """
    raise NotImplementedError("task 12.5")


class BackgroundSaver:
    """12.6  Debugging: saves that one rank writes in the background, behind training.

    ``save`` begins a save, training goes on, and ``after_step`` ends the save. As long as the write ends before the
    next step begins, all is well. On a slow disk, a run that resumes finds numbers that it never had at that step. And
    after a power cut it sometimes finds no checkpoint at all, although there were some. Find out why, and fix it.

    Args:
        disk: the disk on which checkpoints are saved.
        root: the folder for all of them; it is on the disk.
        start: ``start(function)`` runs a function in the background. It returns another function, which returns whether
            the first one has ended.
    """

    def __init__(self, disk: Disk, root: Path, start: Callable[[Callable[[], None]], Callable[[], bool]]) -> None:
        self.disk, self.root, self.start = disk, root, start
        self.name: str | None = None  # of the save under way
        self.ended: Callable[[], bool] = lambda: True

    def save(self, step: int, state: dict[str, np.ndarray]) -> None:
        """Begin a save. Called at the end of a step, if no save is under way.

        Args:
            state: what the run needs to go on. The steps that follow change these arrays in place.
        """
        name = protocol.name_of(step)
        snapshot = dict(state)
        self.disk.make_folder(self.root / name)

        def write() -> None:
            protocol.write_durably(self.disk, self.root / name / "rank-0.safetensors", encode(snapshot))

        self.name, self.ended = name, self.start(write)
        self.commit()

    def after_step(self) -> None:
        """Called at the end of every step, even if no save is under way; a save of that step begins after it."""
        if self.ended():
            self.name = None

    def commit(self) -> None:
        """Make a checkpoint of the save under way, and keep no other."""
        old = protocol.committed(self.disk, self.root)
        protocol.commit(self.disk, self.root, self.name, b"rank-0.safetensors")
        for name in old:
            protocol.discard(self.disk, self.root, name)


# 12.7  Worksheet: how often to save
#
# Failures come at random: the time to the next one is exponential, whatever happened before. M is its mean, the mean
# time between failures. A run trains for ``interval``, saves for ``pause``, trains on, and so on. After a failure
# ``recovery`` passes until training goes on from the last save that was finished. All times are in one unit.
#
# Llama 3 405B had 419 unexpected interruptions in 54 days on 16,384 GPUs. Try your functions on that.


def gpu_mtbf(time: float, gpus: int, failures: int) -> float:
    """The mean time between failures of one GPU with its share of everything else, from a cluster's ``failures``."""
    raise NotImplementedError("task 12.7")


def cluster_mtbf(one: float, gpus: int) -> float:
    """M of a cluster that any GPU's failure stops; ``one`` is the M of one GPU."""
    raise NotImplementedError("task 12.7")


def no_failure_probability(mtbf: float, time: float) -> float:
    """The probability that nothing fails in this time."""
    raise NotImplementedError("task 12.7")


def first_order_waste(mtbf: float, interval: float, pause: float, recovery: float) -> float:
    """The waste as a share of useful time, to first order: the cost of saves, and the cost of one failure in every M.

    A failure undoes half an interval on average. No failure comes during a save or a recovery.
    """
    raise NotImplementedError("task 12.7")


def young_interval(mtbf: float, pause: float) -> float:
    """The interval with the least first-order waste. (Young, 1974.)"""
    raise NotImplementedError("task 12.7")


def longest_pause(mtbf: float, waste: float) -> float:
    """The longest pause with which a run, at its best interval, wastes at most ``waste``, apart from recovery."""
    raise NotImplementedError("task 12.7")


def goodput(mtbf: float, interval: float, pause: float, recovery: float) -> float:
    """The useful share of all time in a long run. Nothing is approximated.

    Failures come during saves and recoveries too. A save that is not finished does not count, and a recovery that is
    interrupted begins anew. (Daly, 2006.)
    """
    raise NotImplementedError("task 12.7")


def step_time(config: TrainConfig, layout: Layout) -> Fraction:
    """12.8  The time of a step, in units of one micro-batch through the whole model on one rank.

    A run that has lost a rank goes on in the layout for which this is least. Communication, embeddings and the
    optimizer's update take no time.

    - The dp ranks get micro-batches as evenly as possible; the busiest, the one with the most, counts.
    - A pipeline has pp * virtual stages, stage s on its rank s % pp. Its fullest rank, the one with the most layers in
      all its stages, sets the pace. tp and cp divide the work of a layer evenly.
    - While a pipeline fills and drains, a rank is idle for as long as it takes to run pp - 1 micro-batches through one
      of its stages: with m micro-batches and v stages a step takes 1 + (pp - 1) / (m v) times as long. With the
      schedule "naive" only one rank works at a time: pp times as long.

    Args:
        config: ``config.micro_batches``, of all ranks in a step; ``config.layers``; ``config.stages(layout)``, the
            number of layers of each stage.
        layout: ``layout.dp``, ``tp``, ``cp``, ``pp``, ``virtual``, ``schedule``.

    Returns:
        A Fraction, exact: times that are equal must compare as equal.
    """
    raise NotImplementedError("task 12.8")


# 12.9  Worksheet: copies in the memory of others
#
# N machines keep their checkpoints in memory. Each has its own part, and others have copies of it, so that every part
# is on ``copies`` machines, its own one included. Then some machines fail at the same time; every choice of them is
# equally likely. Everything is recovered if, for each part, at least one machine is left that has it. (GEMINI, Wang et
# al., 2023.)


def recoverable_in_groups(machines: int, copies: int, failures: int) -> float:
    """The probability of recovery if machines form groups of ``copies`` machines that have each other's parts.

    ``copies`` divides ``machines``; ``failures`` is at most ``machines``.
    """
    raise NotImplementedError("task 12.9")


def recoverable_in_a_ring(machines: int, failures: int) -> float:
    """The probability of recovery if each machine has a copy of the part of the one before it: two copies, in a ring.

    There are at least 3 machines, and at least one does not fail.
    """
    raise NotImplementedError("task 12.9")


def copies_bytes(state_bytes: int, machines: int, copies: int) -> tuple[float, float]:
    """The bytes that a machine keeps of ``state_bytes``, its own part included, and those that it sends in a save.

    All machines have equally large parts, and keep one checkpoint at a time.
    """
    raise NotImplementedError("task 12.9")


# 12.10  Stragglers


def slow_ranks(seconds: np.ndarray, threshold: float = 1.8) -> dict[int, float]:
    """12.10  The slow ranks, and how many times as long as the others each of them takes.

    A rank's time is its median over the steps, so a few odd steps count for nothing. It is compared with the median of
    the *other* ranks' times, so that the slow one of two ranks can be found.

    Args:
        seconds: the seconds that each rank computed in each step, (steps, ranks), above 0; not modified. Waiting does
            not count. There may be no steps, or only one rank.
        threshold: a rank is slow if it takes more than this many times as long.

    Returns:
        rank -> its factor, a Python int and a Python float.
    """
    raise NotImplementedError("task 12.10")


def deal(speeds: Sequence[float], micro_batches: int) -> list[int]:
    """12.10  The micro-batches that each rank gets, so that the last rank to end does so as early as it can.

    Every rank gets one. Each of the others goes to the rank that would end first with one more of them; if several
    would, to the first. In no other deal does the last rank end earlier. It changes no bit of the run: the micro-batch
    is the grain, whoever computes it.

    Args:
        speeds: micro-batches a second of each rank, above 0; not modified.
        micro_batches: how many to deal out, at least one per rank.

    Returns:
        A count for each rank, Python integers.
    """
    raise NotImplementedError("task 12.10")


# 12.11  Replicas vote
#
# All layouts compute the same bits, and so do replicas. So if two differ, one of them is wrong, and a third one shows
# which.


def digest(array: np.ndarray) -> str:
    """12.11  The SHA-256 of an array, in hexadecimal digits: of its dtype (``array.dtype.str``), shape and bits.

    Arrays whose bits differ have different digests, even 0.0 and -0.0; so have arrays of different shapes or dtypes.
    The same bits have the same digest, even those of NaNs, and whether or not the array is contiguous.

    Args:
        array: numbers of any dtype and shape; not modified.
    """
    raise NotImplementedError("task 12.11")


def odd_ones_out(digests: list[str]) -> list[int] | None:
    """12.11  The voters that disagree with the majority.

    Args:
        digests: the digest of each voter; not modified. There is at least one.

    Returns:
        The places of the voters whose digest is not the one that more than half of all voters have, ascending; [] if
        all agree. None if no digest has more than half: then there is no majority.
    """
    raise NotImplementedError("task 12.11")


def first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    """12.11  The place of the first element whose bits differ, in the flattened arrays; None if there is none.

    Args:
        a, b: of the same dtype, float32 or float64, and the same shape; not modified. They may have NaNs.
    """
    raise NotImplementedError("task 12.11")
