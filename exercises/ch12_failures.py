"""Chapter 12: when machines fail: sharded checkpoints, the commit protocol, stragglers, and replicas that vote.

**Runs.** Lay a parameter flat, in C order. Every part of it that some rank has is a tuple of *runs*, pairs (start,
stop) of places in it, in the order in which the part has them. Columns 1 and 2 of a (2, 3) matrix are ((1, 3), (4, 6)).

**A checkpoint** is a folder: a file of each rank, and ``manifest.json``, which is written last and says what there is.
A folder with a manifest is a checkpoint, one without is the rest of a save that was cut off. Beside these folders is
the file ``latest``, with the name of the newest checkpoint.

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
# What was written and not flushed may be lost when the power fails, as a whole or in part: contents, and names too,
# which are the content of their folder. Each may be lost without the other, and in any order. A rename replaces a name
# at once: at any moment it stands for the old file or for the new one.
#
#     disk.write(path, content)   disk.rename(old, new)   disk.remove(path)   disk.remove_folder(path), an empty one
#     disk.flush(path)            the content of a file is on the disk
#     disk.flush_folder(path)     the names in a folder are on the disk
#     disk.names(path)            what is in a folder
#
# Removing a file that is not there does nothing, and is no error.
#
# A grader cuts the power at every operation, and looks at all that may be left. Flushes are slow: make no more than you
# need.


def write_durably(disk: Disk, path: Path, content: bytes) -> None:
    """12.1  Write a file, and return once it is on the disk, content and name.

    At any moment, whatever is lost, ``path`` is what it was before (a file, or nothing) or has all of ``content``.

    Args:
        path: in a folder that is there. Another name beside it may be used on the way; nothing of it stays.
    """
    raise NotImplementedError("task 12.1")


def commit(disk: Disk, root: Path, name: str, manifest: bytes) -> None:
    """12.1  Make a checkpoint of the folder ``root / name``, and let ``latest`` point to it; both are then on the disk.

    At any moment, whatever is lost, ``latest`` has the name of a checkpoint, if it had one before, and a folder with a
    manifest has all of it.

    Args:
        name: of a folder whose files are all on the disk. But it is new: its own name in ``root`` may be not.
        manifest: the content of its manifest.
    """
    raise NotImplementedError("task 12.1")


def discard(disk: Disk, root: Path, name: str) -> None:
    """12.1  Remove the folder ``root / name`` with its files: a checkpoint, or the rest of a save without a manifest.

    At any moment, whatever is lost, a folder with a manifest has all files that it had. The removal itself need not be
    on the disk at the end; but what comes back after a power cut is no checkpoint.
    """
    raise NotImplementedError("task 12.1")


# 12.2  What is wrong with a checkpoint?


def damaged(folder: Path, files: dict[str, tuple[int, str]]) -> dict[str, str]:
    """12.2  Which files of a checkpoint are not as they were written.

    Args:
        folder: of the checkpoint, on a real disk. It may have other files as well.
        files: what the manifest says: name -> bytes, and the SHA-256 of the content in hexadecimal digits.

    Returns:
        name -> "missing"; "truncated", if it has fewer bytes; "changed", if it is otherwise not the same. Files that
        are whole are left out.

    A file may be larger than memory: read no more than 1 MiB (2**20 bytes) of it at once. A file whose size is wrong
    need not be read.
    """
    raise NotImplementedError("task 12.2")


def _sha256(path: Path) -> str:
    """12.2  The SHA-256 of a file in hexadecimal digits. (Change it as you like.)"""
    raise NotImplementedError("task 12.2")


def missing_elements(array: ArrayEntry) -> int:
    """12.2  How many elements of a full array are in none of its slices. They may overlap, and come in any order.

    Args:
        array: ``array.shape`` of the full array; ``array.slices``, each with its ``runs``. The array may be larger than
            memory: do not make one of its size.
    """
    raise NotImplementedError("task 12.2")


def part_of_runs(runs: tuple[Run, ...], places: list[Run]) -> tuple[Run, ...]:
    """12.3  Where a part of a part is in the full array.

    Tensor parallelism takes some rows or columns of a parameter, expert parallelism a part of that, ZeRO a stretch of
    what is left. Each says what it takes of the part before it.

    Args:
        runs: of a part, in the full array. They need not ascend.
        places: of some of its elements, in the part laid flat: pairs (start, stop) of Python integers, ascending. They
            may touch, and may be empty.

    Returns:
        The runs of those elements in the full array, in their order, as Python integers. Runs that touch are joined,
        and none is empty.
    """
    raise NotImplementedError("task 12.3")


def writers(held: list[dict[str, tuple[Run, ...]]]) -> list[set[str]]:
    """12.4  Which parameters each rank saves its part of. Where ranks have the same part, one of them does.

    Parts are the same if they are of the same parameter and have the same runs. Go through them in the order in which
    they first appear, rank 0's first. Each goes to the rank, of those that have it, with the fewest elements so far; if
    several have as few, to the lowest. Every rank computes this for itself, and all must come to the same result.

    Args:
        held: for each rank what it has: name -> runs. They come out of JSON, so runs may be lists; not modified.

    Returns:
        For each rank the set of names.
    """
    raise NotImplementedError("task 12.4")


def overlaps(wanted: tuple[Run, ...], there: tuple[Run, ...]) -> Iterator[tuple[int, int, int]]:
    """12.5  What of one part is found in another part of the same array.

    Args:
        wanted, there: the runs of both. No element is twice in one part.

    Yields:
        ``(place in wanted, place in there, length)``, both places counted in the part laid flat, for each pair of a run
        of ``wanted`` and a run of ``there`` that have elements in common, in the order of ``wanted``, then of
        ``there``.
    """
    raise NotImplementedError("task 12.5")


def read_part(
    array: ArrayEntry, name: str, runs: tuple[Run, ...], read: Callable[[str, str, int, int], np.ndarray]
) -> np.ndarray:
    """12.5  One part of a full array, from the slices of whatever layout wrote it.

    Args:
        array: ``array.dtype``, and ``array.slices``: each has ``file``, and the ``runs`` of what is in that file.
        name: of the array.
        runs: of the part.
        read: ``read(file, name, start, stop)`` returns those elements of the slice in a file, the slice laid flat.

    Returns:
        The part, flat: a new array of ``array.dtype``.

    Raises:
        BadCheckpoint: if no slice has some of its elements.

    Read no element that the part does not need. Slices do not overlap each other.
    """
    raise NotImplementedError("task 12.5")


class BackgroundSaver:
    """12.6  Debugging: saves that are written behind training, by one rank.

    ``save`` begins one, the steps after it go on, and ``after_step`` ends it. As long as the write ends before the next
    step begins, all is well. On a slow disk, a run that resumes finds numbers that it never had at that step. And
    where the power fails, sometimes it finds no checkpoint at all, although there were some. Find out why, and fix it.

    Args:
        disk: on which checkpoints are saved.
        root: the folder for all of them; it is on the disk.
        start: ``start(function)`` runs a function behind training. It returns a function that says whether the first
            one has ended.
    """

    def __init__(self, disk: Disk, root: Path, start: Callable[[Callable[[], None]], Callable[[], bool]]) -> None:
        self.disk, self.root, self.start = disk, root, start
        self.name: str | None = None  # of the save under way
        self.ended: Callable[[], bool] = lambda: True

    def save(self, step: int, state: dict[str, np.ndarray]) -> None:
        """Begin to save. Called at the end of a step, if no save is under way.

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
        """Called at the end of every step, also if no save is under way; a save of that step begins after it."""
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
    """The mean time between failures of one GPU and its share of all else, from those of a cluster in some time."""
    raise NotImplementedError("task 12.7")


