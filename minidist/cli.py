"""The command line: ``minidist train`` and ``minidist verify``."""

import argparse
import json
import sys
from contextlib import contextmanager
from dataclasses import fields

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from minidist import backend
from minidist.comm import Cluster, Deadlock, RankFailed
from minidist.comm.algorithms import ALL_REDUCE
from minidist.layout import SYNCS, Layout
from minidist.nn.data import load_corpus
from minidist.train import Run, TrainConfig, Wishes, run
from minidist.verify import DEFAULT_LAYOUTS, agrees, first_difference, verify

VERIFY_STEPS = 20
HELP = {
    "layers": "transformer blocks",
    "heads": "attention heads; they divide the width",
    "width": "of the residual stream",
    "context": "tokens that the model sees at once",
    "global_batch": "samples in a step, over all ranks",
    "micro_batch": "samples in one forward and backward pass",
    "steps": "optimizer steps",
    "lr": "peak learning rate",
    "warmup": "steps of linear warm-up, before the cosine",
    "clip": "greatest global gradient norm",
    "weight_decay": "AdamW's decoupled decay",
    "dropout": "share of activations dropped",
    "seed": "of weights, data and dropout",
    "reduce_dtype": "in which gradients are summed; float32 shows the drift that others live with",
    "text": "train on this file (default: Python's own documentation)",
    "backend": "what computes; cupy needs an NVIDIA GPU",
}
CHOICES = {"reduce_dtype": ("float64", "float32"), "backend": ("numpy", "cupy")}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 well, 1 a fingerprint differs, 2 unusable input or a failure."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except (ValueError, FileNotFoundError, IsADirectoryError, PermissionError, MemoryError) as error:
        _say_error(str(error))
    except (RankFailed, Deadlock, RuntimeError) as error:
        _say_error(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        _say_error("interrupted; all ranks have ended")
        return 130
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="minidist",
        description="Train a transformer on several ranks of one laptop, every layout on the same bits.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train once, in one layout", description="Train once, in one layout.")
    train.set_defaults(command=_train)
    split = train.add_argument_group("layout: how the run is split")
    split.add_argument("--dp", type=int, default=1, metavar="N", help="data-parallel ranks")
    split.add_argument("--algorithm", default="auto", choices=["auto", *ALL_REDUCE], help="of the all-reduce")
    split.add_argument("--sync", default="overlapped", choices=SYNCS, help="when gradients are summed")
    split.add_argument(
        "--bucket-mb", type=float, default=Layout.bucket_mb, metavar="MB", help="gradients in one message"
    )
    output = train.add_argument_group("output")
    output.add_argument(
        "--sample", type=int, default=0, metavar="N", help="print N bytes that the trained model writes"
    )
    output.add_argument("--json", metavar="PATH", help="write the results; - for standard output, alone")
    output.add_argument("--trace", metavar="PATH", help="write the last steps for https://ui.perfetto.dev")
    output.add_argument("--png", metavar="PATH", help="draw the last steps")
    _add_config(train, TrainConfig.steps)

    proof = commands.add_parser(
        "verify",
        help="train in many layouts and compare fingerprints",
        description="Train the same model in one process and in each layout, and compare the SHA-256 of weights, "
        "optimizer state and losses. Exit status 0 when all agree, 1 when not.",
    )
    proof.set_defaults(command=_verify)
    proof.add_argument(
        "layouts", nargs="*", metavar="LAYOUT", help="such as dp=4,algorithm=ring (default: a good dozen)"
    )
    proof.add_argument("--json", metavar="PATH", help="write the results; - for standard output, alone")
    _add_config(proof, VERIFY_STEPS)
    return parser


def _add_config(parser: argparse.ArgumentParser, steps: int) -> None:
    group = parser.add_argument_group("the run: what is trained")
    for field in fields(TrainConfig):
        default = steps if field.name == "steps" else field.default
        kind = field.type if isinstance(field.type, type) else str
        flag = "--" + field.name.replace("_", "-")
        text = HELP[field.name] + ("" if default is None else f" (default: {default})")
        metavar = None if field.name in CHOICES else {int: "N", float: "X", str: "FILE"}[kind]
        group.add_argument(
            flag, type=kind, default=default, choices=CHOICES.get(field.name), metavar=metavar, help=text
        )


def _config(options) -> TrainConfig:
    """The run that the options describe, with everything checked that can be before a rank starts."""
    config = TrainConfig(**{field.name: getattr(options, field.name) for field in fields(TrainConfig)})
    load_corpus(config.text, config.context)
    for flag in ("json", "trace", "png"):
        _check_writable(flag, getattr(options, flag, None))
    if config.backend != "numpy":
        backend.use(config.backend)
    return config


def _check_writable(flag: str, path: str | None) -> None:
    """Raise ValueError now rather than after an hour of training."""
    if path in (None, "-"):
        return
    try:
        open(path, "a").close()
    except OSError as error:
        raise ValueError(f"--{flag}: cannot write {path}: {error.strerror}") from None


