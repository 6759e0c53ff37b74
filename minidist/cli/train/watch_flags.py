"""What ``minidist train`` is asked to watch while it trains: slow ranks, and numbers that are wrong."""

import argparse

from minidist.cli.flags import integer
from minidist.train.replicas.checks import WAYS


def add_watches(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("slow ranks and wrong numbers")
    group.add_argument(
        "--rebalance",
        action="store_true",
        help="give data-parallel ranks that compute slower fewer micro-batches; no bit of the run changes",
    )
    group.add_argument(
        "--check-replicas",
        type=integer,
        default=0,
        metavar="K",
        help="check the numbers every K steps, and end the run where they are wrong; 0 for never (default: 0)",
    )
    group.add_argument(
        "--check-by",
        choices=WAYS,
        default="auto",
        help="vote compares what several ranks hold; replay also computes every step again, on another rank, and so "
        "finds what is wrong in all replicas; auto replays where fewer than three ranks hold the same (default: auto)",
    )
