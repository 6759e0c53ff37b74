"""Runs that fail, the same ones on every transport, and what each must say.

``mpiexec -n 3 python failing.py NAME`` runs one on MPI.
"""

import sys
import time

import numpy as np

import minidist as md


def raises(world):
    if world.rank == 1:
        raise ValueError("no such shard")
    md.barrier(world)


def both_receive(world):
    if world.rank < 2:
        md.recv(np.zeros(3), 1 - world.rank, world)


def ring_of_sends(world):
    x = np.zeros(1 << 20)  # 8 MiB: more than any transport takes before somebody receives
    md.send(x, (world.rank + 1) % world.size, world)
    md.recv(x, (world.rank - 1) % world.size, world)


def nobody_sends(world):
    if world.rank == 0:
        md.wait_any([md.irecv(np.empty(1), rank, world) for rank in (1, 2)])
    else:
        md.recv(np.empty(1), 0, world)


def one_skips(world):
    if world.rank != 1:
        md.all_reduce(np.zeros(3), group=world)


def one_skips_in_the_background(world):
    if world.rank != 1:
        md.all_reduce(np.zeros(3), group=world, async_op=True).wait()


def another_call_in_the_background(world):
    op = md.ReduceOp.MAX if world.rank == 1 else md.ReduceOp.SUM
    md.all_reduce(np.zeros(3), op, group=world, async_op=True, algorithm="direct").wait()


def overflows_in_the_background(world):
    """The caller lets NumPy raise. The collective runs on another thread, and after the caller has left that block."""
    huge = np.full(3, 1e300)
    with np.errstate(over="raise"):
        work = md.all_reduce(huge, md.ReduceOp.PRODUCT, group=world, async_op=True)
    work.wait()


def computes_forever(world):
    if world.rank == 2:
        time.sleep(600)
    md.barrier(world)


SIZE = 3
PATIENCE = 2.0  # seconds in which nothing moves
FAILURES = {  # a run -> patterns that its error has
    raises: [r"rank 1 of 3 failed: ValueError: no such shard", r'raise ValueError\("no such shard"\)'],
    both_receive: [
        r"rank 0 is in recv: waits for a message from rank 1, at failing.py:\d+ in both_receive",
        r"rank 1 is in recv: waits for a message from rank 0, at failing.py:\d+ in both_receive",
    ],
    ring_of_sends: [rf"rank {r} is in send: waits for rank {(r + 1) % 3} to take 8,388,608 bytes" for r in range(3)],
    nobody_sends: [
        r"rank 0 is in any of: irecv: waits for a message from rank 1; irecv: waits for a message from rank 2"
    ],
    one_skips: [
        r"rank 1 has (finished|ended)",
        r"rank [02] is in all_reduce\(SUM, float64 \(3,\), tree\), collective 1 of the world: waits .* in one_skips",
    ],
    one_skips_in_the_background: [
        r"rank 1 has (finished|ended)",
        r"rank [02] is in all_reduce\(SUM, float64 \(3,\), tree\), collective 1 of the world: waits",
    ],
    another_call_in_the_background: [
        r"Mismatch: ranks \d and \d disagree",
        r"all_reduce\(SUM, .*all_reduce\(MAX, |all_reduce\(MAX, .*all_reduce\(SUM, ",
        r"started asynchronously at failing.py:\d+ in another_call_in_the_background",
    ],
    overflows_in_the_background: [r"FloatingPointError: overflow"],
    computes_forever: [r"rank 2 (is|was|does)", r"rank [01] (is|was) in barrier\(\)"],
}


def on_job(name: str) -> int:
    from minidist.comm.runtime.mpi.job import Job
    from minidist.comm.runtime.new_cluster import new_cluster
    from minidist.launched import launched

    job = Job(launched())
    from minidist.comm.runtime.mpi.job_cluster import leading, serve

    if job.rank:
        return serve(job)
    with leading(job):
        new_cluster(SIZE).run(next(run for run in FAILURES if run.__name__ == name), patience=PATIENCE)
    return 0


if __name__ == "__main__":
    sys.exit(on_job(sys.argv[1]))
