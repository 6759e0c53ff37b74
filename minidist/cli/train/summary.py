"""The summary of a run that ``minidist train`` prints, on one screen: a line for each rank, then what was learned.

With ``--impl``, a verdict too: does a run on a learner's functions end on the bits of the library's own run?
"""

from math import isfinite

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minidist.analysis.breakdown import NO_CORE
from minidist.analysis.traffic import ExpertLoad
from minidist.cli.output import titled
from minidist.cli.train.resilience import print_saves
from minidist.cli.train.tables import RunUtilization, staleness_line
from minidist.comm.runtime.clusters import new_cluster
from minidist.show.live.terminal import loss_bars
from minidist.train.measuring.evaluate import prompt_of
from minidist.train.result import Run, RunOptions
from minidist.train.rules import loosened_by
from minidist.train.trainer import run
from minidist.verify.comparison import first_difference

BARS = 40  # characters of the loss, between its first and its last value
NOT_COMPUTING = ("communication", "waiting")  # of a rank's time; see analysis/breakdown.py


def print_summary(console: Console, result: Run, used: RunUtilization | None) -> None:
    first = result.ranks[0]
    if result.steps_here:
        console.print(_ranks_table(result, used))
        if result.config.experts:
            console.print(_experts_table(result))
    else:
        more = ": --steps with more of them goes on" if result.config.lr_schedule == "constant" else ""
        console.print(f"no step was left to take after step {len(first.losses)}{more}")
    if first.sample is not None:
        console.print("text from the model:", style="bold")
        console.print((prompt_of(result.config) + first.sample).decode(errors="replace"), soft_wrap=True)
    if result.config.precision == "fp16":
        skipped = f"{first.skipped_steps} of {len(first.losses)} steps skipped after an overflow"
        console.print(f"loss scale: {first.loss_scale:,g} at the end, {skipped}")
    losses = first.losses
    bars = loss_bars(losses, len(losses), BARS)
    console.print(Text.assemble(f"loss: {losses[0]:.4f} at the start ", bars, f" {losses[-1]:.4f} at the end"))
    token = "byte" if result.config.tokenizer is None else "token"
    console.print(
        f"validation loss: {first.validation_loss:.4f} nats per {token}, {first.bits_per_byte:.4f} bits per byte"
    )
    if result.steps_here:
        console.print(f"speed: {result.tokens_per_second:,.0f} tokens/s" + (f", {_shares(used)}" if used else ""))
    if first.gpu:
        console.print(_gpu_line(result), soft_wrap=True)
    if line := staleness_line(result):
        console.print(line, soft_wrap=True)
    if first.noise:
        console.print(_noise_scale(result), soft_wrap=True)
    print_saves(console, result)
    console.print(f"fingerprint: {result.fingerprint}", soft_wrap=True)


def _gpu_line(result: Run) -> str:
    """Name the GPUs that the run used, and say whether its collectives went through NCCL."""
    models = ", ".join(dict.fromkeys(rank.gpu for rank in result.ranks))
    if len(result.ranks) == 1:
        return f"GPU: {models}"
    if result.ranks[0].by_nccl:
        return f"GPU: {models}, one for each rank; collectives by NCCL"
    return f"GPU: {models}; collectives through host memory where ranks share a GPU or NCCL is missing"


def _noise_scale(result: Run) -> str:
    """Describe the gradient noise scale of each half of the run, in samples: it grows while the loss falls."""
    found = [noise for _, noise in result.ranks[0].noise]
    half = len(found) // 2
    parts = [sum(part[1:], part[0]) for part in (found[:half], found[half:]) if part]
    told = " at first, then ".join(
        f"{part.samples:,.0f}" if isfinite(part.samples) else "too large to measure in so few steps" for part in parts
    )
    return f"gradient noise scale, in samples: {told}; a step has {result.config.global_batch}"


def _ranks_table(result: Run, used: RunUtilization | None) -> Table:
    """Tabulate each rank's step: what it sent, how much it held, how long it did not compute."""
    several_nodes = 0 < result.layout.node_size < result.layout.world_size
    columns = ["rank", "kB sent", *["kB between\nnodes"] * several_nodes, "messages", "peak memory, MB"]
    if used is not None:
        columns += ["sends and\nwaits, %", "has no\ncore, %", "MFU, %"]
    table = titled("each rank, in one step", right=columns, overflow="fold")
    for number, rank in enumerate(result.ranks):
        moved = rank.traffic.as_dict()
        sent = [moved["bytes_sent"], *[moved["bytes_between_nodes"]] * several_nodes]
        row = [f"{count / result.steps_here / 1e3:,.0f}" for count in sent]
        row += [f"{moved['messages_sent'] / result.steps_here:,.0f}", f"{rank.memory['peak'] / 1e6:,.2f}"]
        if used is not None:
            time = used.time[number]
            row += [f"{100 * sum(time[kind] for kind in NOT_COMPUTING):.0f}", f"{100 * time[NO_CORE]:.0f}"]
            row.append(f"{100 * used.ranks[number].mfu:.1f}")
        table.add_row(str(number), *row)
    return table


def _shares(used: RunUtilization) -> str:
    recomputed = f", HFU {used.whole.hfu:.1%}" if used.whole.hfu > used.whole.mfu else ""
    return f"MFU {used.whole.mfu:.1%}{recomputed} of the measured peak"


def _experts_table(result: Run) -> Table:
    """Tabulate how evenly the last step's tokens chose the experts of each mixture."""
    load, config = ExpertLoad.of(result.ranks[0].expert_counts), result.config
    columns = ["layer", "fewest", "mean", "most", "most / mean", "dropped"]
    columns += ["nodes of a token"] * (config.expert_nodes > 1)
    table = titled(f"choices of each of {config.experts} experts, last step", right=columns)
    tokens = config.tokens_of(range(len(result.losses) - 1, len(result.losses)))
    for row, layer in enumerate(config.model.sparse_layers):
        counts = load.tokens[-1, row]
        visits = [f"{load.visits[-1, row] / tokens:.2f}"] * (config.expert_nodes > 1)
        table.add_row(
            str(layer),
            f"{counts.min():,}",
            f"{counts.mean():,.0f}",
            f"{counts.max():,}",
            f"{load.imbalance[-1, row]:.2f}",
            f"{load.dropped[-1, row] / counts.sum():.1%}",
            *visits,
        )
    return table


def compare_with_library(
    console: Console, result: Run, rows: list[dict], ran: RunOptions, rank_function
) -> bool | None:
    """Train again on the library's functions, in the same layout, and print the verdict.

    Args:
        result: the run on the learner's functions.
        rows: which implementation of each function ran; see ``implementations_as_dict``.
        ran: options of that run. Their ``links`` choose algorithms; ``init_from`` may have the first weights.
        rank_function: runs the learner's functions. They run once more if the bits differ, to find the step.

    Returns:
        Whether the fingerprints agree; None for a run that does not repeat its bits.
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
        console.print(Text(f"verdict: the bits differ from the library's in {layout}", "bold red"), soft_wrap=True)
        if loosened_by(layout):  # its ranks differ from each other, so there is no one place
            return False
        mine = run(cluster, result.config, layout, options, rank_function=rank_function)
    difference = first_difference(library, mine, rank_function, init_from=ran.init_from)
    lines = ["agrees when it runs again from its first step"] if difference is None else difference.lines()
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)
    return False
