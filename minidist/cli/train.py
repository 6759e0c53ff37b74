"""``minidist train``: trains once, in one layout, and shows the results."""

import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from minidist.analysis.stragglers import StragglerWatch, same_work
from minidist.cli.checkpoint_flags import add_checkpoints, faults_of, print_saves, resumed, saving_of
from minidist.cli.expert_table import expert_table
from minidist.cli.flags import add_config, add_layout, config_of, defaults, integer, layout_of
from minidist.cli.output import Output, check_outputs, console_of, json_output, write_outputs
from minidist.comm import Cluster
from minidist.course.learner.implementations import (
    implementations_as_dict,
    implementations_of,
    overriding,
    print_implementations,
    training_on,
)
from minidist.flops import PHASES
from minidist.ledger import KINDS
from minidist.plan.memory_check import check_memory
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.rebalance import check_rebalance
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser("train", help="train in one layout", description="Train in one layout.")
    command.set_defaults(command=_train)
    add_layout(command, **defaults(Layout))
    add_checkpoints(command)
    command.add_argument_group("slow ranks").add_argument(
        "--rebalance",
        action="store_true",
        help="give data-parallel ranks that compute slower fewer micro-batches; no bit of the run changes",
    )
    output = command.add_argument_group("output")
    output.add_argument(
        "--sample",
        type=integer,
        default=0,
        metavar="N",
        help="print N bytes that the trained model writes after 'The '",
    )
    output.add_argument("--json", metavar="PATH", help="write the results to this file; - for standard output")
    output.add_argument(
        "--trace", metavar="PATH", help="write a trace of the last steps to this file, for https://ui.perfetto.dev"
    )
    output.add_argument("--png", metavar="PATH", help="draw the last steps to this file")
    add_config(command, **defaults(TrainConfig))


def _train(options) -> int:
    checkpoint = resumed(options.resume)
    config = config_of(options, checkpoint and checkpoint.config)
    layout = layout_of(options) or (checkpoint.layout if checkpoint else Layout())
    config.check(layout)
    check_memory(config, layout)
    if options.rebalance:
        check_rebalance(layout)
    if options.sample < 0:
        raise ValueError(f"--sample must not be negative, got {options.sample}")
    check_outputs({flag: getattr(options, flag) for flag in ("json", "trace", "png")}, options.text)
    implementations = implementations_of(options.impl) if options.impl else []
    console = console_of(options)
    if checkpoint is not None:
        with overriding(implementations):  # files are checked here, before any rank starts
            checkpoint.check(config)
        for line in checkpoint.notes(layout):
            console.print(line, soft_wrap=True)
    run_options = RunOptions(
        progress=True,
        saving=saving_of(options, config),
        resume=checkpoint and str(checkpoint.folder),
        faults=faults_of(options, config, layout),
        rebalance=options.rebalance,
        validate=True,
        sample=options.sample,
        trace=options.trace is not None or options.png is not None,
    )
    with _progress(Console(stderr=True)) as progress, Cluster(layout.world_size) as cluster:
        first = checkpoint.manifest.progress.step if checkpoint else 0
        task = progress.add_task(str(layout), total=config.steps, completed=first, loss="", speed="")

        first_end = 0.0

        def on_step(step: int, loss: float) -> None:
            nonlocal first_end
            first_end = first_end or time.perf_counter()
            speed = config.tokens_per_step * (step - first) / (time.perf_counter() - first_end + 1e-9)
            text = f"{speed:,.0f} tokens/s" if step > first else ""
            progress.update(task, completed=step + 1, loss=f"loss {loss:.4f}", speed=text)

        watch = watch_of(layout)

        def on_event(rank: int, event: tuple) -> None:
            if event[0] == "saved" and event[2]:
                progress.console.print(f"no checkpoint {event[1]}: {event[2]}; training goes on", soft_wrap=True)
            elif event[0] == "pace":
                for straggler in watch.add(rank, *event[1:]):
                    progress.console.print(str(straggler), highlight=False)

        rank_function = training_on(implementations) if implementations else None
        with overriding(implementations):  # here too, where stragglers are found
            result = run(cluster, config, layout, run_options, on_step, rank_function, on_event)
    logs = [rank.log for rank in result.ranks]
    files = (
        json_output(
            options.json,
            result.as_dict()
            | {"stragglers": [asdict(straggler) for straggler in watch.found]}
            | implementations_as_dict(implementations, [result]),
        ),
        Output(
            "trace",
            options.trace,
            lambda path: _write_trace(path, logs),
            f"trace of the last steps: {options.trace} (open it at https://ui.perfetto.dev)",
        ),
        Output("png", options.png, lambda path: _draw(path, logs, layout), f"picture of the last steps: {options.png}"),
    )
    try:
        _print_run(console, result)
        for straggler in watch.found:
            console.print(str(straggler))
        if options.rebalance:
            counts = [rank.micro_batch_counts[-1] for rank in result.ranks[:: layout.cp * layout.tp]]
            console.print(f"micro-batches of each data-parallel rank in the last step: {', '.join(map(str, counts))}")
        if implementations:
            print_implementations(console, implementations, [result])
    finally:  # also if nobody reads the results to their end, as in `minidist train | head`
        write_outputs(console, *files)
    return 2 if result.ranks[0].save_errors else 0


