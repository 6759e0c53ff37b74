"""The command line: ``minidist train``, ``minidist verify`` and the course's commands."""

import argparse
import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import fields

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from minidist import __version__, backend
from minidist.comm import Cluster, Deadlock, RankFailed
from minidist.comm.algorithms import ALL_REDUCE
from minidist.course.commands import add_commands
from minidist.course.plug import called_in_all, pieces_as_dict, pieces_of, print_pieces, training_on
from minidist.layout import SYNCS, Layout
from minidist.ledger import KINDS
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


def program() -> int:
    """The command ``minidist``: asked to end, or left by its terminal, it ends as at Ctrl-C, its ranks with it."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    return main()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 well, 1 a fingerprint differs, 2 unusable input or a failure."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except RankFailed as error:
        # what the settings have caused is told in a line; a fault of the program with its traceback
        kind, _, text = error.summary.partition(": ")
        _say_error(
            text if kind in ("FloatingPointError", "MemoryError", "_ArrayMemoryError") else f"RankFailed: {error}"
        )
    except Deadlock as error:
        _say_error(f"Deadlock: {error}")
    except BrokenPipeError:  # who reads our output has gone, as in `| head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  Python flushes it on its way out
        return 141
    except (ValueError, RuntimeError, MemoryError, OSError) as error:
        _say_error(str(error))
    except KeyboardInterrupt:
        _say_error("interrupted; all ranks have ended")
        return 130
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="minidist",
        description="Train a transformer on several ranks of one laptop, every layout on the same bits.",
    )
    parser.add_argument("--version", action="version", version=f"minidist {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train once, in one layout", description="Train once, in one layout.")
    train.set_defaults(command=_train)
    split = train.add_argument_group("layout: how the run is split")
    split.add_argument("--dp", type=int, default=1, metavar="N", help="data-parallel ranks (default: 1)")
    split.add_argument("--algorithm", default="auto", choices=["auto", *ALL_REDUCE], help="default: auto")
    split.add_argument(
        "--sync", default="overlapped", choices=SYNCS, help="when gradients are summed; default: overlapped"
    )
    split.add_argument(
        "--bucket-mb",
        type=float,
        default=Layout.bucket_mb,
        metavar="MB",
        help="MiB of gradients in one message (default: 1)",
    )
    split.add_argument(
        "--zero",
        type=int,
        default=0,
        choices=range(4),
        help="the stage of ZeRO; 0 for plain data parallelism (default)",
    )
    split.add_argument("--shard", type=int, default=0, metavar="N", help="ranks that share one copy (default: all)")
    split.add_argument(
        "--prefetch",
        type=int,
        default=0,
        choices=(0, 1),
        help="gather the next block early, with --zero 3 (default: 0)",
    )
    split.add_argument(
        "--reshard-after-forward",
        type=int,
        default=1,
        choices=(0, 1),
        help="give a block's parameters up between forward and backward, with --zero 3 (default: 1)",
    )
    output = train.add_argument_group("output")
    output.add_argument(
        "--sample", type=int, default=0, metavar="N", help="print N bytes that the trained model writes after 'The '"
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
        "layouts",
        nargs="*",
        metavar="LAYOUT",
        help=f"key=value,... with keys {', '.join(field.name for field in fields(Layout))}: dp=4,algorithm=ring "
        "(default: a good dozen)",
    )
    proof.add_argument("--json", metavar="PATH", help="write the results; - for standard output, alone")
    _add_config(proof, VERIFY_STEPS)
    add_commands(commands)
    return parser


def _add_config(parser: argparse.ArgumentParser, steps: int) -> None:
    parser.add_argument(
        "--impl", metavar="FOLDER", help="train on your own functions: exercises, solutions or a folder of chNN_*.py"
    )
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
    backend.find(config.backend)
    return config


def _check_outputs(paths: dict[str, str | None], text: str | None) -> None:
    """Raise ValueError now rather than after an hour of training."""
    files = {flag: path for flag, path in paths.items() if path is not None and (flag, path) != ("json", "-")}
    places = [os.path.realpath(path) for path in [*files.values(), text] if path is not None]
    if len(set(places)) < len(places):
        flags = [f"--{flag}" for flag in files] + ["--text"] * (text is not None)
        raise ValueError(f"{', '.join(flags)} must be different files")
    for flag, path in files.items():
        if path == "-":
            raise ValueError(f"--{flag} needs a file; only --json writes to standard output")
        if flag == "png" and not path.lower().endswith(".png"):
            raise ValueError(f"--png: {path} must end in .png")
        with _telling(flag, path):
            is_new = not os.path.exists(path)
            open(path, "a").close()
            if is_new:
                os.remove(path)  # a run that fails leaves nothing behind


@contextmanager
def _telling(flag: str, path: str):
    """Have an error of writing name the flag and the file."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"--{flag}: cannot write {path!r}: {error.strerror}") from None


