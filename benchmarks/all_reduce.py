"""All-reduce (float32 sum, in place), compared with MPICH (mpi4py) and torch.distributed (Gloo) in one run.

    pip install -e '.[mpi,torch]'
    python benchmarks/all_reduce.py --ranks 2 4

The three take turns, round by round, so a machine that slows down slows all of them. Each figure is the median over
rounds of the median time of one all-reduce on rank 0. A peer that is not installed is skipped.
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

import minidist as md

SIZES = [1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]  # bytes


def time_calls(all_reduce, barrier, make, sizes) -> dict[int, float]:
    """Seconds per all-reduce of each size: the median over repetitions."""
    medians = {}
    for nbytes in sizes:
        buffer = make(nbytes // 4)
        repetitions = max(9, min(200, (8 << 20) // nbytes))
        times = []
        for _ in range(repetitions):
            barrier()
            begin = time.perf_counter()
            all_reduce(buffer)
            times.append(time.perf_counter() - begin)
        medians[nbytes] = statistics.median(times[repetitions // 4 :])
    return medians


def rank_minidist(world, sizes, algorithm):
    import numpy as np

    return time_calls(
        lambda x: md.all_reduce(x, group=world, algorithm=algorithm),
        lambda: md.barrier(world),
        lambda n: np.zeros(n, np.float32),
        sizes,
    )


def rank_mpi(sizes):
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    medians = time_calls(
        lambda x: world.Allreduce(MPI.IN_PLACE, x), world.Barrier, lambda n: np.zeros(n, np.float32), sizes
    )
    if world.rank == 0:
        print(json.dumps(medians))


def rank_gloo(sizes, rank, size, store):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    medians = time_calls(dist.all_reduce, dist.barrier, lambda n: torch.zeros(n), sizes)
    if rank == 0:
        print(json.dumps(medians))
    dist.destroy_process_group()


def run_mpi(ranks, sizes):
    command = ["mpiexec", "-n", str(ranks), sys.executable, __file__, "--peer", "mpi", "--sizes", *map(str, sizes)]
    return _parse(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)


def run_gloo(ranks, sizes):
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        common = [sys.executable, __file__, "--peer", "gloo", "--store", store, "--ranks", str(ranks)]
        processes = [
            subprocess.Popen(
                [*common, "--rank", str(rank), "--sizes", *map(str, sizes)], stdout=subprocess.PIPE, text=True
            )
            for rank in range(ranks)
        ]
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    return _parse(outputs[0])


def _parse(output):
    return {int(nbytes): seconds for nbytes, seconds in json.loads(output.strip().splitlines()[-1]).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--algorithm", nargs="+", default=["auto"], help="minidist's algorithms to measure")
    parser.add_argument("--no-peers", action="store_true", help="measure only minidist")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer == "mpi":
        return rank_mpi(options.sizes)
    if options.peer == "gloo":
        return rank_gloo(options.sizes, options.rank, options.ranks[0], options.store)

    from rich.console import Console
    from rich.table import Table

    for ranks in options.ranks:
        peers = {}
        if not options.no_peers:
            if shutil.which("mpiexec") and importlib.util.find_spec("mpi4py"):
                peers["MPICH"] = run_mpi
            if importlib.util.find_spec("torch"):
                peers["Gloo"] = run_gloo
        rounds: dict[str, list[dict[int, float]]] = {name: [] for name in [*options.algorithm, *peers]}
        with md.Cluster(ranks) as cluster:
            for _ in range(options.rounds):
                for algorithm in options.algorithm:
                    rounds[algorithm].append(cluster.run(rank_minidist, options.sizes, algorithm)[0])
                for name, run in peers.items():
                    rounds[name].append(run(ranks, options.sizes))
        medians = {
            name: {n: statistics.median(one[n] for one in results) for n in options.sizes}
            for name, results in rounds.items()
        }
        table = Table(title=f"all-reduce, {ranks} ranks: µs (as a multiple of minidist {options.algorithm[0]})")
        table.add_column("bytes", justify="right")
        for name in medians:
            table.add_column(name, justify="right")
        first = medians[options.algorithm[0]]
        for nbytes in options.sizes:
            table.add_row(
                f"{nbytes:,}", *(f"{m[nbytes] * 1e6:,.0f} ({m[nbytes] / first[nbytes]:.2f})" for m in medians.values())
            )
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
