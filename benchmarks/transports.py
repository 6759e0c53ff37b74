"""Latency and bandwidth of all-reduce and ping-pong: minidist on each of its transports, MPI's own calls, and Gloo.

    pip install -e '.[mpi,torch]'
    python benchmarks/transports.py --ranks 2 4
    python benchmarks/transports.py --ranks 4 --two-nodes    # what can: over TCP between two namespaces (needs root)

The engines take turns, round by round, so a machine that slows down slows all of them. A round's figure is the median
time of one call on rank 0 (float32, all-reduces in place); the table shows medians over rounds. The ratio in
parentheses is the time relative to the first column's in the same round. In a ping-pong rank r and rank r + n/2
send each other a message, and half of the round trip counts. Bandwidth is nccl-tests' busbw: bytes / time for a
message, times 2(n-1)/n for an all-reduce (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
"""

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import minidist as md

SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20]  # bytes
BANDWIDTH_FROM = 1 << 20  # bytes: a table shows GB/s from here on, and µs below
ENGINES = SHARED_MEMORY, ON_MPI, MPI_ITSELF, GLOO = "shared memory", "minidist on MPI", "MPI's own", "Gloo"
LIMIT = 600  # seconds for one engine's turn
TWO_NODES = str(Path(__file__).parent / "two_nodes.sh")

Seconds = dict[str, dict[int, float]]  # operation -> bytes -> seconds of one call


class Calls(NamedTuple):
    """Calls that are measured, as one engine spells them."""

    rank: int
    size: int
    zeros: Callable[[int], Any]  # a float32 buffer of this many elements
    barrier: Callable[[], Any]
    all_reduce: Callable[[Any], Any]  # buffer, in place
    send: Callable[[Any, int], Any]  # buffer, to
    recv: Callable[[Any, int], Any]  # buffer, from


def measure(calls: Calls, sizes: list[int]) -> Seconds:
    half = calls.size // 2

    def ping_pong(buffer):
        if calls.rank < half:
            calls.send(buffer, calls.rank + half)
            calls.recv(buffer, calls.rank + half)
        elif calls.rank < 2 * half:
            calls.recv(buffer, calls.rank - half)
            calls.send(buffer, calls.rank - half)

    return {
        "all-reduce": {n: median_time(calls, calls.all_reduce, n) for n in sizes},
        "ping-pong": {n: median_time(calls, ping_pong, n) / 2 for n in sizes},
    }


