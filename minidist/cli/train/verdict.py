"""``minidist train --impl``: does the run on a learner's functions end on the bits of the library's own run?"""

from rich.console import Console
from rich.text import Text

from minidist.comm.runtime.clusters import new_cluster
from minidist.train.result import Run, RunOptions
from minidist.train.rules import loosened_by
from minidist.train.trainer import run
from minidist.verify.comparison import first_difference


def compare_with_library(
    console: Console, result: Run, rows: list[dict], ran: RunOptions, rank_function
) -> bool | None:
    """Train again on the library's functions, in the same layout, and print the verdict.

    Args:
        result: the run on the learner's functions.
        rows: which implementation of each function ran; see ``implementations_as_dict``.
        ran: the run's options, of which the links choose algorithms, and a folder may have the first weights.
        rank_function: runs the learner's functions. They run once more where the bits differ, to find the step.

    Returns:
        Whether the fingerprints agree; None for a run that does not repeat itself.
    """
    layout, options = result.layout, RunOptions(step_digests=True, links=ran.links, init_from=ran.init_from)
    called = [row["implementation"] == "yours" for row in rows if row["calls"]]
    console.print(f"{sum(called)} of the {len(called)} functions that this run called are yours")
    if layout.slack and layout.arrivals == "live":
        console.print("verdict: none, because a run with --arrivals live does not repeat its bits")
        return None
    with console.status("the library's own run, to compare"), new_cluster(layout.world_size) as cluster:
        library = run(cluster, result.config, layout, options)
        if [rank.fingerprint for rank in library.ranks] == [rank.fingerprint for rank in result.ranks]:
            console.print(Text(f"verdict: same bits as the library in {layout}", "green"), soft_wrap=True)
            return True
        console.print(Text(f"verdict: other bits than the library in {layout}", "bold red"), soft_wrap=True)
        if loosened_by(layout):  # its ranks differ from each other, so there is no one place
            return False
        mine = run(cluster, result.config, layout, options, rank_function=rank_function)
    difference = first_difference(library, mine, rank_function, init_from=ran.init_from)
    lines = ["agrees when it runs again from its first step"] if difference is None else difference.lines()
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)
    return False