def _console(options) -> Console:
    """Where people read: standard output, unless that belongs to the JSON."""
    return Console(stderr=options.json == "-", highlight=False)


def _train(options) -> int:
    config = _config(options)
    layout = Layout(options.dp, options.algorithm, options.sync, options.bucket_mb)
    config.check(layout)
    console = _console(options)
    wishes = Wishes(
        progress=True,
        validate=True,
        sample=options.sample,
        trace=options.trace is not None or options.png is not None,
    )
    with _progress(console) as progress, Cluster(layout.world_size) as cluster:
        task = progress.add_task(str(layout), total=config.steps, loss="", speed="")

        def on_step(step: int, loss: float) -> None:
            elapsed = progress.tasks[0].elapsed or 1e-9
            speed = f"{config.tokens_per_step * (step + 1) / elapsed:,.0f} tokens/s"
            progress.update(task, completed=step + 1, loss=f"loss {loss:.4f}", speed=speed)

        result = run(cluster, config, layout, wishes, on_step)
    _print_run(console, result)
    logs = [rank.log for rank in result.ranks]
    if options.trace:
        from minidist.show import perfetto

        perfetto.write(options.trace, logs)
        console.print(f"trace of the last steps: {options.trace} (open it at https://ui.perfetto.dev)")
    if options.png:
        from minidist.show import timeline

        timeline.save(options.png, logs, f"the last steps of minidist train, {layout}")
        console.print(f"picture of the last steps: {options.png}")
    _write_json(options.json, result.as_dict())
    return 0


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
        table = Table(title="traffic of each rank, payload only", title_justify="left")
        for column in ("rank", "bytes sent", "messages sent", "bytes received", "messages received"):
            table.add_column(column, justify="right")
        for number, rank in enumerate(result.ranks):
            moved = rank.traffic.as_dict()
            columns = ("bytes_sent", "messages_sent", "bytes_received", "messages_received")
            table.add_row(str(number), *(f"{moved[column]:,}" for column in columns))
        console.print(table)
    if first.sample is not None:
        console.print("what the model writes:", style="bold")
        console.print("The " + first.sample.decode("utf-8", errors="replace"), markup=False)
    console.print(f"loss: {first.losses[0]:.4f} at first, {first.losses[-1]:.4f} at last")
    console.print(f"validation loss: {first.validation_loss:.4f} nats a byte")
    console.print(f"speed: {result.tokens_per_second:,.0f} tokens/s")
    console.print(f"fingerprint: {result.fingerprint}", soft_wrap=True)


def _verify(options) -> int:
    config = _config(options)
    layouts = [Layout.parse(text) for text in options.layouts] or DEFAULT_LAYOUTS
    console = _console(options)
    table = Table(title=_describe(config), title_justify="left")
    table.add_column("layout", overflow="fold", min_width=27)  # "algorithm=halving_doubling," is the longest word
    for column in ("steps", "final loss", "time"):
        table.add_column(column, justify="right")
    table.add_column("SHA-256", no_wrap=True)
    table.add_column("same")

    runs: list[Run] = []
    with Live(table, console=console, refresh_per_second=8) as live:

        def on_step(layout: Layout, step: int) -> None:
            table.caption = f"running {layout}: step {step + 1} of {config.steps}"
            live.update(table)

        for result in verify(layouts, config, on_step):
            runs.append(result)
            same = "" if len(runs) == 1 else "[green]yes[/]" if agrees(runs[0], result) else "[bold red]NO[/]"
            name = "one process" if len(runs) == 1 else str(result.layout).replace(",", ", ")
            loss, seconds = f"{result.losses[-1]:.5f}", f"{result.seconds:.1f} s"
            table.add_row(name, str(len(result.losses)), loss, seconds, result.fingerprint[:8], same)
        table.caption = None
    if not console.is_terminal:
        console.print()  # Live ends without a newline there
    different = [result for result in runs[1:] if not agrees(runs[0], result)]
    if not different:
        how_many = "The layout ends" if len(runs) == 2 else f"All {len(runs) - 1} layouts end"
        console.print(f"{how_many} on the bits of one process, SHA-256:\n{runs[0].fingerprint}", soft_wrap=True)
    for result in different:
        place = first_difference(runs[0], result)
        text = str(place) if place else "it agreed when run again: this layout does not repeat its own bits"
        console.print(f"[bold red]{result.layout}[/] {escape(text)}")
    report = [run.as_dict() | {"same": agrees(runs[0], run)} for run in runs]
    _write_json(options.json, {"all_same": not different, "runs": report})
    return 1 if different else 0


def _describe(config: TrainConfig) -> str:
    return (
        f"GPT with {config.layers} layers, {config.heads} heads, width {config.width}, context {config.context}; "
        f"{config.micro_batches} micro-batches of {config.micro_batch} a step"
    )


def _write_json(path: str | None, content: dict) -> None:
    if path == "-":
        print(json.dumps(content, indent=1))
    elif path:
        with open(path, "w") as file:
            json.dump(content, file, indent=1)


def _say_error(text: str) -> None:
    print(f"minidist: {text}", file=sys.stderr)
