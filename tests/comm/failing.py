"""Runs of three ranks that fail, the same ones on every transport, and what each error must say."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import minidist as md
from minidist.comm.transports.status import BLOCKED

SIZE = 3
PATIENCE = 2.0  # seconds in which nothing moves
ON_MPI = []  # the runs that fail in the same way in an MPI job, each of which it ends


@dataclass(frozen=True)
class Failure:
    """How a run fails.

    Attributes:
        kind: the error's.
        says: patterns that it has, each somewhere.
        about: attributes of the error.
        without: what it does not have.
    """

    run: Callable
    kind: str
    says: tuple[str, ...]
    about: dict
    without: tuple[str, ...]


FAILURES: dict[str, Failure] = {}


def fails(kind: str, *says: str, mpi: bool = False, without: tuple[str, ...] = (), **about) -> Callable:
    def decorate(run: Callable) -> Callable:
        FAILURES[run.__name__] = Failure(run, kind, says, about, without)
        ON_MPI.extend([run.__name__] * mpi)
        return run

    return decorate


def call(number: int, operation: str = "SUM") -> str:
    return rf"all_reduce\({operation}, float64 \({number},\), (tree|ring|direct)\), collective 1 of the world"


MISMATCH = r"Mismatch: ranks \d and \d disagree"


# An error of one rank


@fails("RankFailed", "rank 1 of 3 failed: ValueError: no such shard", r'raise ValueError\("no such shard"\)', mpi=True)
def raises(world):
    if world.rank == 1:
        raise ValueError("no such shard")
    md.barrier(world)


@fails(
    "RankFailed", r"rank 0 was in barrier\(\)", r"rank 2 was in barrier\(\)", r"^rank 1 of 3 failed: ValueError: no",
    rank=1, exitcode=None, ranks=(1,), without=("worker.py", "Traceback.*Traceback"),
)  # fmt: skip
def raises_while_others_wait(world):
    if world.rank == 1:
        while any(world.transport.segment.status[rank].read().state != BLOCKED for rank in (0, 2)):
            time.sleep(0.01)
        raise ValueError("no such shard")
    md.barrier(world)


@fails("RankFailed", "rank 2 was computing", rank=0)
def raises_while_others_compute(world):
    if world.rank == 0:
        raise KeyError("missing")
    time.sleep(600)


def rank_1(does: Callable) -> Callable:
    def run(world):
        if world.rank == 1:
            does()
        md.barrier(world)

    return run


for name, does, says, exitcode in (
    ("is_killed", lambda: os.kill(os.getpid(), signal.SIGKILL),
     r"was killed by SIGKILL \(likely: kill -9, or the system ran out of memory", -9),
    ("crashes", lambda: os.kill(os.getpid(), signal.SIGSEGV), "rank 1 of 3 was killed by SIGSEGV", -11),
    ("exits_at_once", lambda: os._exit(3), "exited with status 3 during the run", 3),
    ("exits", lambda: sys.exit("enough"), "rank 1 of 3 failed: SystemExit: enough", None),
    ("runs_out_of_memory", lambda: bytearray(1 << 62), "rank 1 of 3 failed: MemoryError: out of memory", None),
):  # fmt: skip
    FAILURES[name] = Failure(rank_1(does), "RankFailed", (says,), {"rank": 1, "exitcode": exitcode}, ())


class NoWords(Exception):
    def __str__(self):
        raise OSError("no words")


@fails("RankFailed", "failed: NoWords", "raise NoWords")
def raises_without_words(world):
    raise NoWords


@fails("RankFailed", "rank . of 3 failed: TypeError")
def returns_what_cannot_travel(world):
    return (i for i in range(3))


@fails("RankFailed", "its result cannot be unpickled here: FileNotFoundError")
def returns_what_cannot_be_read(world):
    class Fails:
        def __reduce__(self):
            return (open, ("no/such/file",))

    return Fails()


# A deadlock


@fails(
    "Deadlock", *(rf"rank {r} is in recv: waits for a message from rank {1 - r}, at failing.py:\d+ in both_receive"
    for r in (0, 1)), mpi=True,
)  # fmt: skip
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


@fails("Deadlock", "the messages do not fit the queues")
def ring_of_sends_larger_than_the_queues(world):
    md.send(np.ones(1), (world.rank + 1) % world.size, world)  # fits
    md.recv(np.ones(1), (world.rank - 1) % world.size, world)
    ring_of_sends(world)


@fails("Deadlock", "rank 0 is in any of: " + "; ".join(f"irecv: waits for a message from rank {r}" for r in (1, 2)),
       mpi=True)  # fmt: skip
def nobody_sends(world):
    if world.rank == 0:
        md.wait_any([md.irecv(np.empty(1), rank, world) for rank in (1, 2)])
    else:
        md.recv(np.empty(1), 0, world)


@fails("Deadlock", r"rank 1 has (finished|ended)", rf"rank [02] is in {call(3)}: waits .* in one_skips")
def one_skips(world):
    if world.rank != 1:
        md.all_reduce(np.zeros(3), group=world)


@fails("Deadlock", r"rank 1 has (finished|ended)", rf"rank [02] is in {call(3)}: waits", mpi=True)
def one_skips_in_the_background(world):
    if world.rank != 1:
        md.all_reduce(np.zeros(3), group=world, async_op=True).wait()


@fails("Deadlock", r"started asynchronously at failing.py:\d+ in one_joins_in_the_background")
def one_joins_in_the_background(world):
    if world.rank:
        md.all_reduce(np.zeros(3), group=world, async_op=True).wait()


@fails("Deadlock", "rank 0 is in recv", "rank [12] is in all_reduce")
def a_receive_before_a_collective(world):
    if world.rank == 0:
        md.recv(np.zeros(3), 1, world)
    md.all_reduce(np.zeros(3), group=world, algorithm="ring")


@fails("Deadlock", r"rank 0 is in reduce\(dst=0, SUM", r"rank [12] is in broadcast\(src=0",
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


@fails("Deadlock", "rank 0")
def waits_for_a_program_that_cannot_go_on(world):
    inside = world.new_group([0, 1, 2])
    if world.rank == 0:
        world.start("a lonely program", lambda: md.all_reduce(np.zeros(3), group=inside)).wait()
    else:
        md.recv(np.zeros(3), 0, world)


@fails("Deadlock", "rank 0 is in recv", "rank 2 is in recv")
def receives_while_no_rank_yields(world):
    world.transport.core._crowded_until = time.perf_counter_ns() + 10**11
    md.recv(np.zeros(1), (world.rank + 1) % world.size, world)


# Ranks that disagree, and errors in the background


@fails("RankFailed", MISMATCH, "float64 .3,", "float64 .4,", without=("algorithms.py",))
def two_sizes(world):
    md.all_reduce(np.zeros(3 + (world.rank > 0)), group=world, algorithm="ring")


@fails("RankFailed", MISMATCH, rf"{call(3)}.*{call(3, 'MAX')}|{call(3, 'MAX')}.*{call(3)}",
       r"started asynchronously at failing.py:\d+ in another_call_in_the_background", mpi=True)  # fmt: skip
def another_call_in_the_background(world):
    op = md.ReduceOp.MAX if world.rank == 1 else md.ReduceOp.SUM
    md.all_reduce(np.zeros(3), op, group=world, async_op=True, algorithm="direct").wait()


@fails("RankFailed", MISMATCH, "started asynchronously at failing.py")
def nobody_waits_for_what_fails(world):
    md.broadcast(np.zeros(3 + world.rank), 0, world, async_op=True, algorithm="naive")
    md.broadcast(np.zeros(2), 0, world, async_op=True, algorithm="naive")


@fails("RankFailed", MISMATCH, "started asynchronously at failing.py")
def a_later_call_is_waited_for(world):
    md.broadcast(np.zeros(3 + world.rank), 0, world, async_op=True, algorithm="naive")
    md.broadcast(np.zeros(2), 0, world, async_op=True, algorithm="naive").wait()


@fails("RankFailed", MISMATCH)
def a_mismatch_that_would_block_a_collective(world):
    """Rank 2's count differs. The others go on to a call in which they would wait forever."""
    work = md.all_reduce(np.zeros(4 + world.rank // 2), group=world, async_op=True)
    time.sleep(0.1)  # for the background to find it first, as a rule
    md.all_reduce(np.zeros(2), group=world)
    work.wait()


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


@fails("RankFailed", "ArithmeticError: the third message is wrong")
def a_program_raises(world):
    def program():
        raise ArithmeticError("the third message is wrong")

    world.start("a program that fails", program).wait()


@fails("RankFailed", "FloatingPointError: overflow", mpi=True)
def overflows_in_the_background(world):
    """The caller lets NumPy raise. The collective runs on another thread, and after the caller has left that block."""
    huge = np.full(3, 1e300)
    with np.errstate(over="raise"):
        work = md.all_reduce(huge, md.ReduceOp.PRODUCT, group=world, async_op=True)
    work.wait()


# No end


@fails("Hang", r"rank 2 (is|was|does)", r"rank [01] (is|was) in barrier\(\)", mpi=True)
def computes_forever(world):
    if world.rank == 2:
        time.sleep(600)
    md.barrier(world)
