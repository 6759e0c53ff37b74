"""Measure how long it takes to start ranks, and to run an empty function on warm ranks.

    python benchmarks/launch.py --ranks 4

"Cold" is a whole Python program that only launches an empty function, minus one that only imports NumPy.
"""

import argparse
import statistics
import subprocess
import sys
import time

import minidist as md

COLD = "import minidist as md; md.launch(lambda world: None, {})"
PEER = "import numpy"


def seconds_of(program: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()

    pairs = [(seconds_of(COLD.format(options.ranks)), seconds_of(PEER)) for _ in range(options.rounds)]
    cold = statistics.median(whole - peer for whole, peer in pairs)
    whole = statistics.median(whole for whole, _ in pairs)
    print(
        f"a program that launches {options.ranks} ranks: {whole:.3f} s, {cold:.3f} s more than one that imports NumPy"
    )

    with md.Cluster(options.ranks) as cluster:
        times = []
        for _ in range(100):
            begin = time.perf_counter()
            cluster.run(lambda world: None)
            times.append(time.perf_counter() - begin)
        print(f"run of an empty function on {options.ranks} warm ranks: {statistics.median(times) * 1e3:.2f} ms")
        broken = []
        for _ in range(options.rounds):
            try:
                cluster.run(lambda world: 1 / world.rank)
            except md.RankFailed:
                begin = time.perf_counter()
                cluster.run(lambda world: None)
                broken.append(time.perf_counter() - begin)
        print(f"the same after a failed run, which ended all ranks: {statistics.median(broken) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