class _OurConsole(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with status 1, which says that a fingerprint differs


def _console(options) -> Console:
    """Where people read: standard output, unless that belongs to the JSON."""
    return _OurConsole(stderr=options.json == "-", highlight=False, markup=False)


def _train(options) -> int:
    config = _config(options)
    layout = Layout(**{field.name: getattr(options, field.name) for field in fields(Layout)})
    config.check(layout)
    if options.sample < 0:
        raise ValueError(f"--sample must not be negative, but is {options.sample}")
    _check_outputs({flag: getattr(options, flag) for flag in ("json", "trace", "png")}, options.text)
    pieces = pieces_of(options.impl) if options.impl else []
    console = _console(options)
    wishes = Wishes(
        progress=True,
        validate=True,
        sample=options.sample,
        trace=options.trace is not None or options.png is not None,
    )
    with _progress(Console(stderr=True)) as progress, Cluster(layout.world_size) as cluster:
        task = progress.add_task(str(layout), total=config.steps, loss="", speed="")

        first_end = 0.0

        def on_step(step: int, loss: float) -> None:
            nonlocal first_end
            first_end = first_end or time.perf_counter()
            speed = config.tokens_per_step * step / (time.perf_counter() - first_end + 1e-9)
            text = f"{speed:,.0f} tokens/s" if step else ""
            progress.update(task, completed=step + 1, loss=f"loss {loss:.4f}", speed=text)

        result = run(cluster, config, layout, wishes, on_step, training_on(pieces) if pieces else None)
    _write_json(options.json, result.as_dict() | pieces_as_dict(pieces, [result]))
    logs = [rank.log for rank in result.ranks]
    if options.trace:
        from minidist.show import perfetto

        with _telling("trace", options.trace):
            perfetto.write(options.trace, logs)
    if options.png:
        from minidist.show import timeline

        with _telling("png", options.png):
            timeline.save(options.png, logs, f"the last steps of minidist train, {layout}")
    _print_run(console, result)
    if pieces:
        print_pieces(console, pieces, [result])
    if options.trace:
        console.print(f"trace of the last steps: {options.trace} (open it at https://ui.perfetto.dev)", soft_wrap=True)
    if options.png:
        console.print(f"picture of the last steps: {options.png}", soft_wrap=True)
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
    console.print(_memory_table(result))
    if first.sample is not None:
        console.print("what the model writes:", style="bold")
        console.print("The " + _printable(first.sample), soft_wrap=True)
    console.print(f"loss: {first.losses[0]:.4f} at first, {first.losses[-1]:.4f} at last")
    console.print(f"validation loss: {first.validation_loss:.4f} nats a byte")
    console.print(f"speed: {result.tokens_per_second:,.0f} tokens/s")
    console.print(f"fingerprint: {result.fingerprint}", soft_wrap=True)


def _memory_table(result: Run) -> Table:
    table = Table(title="bytes that each rank held at most, of each kind and in all", title_justify="left")
    for column in ("rank", *KINDS, "at once"):
        table.add_column(column, justify="right")
    for number, rank in enumerate(result.ranks):
        table.add_row(str(number), *(f"{rank.memory[kind]:,}" for kind in (*KINDS, "peak")))
    return table


def _printable(text: bytes) -> str:
    """The text without control characters, which would steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text.decode("utf-8", errors="replace"))


def _verify(options) -> int:
    config = _config(options)
    fitting = [layout for layout in DEFAULT_LAYOUTS if layout.dp <= config.micro_batches]
    layouts = [Layout.parse(text) for text in options.layouts] or fitting
    if not layouts:
        raise ValueError(f"{config.micro_batches} micro-batch leaves nothing to split: enlarge --global-batch")
    for layout in layouts:
        config.check(layout)
    _check_outputs({"json": options.json}, options.text)
    pieces = pieces_of(options.impl) if options.impl else []
    rank_function = training_on(pieces) if pieces else None
    console = _console(options)
    names = ["one process", *map(str, layouts)]
    width = max(map(len, names))
    console.print(_describe(config), style="dim", soft_wrap=True)
    heading = f"{'layout':<{width}}  steps  final loss   time  SHA-256   same"
    if not options.layouts and len(fitting) < len(DEFAULT_LAYOUTS):
        console.print(f"left out: {len(DEFAULT_LAYOUTS) - len(fitting)} layouts with more ranks than micro-batches")
    console.print(heading, style="bold", soft_wrap=True)

    runs: list[Run] = []
    with console.status("") as status:  # the running layout, below the lines of those that have ended

        def on_step(layout: Layout, step: int) -> None:
            status.update(f"{layout}: step {step + 1} of {config.steps}")

        for name, result in zip(names, verify(layouts, config, on_step, rank_function), strict=True):
            runs.append(result)
            same = (
                Text("") if len(runs) == 1 else Text("yes", "green") if agrees(runs[0], result) else Text("NO", "red")
            )
            line = (
                f"{len(result.losses):5}  {result.losses[-1]:10.5f}  {result.seconds:4.1f}s  {result.fingerprint[:8]}  "
            )
            console.print(Text(f"{name:<{width}}  {line}") + same, soft_wrap=True)
    places = {}
    for result in runs[1:]:
        if not agrees(runs[0], result):
            place = first_difference(runs[0], result, rank_function)
            places[id(result)] = str(place or "agreed when run again: this layout does not repeat its own bits")
    report = [run.as_dict() | {"same": agrees(runs[0], run), "difference": places.get(id(run))} for run in runs]
    _write_json(options.json, {"all_same": not places, "runs": report} | pieces_as_dict(pieces, runs))
    if pieces:
        print_pieces(console, pieces, runs)
    if not places:
        how_many = "The layout ends" if len(runs) == 2 else f"All {len(runs) - 1} layouts end"
        console.print(f"{how_many} on the bits of one process, SHA-256:\n{runs[0].fingerprint}", soft_wrap=True)
    for place in dict.fromkeys(places.values()):  # each difference once, with the layouts that show it
        which = [str(result.layout) for result in runs if places.get(id(result)) == place]
        console.print(Text(" ".join(which), "bold red") + f" {place}", soft_wrap=True)
    if pieces and len(places) == len(runs) - 1 and len({run.fingerprint for run in runs[1:]}) == 1:
        shared = called_in_all(pieces, runs[1:])
        console.print(
            f"All of these layouts have the same bits, {runs[1].fingerprint[:8]}, only not the library's: what differs "
            f"is something that all of them share. Of yours that is {', '.join(shared) or 'nothing'}."
        )
    return 1 if places else 0


def _describe(config: TrainConfig) -> str:
    text = config.text or "Python {}.{}'s documentation".format(*sys.version_info)
    return (
        f"GPT: {config.layers} layers, {config.heads} heads, width {config.width}, context {config.context}; "
        f"{config.micro_batches} micro-batches of {config.micro_batch} a step\non {text}; NumPy {np.__version__}"
    )


def _write_json(path: str | None, content: dict) -> None:
    if path == "-":
        print(json.dumps(content, indent=1))
    elif path:
        with _telling("json", path), open(path, "w") as file:
            json.dump(content, file, indent=1)


def _say_error(text: str) -> None:
    print(f"minidist: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(program())
