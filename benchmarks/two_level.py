"""All-reduce algorithms on nodes of eight H100s: the cluster's clock, for 8 to 64 ranks and three sizes.

    python benchmarks/two_level.py
    python benchmarks/two_level.py --cluster h100,oversubscription=4 --ranks 16 64

Real ranks run every algorithm once, and the clock replays their messages on the cluster. Times are in microseconds.
"auto" is the algorithm that the cost model (comm/cost.py) chooses for the same links.
"""

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

import minidist as md
from minidist import trace
from minidist.analysis.replay import as_if
from minidist.comm.cost import cheapest, seconds
from minidist.comm.placement import place_on_nodes
from minidist.plan.cluster.hardware import ClusterSpec

ALGORITHMS = ("tree", "ring", "halving_doubling", "double_tree", "hierarchical")
SIZES = (64 << 10, 1 << 20, 16 << 20)  # bytes
NODE = 8


def reduce(world, nbytes: int, algorithm: str) -> list:
    place_on_nodes(world, NODE)
    array = np.zeros(nbytes // 4, np.float32)
    trace.start()
    md.all_reduce(array, group=world, algorithm=algorithm)
    return trace.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="h100", metavar="KIND,OPTION=VALUE")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32, 64])
    options = parser.parse_args()
    kind, comma, rest = options.cluster.partition(",")
    console = Console(width=120)
    table = Table(
        title=f"all-reduce on {options.cluster}, nodes of {NODE}: clock (cost model), µs", title_justify="left"
    )
    for column in ("ranks", "KiB", *ALGORITHMS, "auto"):
        table.add_column(column, justify="right")
    for ranks in options.ranks:
        spec = ClusterSpec.parse(f"{kind}:{ranks // NODE}x{NODE}{comma}{rest}")
        nodes = tuple(rank // NODE for rank in range(ranks))
        with md.Cluster(ranks) as cluster:
            for nbytes in SIZES:
                cells = []
                for algorithm in ALGORITHMS:
                    clock = as_if(cluster.run(reduce, nbytes, algorithm), spec).seconds
                    model = seconds("all_reduce", algorithm, nbytes, nodes, spec.links)
                    cells.append(f"{clock * 1e6:,.0f} ({model * 1e6:,.0f})")
                table.add_row(
                    str(ranks), f"{nbytes >> 10:,}", *cells, cheapest("all_reduce", nbytes, nodes, spec.links)
                )
    console.print(table)


if __name__ == "__main__":
    main()