def median_time(calls: Calls, operation: Callable[[Any], Any], nbytes: int) -> float:
    """Return the seconds of an operation on a buffer: the median over repetitions but the first quarter, a warm-up."""
    buffer = calls.zeros(nbytes // 4)
    repetitions = max(9, min(200, (8 << 20) // nbytes))
    times = []
    for _ in range(repetitions):
        calls.barrier()
        begin = time.perf_counter()
        operation(buffer)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[repetitions // 4 :])


# ── Four engines ─────────────────────────────────────────────────────────────────────────────────────────────────────


def minidist_calls(world: md.ProcessGroup, algorithm: str) -> Calls:
    return Calls(
        rank=world.rank,
        size=world.size,
        zeros=lambda n: np.zeros(n, np.float32),
        barrier=lambda: md.barrier(world),
        all_reduce=lambda x: md.all_reduce(x, group=world, algorithm=algorithm),
        send=lambda x, dst: md.send(x, dst=dst, group=world),
        recv=lambda x, src: md.recv(x, src=src, group=world),
    )


def mpi_calls() -> Calls:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return Calls(
        rank=world.rank,
        size=world.size,
        zeros=lambda n: np.zeros(n, np.float32),
        barrier=world.Barrier,
        all_reduce=lambda x: world.Allreduce(MPI.IN_PLACE, x),
        send=lambda x, dst: world.Send(x, dest=dst),
        recv=lambda x, src: world.Recv(x, source=src),
    )


def gloo_calls(rank: int, size: int, store: str) -> Calls:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    return Calls(
        rank=rank,
        size=size,
        zeros=lambda n: torch.zeros(n),
        barrier=dist.barrier,
        all_reduce=dist.all_reduce,
        send=lambda x, dst: dist.send(x, dst),
        recv=lambda x, src: dist.recv(x, src),
    )


def measure_on_a_rank(world: md.ProcessGroup, algorithm: str, sizes: list[int]) -> Seconds:
    return measure(minidist_calls(world, algorithm), sizes)


def main_of_a_rank(options) -> None:
    """Measure in a process that ``mpiexec`` or ``run_gloo`` has started; rank 0 prints."""
    if options.engine == ON_MPI:
        calls = minidist_calls(md.init(), options.algorithm)
    elif options.engine == MPI_ITSELF:
        calls = mpi_calls()
    else:
        calls = gloo_calls(options.rank, options.ranks[0], options.store)
    seconds = measure(calls, options.sizes)
    if calls.rank == 0:
        print(json.dumps(seconds))


# ── Turns ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_mpi(engine: str, ranks: int, options) -> Seconds:
    start = [TWO_NODES, str(ranks // 2)] if options.two_nodes else ["mpiexec", "-n", str(ranks)]
    done = subprocess.run([*start, *rank_command(engine, ranks, options)], stdout=subprocess.PIPE, timeout=LIMIT)
    done.check_returncode()
    return parse(done.stdout)


def run_gloo(ranks: int, options) -> Seconds:
    with tempfile.TemporaryDirectory() as folder:
        command = [*rank_command(GLOO, ranks, options), "--store", os.path.join(folder, "store"), "--rank"]
        processes = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE) for rank in range(ranks)]
        outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
    return parse(outputs[0])


def rank_command(engine: str, ranks: int, options) -> list[str]:
    sizes = map(str, options.sizes)
    command = [sys.executable, __file__, "--engine", engine, "--ranks", str(ranks), "--sizes", *sizes]
    return [*command, "--algorithm", options.algorithm]


def parse(output: bytes) -> Seconds:
    """Parse the last line that rank 0 printed (JSON's keys are strings)."""
    seconds = json.loads(output.decode().strip().splitlines()[-1])
    return {operation: {int(n): s for n, s in times.items()} for operation, times in seconds.items()}


def available(options) -> list[str]:
    """Return the engines that can run here; print which cannot and why."""
    missing = {}
    if not (shutil.which("mpiexec") and importlib.util.find_spec("mpi4py")):
        missing |= dict.fromkeys([ON_MPI, MPI_ITSELF], "mpiexec or mpi4py is missing: pip install -e '.[mpi]'")
    if not importlib.util.find_spec("torch"):
        missing[GLOO] = "PyTorch is missing: pip install -e '.[torch]'"
    if options.two_nodes:
        missing |= dict.fromkeys([SHARED_MEMORY, GLOO], "not on two nodes here")
    for engine, reason in missing.items():
        print(f"{engine}: left out ({reason})")
    return [engine for engine in ENGINES if engine not in missing]


def measure_rounds(engines: list[str], ranks: int, options) -> dict[str, list[Seconds]]:
    rounds: dict[str, list[Seconds]] = {engine: [] for engine in engines}
    with md.Cluster(ranks) as cluster:
        turns = {
            SHARED_MEMORY: lambda: cluster.run(measure_on_a_rank, options.algorithm, options.sizes)[0],
            ON_MPI: lambda: run_mpi(ON_MPI, ranks, options),
            MPI_ITSELF: lambda: run_mpi(MPI_ITSELF, ranks, options),
            GLOO: lambda: run_gloo(ranks, options),
        }
        for _ in range(options.rounds):
            for engine in engines:
                rounds[engine].append(turns[engine]())
    return rounds


def table(rounds: dict[str, list[Seconds]], operation: str, ranks: int, sizes: list[int]) -> Table:
    first = next(iter(rounds))
    result = Table(title=f"{operation}, {ranks} ranks", caption=f"(time / time of {first})")
    for heading in ("bytes", "", *rounds):
        result.add_column(heading, justify="right")
    traffic = 2 * (ranks - 1) / ranks if operation == "all-reduce" else 1.0  # busbw / algbw
    for nbytes in sizes:
        cells = []
        for engine in rounds:
            times = [one[operation][nbytes] for one in rounds[engine]]
            ratio = statistics.median(t / one[operation][nbytes] for t, one in zip(times, rounds[first], strict=True))
            seconds = statistics.median(times)
            value = seconds * 1e6 if nbytes < BANDWIDTH_FROM else traffic * nbytes / seconds / 1e9
            cells.append(f"{value:,.1f} ({ratio:.2f})")
        result.add_row(f"{nbytes:,}", "µs" if nbytes < BANDWIDTH_FROM else "GB/s", *cells)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of ranks to measure")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes, multiples of 4")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine")
    parser.add_argument("--algorithm", default="auto", help="minidist's algorithm of the all-reduce")
    parser.add_argument("--two-nodes", action="store_true", help="half of the ranks on each of two nodes")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        return main_of_a_rank(options)
    engines = available(options)
    for ranks in options.ranks:
        rounds = measure_rounds(engines, ranks, options)
        for operation in ("all-reduce", "ping-pong"):
            Console(width=120).print(table(rounds, operation, ranks, options.sizes))


if __name__ == "__main__":
    main()