def cluster_mtbf(one: float, gpus: int) -> float:
    """M of a cluster that any GPU's failure stops; ``one`` is that of one GPU."""
    raise NotImplementedError("task 12.7")


def no_failure_probability(mtbf: float, time: float) -> float:
    """The probability that nothing fails in this time."""
    raise NotImplementedError("task 12.7")


def first_order_waste(mtbf: float, interval: float, pause: float, recovery: float) -> float:
    """The waste in units of useful time, to first order: what saves cost, and what a failure costs once in every M.

    A failure undoes half an interval on average. No failure comes during a save or a recovery.
    """
    raise NotImplementedError("task 12.7")


def young_interval(mtbf: float, pause: float) -> float:
    """The interval with the least first-order waste. (Young, 1974.)"""
    raise NotImplementedError("task 12.7")


def longest_pause(mtbf: float, waste: float) -> float:
    """The longest save with which a run, at its best interval, wastes no more than this, apart from recovery."""
    raise NotImplementedError("task 12.7")


def goodput(mtbf: float, interval: float, pause: float, recovery: float) -> float:
    """The useful share of all time in a long run. Nothing is approximated.

    Failures come during saves and recoveries too. A save that is not finished does not count, and a recovery that is
    interrupted begins anew. (Daly, 2006.)
    """
    raise NotImplementedError("task 12.7")


