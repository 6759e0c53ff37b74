"""``minidist verify``: the same run in many layouts, a line for each, and where two part."""

import sys
from dataclasses import fields

import numpy as np
from rich.text import Text

from minidist.cli.flags import add_config, config_of, integer
from minidist.cli.output import check_outputs, console_of, write_json
from minidist.cli.verify_matrix import run_matrix
from minidist.course.learner.implementations import (
    called_in_all,
    implementations_as_dict,
    implementations_of,
    print_implementations,
    training_on,
)
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.memory_check import check_memory
from minidist.train.result import Run
from minidist.verify.comparison import ONE_PROCESS, agrees, first_difference, verify
from minidist.verify.layouts import DEFAULT_LAYOUTS, MORE_LAYOUTS

STEPS = 20  # by default; fewer than train's, because every layout makes them
MATRIX_STEPS, MATRIX_LAYERS, MATRIX_RANKS = 3, 4, 4  # by default with --matrix


def add_verify(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "verify",
        help="train in many layouts and compare fingerprints",
        description="Train the same model in one process and in each layout, and compare the SHA-256 of weights, "
        "optimizer state and losses. Exit status 0 when all agree, 1 when not.",
    )
    command.set_defaults(command=_verify)
    command.add_argument(
        "layouts",
        nargs="*",
        metavar="LAYOUT",
        help=f"key=value,... with keys {', '.join(field.name for field in fields(Layout))}: dp=4,algorithm=ring "
        f"(default: {len(DEFAULT_LAYOUTS)} that use every setting)",
    )
    command.add_argument(
        "--all", action="store_true", help=f"try {len(DEFAULT_LAYOUTS) + len(MORE_LAYOUTS)} layouts (takes minutes)"
    )
    command.add_argument(
        "--matrix", action="store_true", help="run a set of layouts and precisions in which all pairs of settings meet"
    )
    command.add_argument("--max-ranks", type=integer, metavar="N", help=f"with --matrix (default: {MATRIX_RANKS})")
    command.add_argument("--png", metavar="PATH", help="draw the matrix")
    command.add_argument("--json", metavar="PATH", help="write the results; - for standard output, alone")
    add_config(command, steps=None, layers=None)


def _verify(options) -> int:
    asked = [Layout.parse(text) for text in options.layouts]
    if options.steps is None:
        options.steps = MATRIX_STEPS if options.matrix else STEPS
    if options.matrix:
        return _matrix(options)
    if options.png is not None or options.max_ranks is not None:
        raise ValueError("--png and --max-ranks are about the matrix: give --matrix too")
    if options.all and asked:
        raise ValueError("--all tries a list of its own: leave the layouts out")
    if options.layers is None:
        options.layers = max([TrainConfig.layers, *map(_fewest_layers, asked)])
    config = config_of(options)
    check_memory(config, ONE_PROCESS)
    usual = DEFAULT_LAYOUTS + MORE_LAYOUTS if options.all else DEFAULT_LAYOUTS
    fitting = [layout for layout in usual if _fits(config, layout)]
    layouts = asked or fitting
    for layout in layouts:
        config.check(layout)
        check_memory(config, layout)
    check_outputs({"json": options.json}, options.text)
    implementations = implementations_of(options.impl) if options.impl else []
    rank_function = training_on(implementations) if implementations else None
    console = console_of(options)
    names = ["one process", *map(str, layouts)]
    width = max(map(len, names))
    console.print(_describe(config), style="dim", soft_wrap=True)
    heading = f"{'layout':<{width}}  steps  final loss   time  SHA-256   same"
    if not options.layouts and len(fitting) < len(usual):
        console.print(f"left out: {len(usual) - len(fitting)} layouts that do not fit this model, batch or memory")
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
    write_json(options.json, {"all_same": not places, "runs": report} | implementations_as_dict(implementations, runs))
    if implementations:
        print_implementations(console, implementations, runs)
    if not places:
        how_many = "The layout ends" if len(runs) == 2 else f"All {len(runs) - 1} layouts end"
        console.print(f"{how_many} on the bits of one process, SHA-256:\n{runs[0].fingerprint}", soft_wrap=True)
    for place in dict.fromkeys(places.values()):  # each difference once, with the layouts that show it
        which = [str(result.layout) for result in runs if places.get(id(result)) == place]
        console.print(Text(" ".join(which), "bold red") + f" {place}", soft_wrap=True)
    if implementations and len(places) == len(runs) - 1 and len({run.fingerprint for run in runs[1:]}) == 1:
        shared = called_in_all(implementations, runs[1:])
        console.print(
            f"All of these layouts have the same bits, {runs[1].fingerprint[:8]}, only not the library's: what differs "
            f"is something that all of them share. Of yours that is {', '.join(shared) or 'nothing'}."
        )
    return 1 if places else 0


def _matrix(options) -> int:
    if options.layouts or options.all or options.impl:
        raise ValueError("--matrix chooses the layouts itself, and runs the library's own code: leave the others out")
    if options.precision != TrainConfig.precision or options.loss_scale:
        raise ValueError("--matrix runs every precision: leave --precision and --loss-scale out")
    options.layers = MATRIX_LAYERS if options.layers is None else options.layers
    most = MATRIX_RANKS if options.max_ranks is None else options.max_ranks
    config = config_of(options)
    check_memory(config, ONE_PROCESS)
    check_outputs({"json": options.json, "png": options.png}, options.text)
    console = console_of(options)
    console.print(_describe(config), style="dim", soft_wrap=True)
    return run_matrix(config, most, console, options.json, options.png)


def _fewest_layers(layout: Layout) -> int:
    """How many layers a model must have, to be cut into this layout's stages."""
    return sum(layout.layers_of_stages) or layout.stage_count


def _fits(config: TrainConfig, layout: Layout) -> bool:
    try:
        config.check(layout)
        check_memory(config, layout)
    except ValueError:
        return False
    return True


def _describe(config: TrainConfig) -> str:
    text = config.text or "Python {}.{}'s documentation".format(*sys.version_info)
    return (
        f"GPT: {config.layers} layers, {config.heads} heads, width {config.width}, context {config.context}; "
        f"{config.micro_batches} micro-batches of {config.micro_batch} a step\non {text}; NumPy {np.__version__}"
    )
