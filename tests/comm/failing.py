"""Runs of three ranks that fail, the same ones on every transport, and what each error must say."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import minidist as md
from minidist.comm.transports.transport import BLOCKED

SIZE = 3
PATIENCE = 2.0  # seconds in which nothing moves
ON_MPI = []  # the runs that fail in the same way in an MPI job, each of which it ends


class Failure(NamedTuple):
    """A run that fails: the kind of its error, patterns that the message has somewhere, and attributes of the error."""

    run: Callable
    kind: str
    says: tuple[str, ...]
    about: dict


FAILURES: dict[str, Failure] = {}


def fails(kind: str, *says: str, mpi: bool = False, **about) -> Callable:
    def decorate(run: Callable) -> Callable:
        FAILURES[run.__name__] = Failure(run, kind, says, about)
        ON_MPI.extend([run.__name__] * mpi)
        return run

    return decorate


def call(operation: str = "SUM") -> str:
    return rf"all_reduce\({operation}, float64 \(3,\), (tree|ring|direct)\), collective 1 of the world"


# An error of one rank


@fails("RankFailed", "rank 1 of 3 failed: ValueError: no such shard", r'raise ValueError\("no such shard"\)')
def raises(world):
    if world.rank == 1:
        raise ValueError("no such shard")
    md.barrier(world)


@fails("RankFailed", *(rf"rank {r} was in barrier\(\)" for r in (0, 2)), "^rank 1 of 3 failed",
       "ranks 0, 2 were ended because of it:", rank=1, exitcode=None, ranks=(1,))  # fmt: skip
def raises_while_others_wait(world):
    if world.rank == 1:
        while any(world.transport.segment.status[rank].read().state != BLOCKED for rank in (0, 2)):
            time.sleep(0.01)
    raises(world)


@fails("RankFailed", "rank 2 was computing", rank=0)
def raises_while_others_compute(world):
    if world.rank == 0:
        raise KeyError("missing")
    time.sleep(600)


class NoWords(Exception):
    def __str__(self):
        raise OSError("no words")

    @classmethod
    def throw(cls):
        raise cls


class Unreadable:
    def __reduce__(self):
        return (open, ("no/such/file",))


def rank_1(does: Callable) -> Callable:
    """Rank 1 does something, and the others wait for it."""

    def run(world):
        result = does() if world.rank == 1 else None
        md.barrier(world)
        return result

    return run


for name, does, says, exitcode in (
    ("is_killed", lambda: os.kill(os.getpid(), signal.SIGKILL),
     r"was killed by SIGKILL \(likely: kill -9, or the system ran out of memory", -9),
    ("exits_at_once", lambda: os._exit(3), "exited with status 3 during the run", 3),
    ("exits", lambda: sys.exit("enough"), "rank 1 of 3 failed: SystemExit: enough", None),
    ("runs_out_of_memory", lambda: bytearray(1 << 62), "rank 1 of 3 failed: MemoryError: out of memory", None),
    ("raises_without_words", NoWords.throw, "rank 1 of 3 failed: NoWords", None),
    ("returns_what_cannot_travel", lambda: (i for i in range(3)),
     "rank 1 of 3 failed: TypeError: the result cannot be sent to another process: ", None),
    ("returns_what_cannot_be_read", Unreadable, "its result cannot be unpickled here: FileNotFoundError", None),
):  # fmt: skip
    FAILURES[name] = Failure(rank_1(does), "RankFailed", (says,), {"rank": 1, "exitcode": exitcode})


# A deadlock


@fails("Deadlock", *(rf"rank {r} is in recv: waits for a message from rank {1 - r}, at failing.py:" for r in (0, 1)),
       mpi=True)  # fmt: skip
def both_receive(world):
    if world.rank < 2:
        md.recv(np.zeros(3), 1 - world.rank, world)


@fails("Deadlock", "batch_isend_irecv", r"^ranks 0, 1 of 3", "rank 2 was still running")
def both_receive_while_another_computes(world):
    if world.rank == 2:
        time.sleep(600)
    md.recv(np.zeros(3), 1 - world.rank, world)


@fails("Deadlock", *(rf"rank {r} is in send: waits for rank {(r + 1) % 3} to take 8,388,608 bytes" for r in range(3)),
       mpi=True)  # fmt: skip
def ring_of_sends(world):
    x = np.zeros(1 << 20)  # 8 MiB: more than any transport takes before somebody receives
    md.send(x, (world.rank + 1) % world.size, world)
    md.recv(x, (world.rank - 1) % world.size, world)


@fails("Deadlock", "rank 0 is in any of: " + "; ".join(f"irecv: waits for a message from rank {r}" for r in (1, 2)),
       mpi=True)  # fmt: skip
def nobody_sends(world):
    if world.rank == 0:
        md.wait_any([md.irecv(np.empty(1), rank, world) for rank in (1, 2)])
    else:
        md.recv(np.empty(1), 0, world)


@fails("Deadlock", r"rank 1 has (finished|ended)", rf"rank [02] is in {call()}: waits",
       r"started asynchronously at failing.py:\d+ in one_skips_in_the_background", mpi=True)  # fmt: skip
def one_skips_in_the_background(world):
    if world.rank != 1:
        md.all_reduce(np.zeros(3), group=world, async_op=True).wait()


@fails("Deadlock", r"rank 0 is in reduce\(dst=0, SUM", r"rank [12] is in broadcast\(src=0[^\n]* at failing",
       "must make the same collective calls in the same order")  # fmt: skip
def two_collectives_that_both_wait(world):
    """Both wait before either sends, so that no message could show the disagreement."""
    if world.rank == 0:
        md.reduce(np.zeros(3), 0, group=world)
    else:
        md.broadcast(np.zeros(3), 0, group=world)


@fails("Deadlock", "rank 0 is in recv")
def receives_after_a_collective_in_the_background(world):
    md.all_reduce(np.zeros(3), group=world, async_op=True).wait()
    md.recv(np.zeros(3), (world.rank + 1) % 3, world)


@fails("Deadlock", "rank 0 is in recv", "rank 2 is in recv")
def receives_while_no_rank_yields(world):
    world.transport.core._crowded_until = time.perf_counter_ns() + 10**11
    md.recv(np.zeros(1), (world.rank + 1) % world.size, world)


# Ranks that disagree, and errors in the background

MISMATCH = r"Mismatch: ranks \d and \d disagree"


@fails("RankFailed", MISMATCH, rf"{call()}.*{call('MAX')}|{call('MAX')}.*{call()}",
       r"started asynchronously at failing.py:\d+ in another_call_in_the_background", mpi=True)  # fmt: skip
def another_call_in_the_background(world):
    op = md.ReduceOp.MAX if world.rank == 1 else md.ReduceOp.SUM
    md.all_reduce(np.zeros(3), op, group=world, async_op=True, algorithm="direct").wait()


@fails("RankFailed", MISMATCH, "started asynchronously at failing.py")
def nobody_waits_for_what_fails(world):
    for elements in (3 + world.rank, 2):
        md.broadcast(np.zeros(elements), 0, world, async_op=True, algorithm="naive")


@fails("RankFailed", MISMATCH)
def a_mismatch_that_would_block_a_message(world):
    work = md.all_reduce(np.zeros(4 + world.rank // 2), group=world, async_op=True)
    if world.rank == 0:
        md.recv(np.zeros(1), 1, world)
    work.wait()


@fails("RankFailed", "Mismatch: ranks 1 and 0 disagree")
def a_mismatch_that_nobody_waits_for(world):
    if world.rank == 0:
        md.send(np.zeros(5), 1, world)
    elif world.rank == 1:
        md.irecv(np.zeros(3), 0, world)
    md.barrier(world)


@fails("RankFailed", "FloatingPointError: overflow", r"md\.send\(huge", mpi=True)
def overflows_in_the_background(world):
    """The caller lets NumPy raise. The collective runs on another thread, and after the caller has left that block.
    Its error is that of the next call, whatever that is."""
    huge = np.full(3, 1e300)
    with np.errstate(over="raise"):
        work = md.all_reduce(huge, md.ReduceOp.PRODUCT, group=world, async_op=True, algorithm="direct")
    while not work.is_completed():
        time.sleep(0.001)
    md.send(huge, (world.rank + 1) % world.size, world)


@fails("RankFailed", r"^rank 1 of 3 failed: MemoryError: out of memory\n\n.*started asynchronously at failing.py")
def runs_out_of_memory_in_the_background(world):
    world.run_in_background("a program", lambda: bytearray(world.rank % 2 << 62)).wait()
    md.barrier(world)


# No end


@fails("Hang", "rank 2 (hangs: it waits for no other|does not answer)", r"rank [01] (is|was) in barrier\(\)", mpi=True)
def computes_forever(world):
    if world.rank == 2:
        time.sleep(600)
    md.barrier(world)