def step_time(config: TrainConfig, layout: Layout) -> Fraction:
    """12.8  How long a step takes, in units of one micro-batch through the whole model on one rank.

    A run that has lost a rank goes on in the layout for which this is least. Count alone: communication, embeddings and
    the time to update take nothing.

    - The busiest of the dp ranks has as many micro-batches as any.
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
# N machines keep their checkpoints in memory. Each has its own part, and others have copies of it, so that ``copies``
# machines have every part, its own machine included. Then some machines fail at the same time, every choice of them
# being equally likely. All is recovered if of each part one machine is left that has it. (GEMINI, Wang et al., 2023.)


def recoverable_in_groups(machines: int, copies: int, failures: int) -> float:
    """The probability where machines form groups of ``copies`` machines that have each other's parts.

    ``copies`` divides ``machines``; ``failures`` is at most ``machines``.
    """
    raise NotImplementedError("task 12.9")


def recoverable_in_a_ring(machines: int, failures: int) -> float:
    """The probability where each machine has a copy of the part of the machine before it: two copies, in a ring.

    There are at least 3 machines, and at least one stays.
    """
    raise NotImplementedError("task 12.9")


def copies_bytes(state_bytes: int, machines: int, copies: int) -> tuple[float, float]:
    """What a machine keeps of a run's ``state_bytes``, its own part included, and what it sends to others in a save.

    All machines have equally large parts, and keep one checkpoint at a time.
    """
    raise NotImplementedError("task 12.9")


# 12.10  Stragglers


def slow_ranks(seconds: np.ndarray, threshold: float = 1.8) -> dict[int, float]:
    """12.10  The slow ranks, and how many times as long as the others each of them takes.

    A rank's time is its median over the steps, so a few odd steps count for nothing. It is compared with the median of
    the *other* ranks' times, so that one of two ranks can be found.

    Args:
        seconds: that each rank computed in each step, (steps, ranks), above 0; not modified. Waiting does not count.
            There may be no steps, and only one rank.
        threshold: a rank is slow if it takes more than this many times as long.

    Returns:
        rank -> its factor, both of Python's types.
    """
    raise NotImplementedError("task 12.10")


def deal(speeds: Sequence[float], micro_batches: int) -> list[int]:
    """12.10  How many micro-batches each rank gets, so that the slowest of them ends as early as it can.

    Every rank gets one. Each of the others goes to the rank that would end first with one more of them; if several
    would, to the first. In this way nobody ends later than in any other deal. It changes no bit of the run: the
    micro-batch is the grain, whoever computes it.

    Args:
        speeds: micro-batches a second of each rank, above 0; not modified.
        micro_batches: to deal out, at least as many as ranks.

    Returns:
        A count for each rank, Python integers.
    """
    raise NotImplementedError("task 12.10")


# 12.11  Replicas vote
#
# Layouts share their bits, and replicas too. So two that differ say that one of them is wrong, and three say which.


def digest(array: np.ndarray) -> str:
    """12.11  The SHA-256 of an array, in hexadecimal digits: of its dtype (``array.dtype.str``), shape and bits.

    Arrays with other bits have another digest, also 0.0 and -0.0; so have those of another shape or dtype. The same
    bits have the same digest, also those of NaNs, and whether or not the array is contiguous.

    Args:
        array: numbers of any dtype and shape; not modified.
    """
    raise NotImplementedError("task 12.11")


def odd_ones_out(digests: list[str]) -> list[int] | None:
    """12.11  Who disagrees with the majority.

    Args:
        digests: of each voter; not modified. There is at least one.

    Returns:
        The places of those that have another digest than more than half of all voters, ascending; [] if all agree. None
        if no digest has more than half: then nobody can be named.
    """
    raise NotImplementedError("task 12.11")


def first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    """12.11  The place of the first element whose bits differ, in the arrays laid flat; None if there is none.

    Args:
        a, b: of the same dtype, float32 or float64, and the same shape; not modified. They may have NaNs.
    """
    raise NotImplementedError("task 12.11")