def watch_of(layout: Layout) -> StragglerWatch:
    """What finds the stragglers of a run in this layout."""
    shape = (layout.pp, layout.dp, layout.cp, layout.tp)
    return StragglerWatch(same_work(shape, by_chunk=layout.cp_kind == "ring", experts=layout.ep))


def _write_trace(path: Path, logs: list[list]) -> None:
    from minidist.show import perfetto

    perfetto.write(path, logs)


def _draw(path: Path, logs: list[list], layout: Layout) -> None:
    """Draw what each rank did: the first pipeline as a grid of micro-batches, other layouts as lanes of spans."""
    from minidist.analysis.bubbles import slots_of
    from minidist.show import pipelines, timeline

    if layout.pp > 1:
        one = logs[:: layout.replicas * layout.tp]  # the ranks of the first pipeline
        pipelines.draw({str(layout): slots_of(one)}, "seconds").savefig(path, dpi=110)
    else:
        timeline.save(path, logs, f"the last steps of minidist train, {layout}")


@contextmanager
def _progress(console: Console):
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield progress


def _print_run(console: Console, result: Run) -> None:
    first = result.ranks[0]
    if result.layout.world_size > 1:
        table = Table(title="traffic per rank, payload only", title_justify="left")
        for column in ("rank", "bytes sent", "messages sent", "bytes received", "messages received"):
            table.add_column(column, justify="right")
        for number, rank in enumerate(result.ranks):
            moved = rank.traffic.as_dict()
            columns = ("bytes_sent", "messages_sent", "bytes_received", "messages_received")
            table.add_row(str(number), *(f"{moved[column]:,}" for column in columns))
        console.print(table)
        console.print(_collectives_table(first.collectives))
    console.print(_memory_table(result))
    if result.config.experts:
        console.print(expert_table(result))
    console.print(_compute(result), soft_wrap=True)
    if first.sample is not None:
        console.print("text from the model:", style="bold")
        console.print("The " + printable(first.sample), soft_wrap=True)
    if result.config.precision == "fp16":
        skipped = f"{first.skipped_steps} of {len(first.losses)} steps skipped after an overflow"
        console.print(f"loss scale: {first.loss_scale:,g} at the end, {skipped}")
    console.print(f"loss: {first.losses[0]:.4f} at the start, {first.losses[-1]:.4f} at the end")
    console.print(f"validation loss: {first.validation_loss:.4f} nats per byte")
    console.print(f"speed: {result.tokens_per_second:,.0f} tokens/s")
    print_saves(console, result)
    console.print(f"fingerprint: {result.fingerprint}", soft_wrap=True)


def _collectives_table(rows: list[dict]) -> Table:
    table = Table(title="collectives and sends of rank 0, one step", title_justify="left")
    for column in ("axis", "collective", "dtype"):
        table.add_column(column)
    for column in ("elements per call", "calls", "bytes sent"):
        table.add_column(column, justify="right")
    for row in rows:
        size = f"{row['elements']:,}" if row["elements"] else "varies"
        table.add_row(row["axis"], row["name"], row["dtype"], size, f"{row['calls']:,}", f"{row['bytes_sent']:,}")
    return table


def _memory_table(result: Run) -> Table:
    table = Table(title="peak memory per rank, bytes", title_justify="left")
    names = {kind: kind for kind in KINDS} | {"peak": "total at once"}
    if result.config.experts:
        names["experts"] = "experts trained here"  # parameters, or shards of them
    for column in ("rank", *names.values()):
        table.add_column(column, justify="right")
    for number, rank in enumerate(result.ranks):
        table.add_row(str(number), *(f"{rank.memory[kind]:,}" for kind in names))
    return table


def _compute(result: Run) -> str:
    steps = len(result.losses)
    counted = [(phase, result.ranks[0].flops.get(phase, 0) / steps) for phase in PHASES]
    found = ", ".join(f"{count / 1e6:,.1f} MFLOP {phase}" for phase, count in counted if count)
    return f"matrix products of rank 0, one step: {found}"


def printable(text: bytes) -> str:
    """The text without control characters, which could take over the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text.decode("utf-8", errors="replace"))
