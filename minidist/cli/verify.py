"""``minidist verify``: trains in many layouts, compares fingerprints, and shows where two runs first differ."""

import sys
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from rich.console import Console
from rich.text import Text

from minidist.cli.flags import add_config, config_of, integer
from minidist.cli.output import NOT_REPRODUCED, check_outputs, console_of, json_output, write_outputs
from minidist.cli.verify_matrix import run_matrix
from minidist.course.learner.implementations import (
    called_in_all,
    implementations_as_dict,
    implementations_of,
    print_implementations,
    training_on,
)
from minidist.plan.memory_check import check_memory
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run
from minidist.verify.comparison import ONE_PROCESS, agrees, first_difference, verify
from minidist.verify.layouts import DEFAULT_LAYOUTS, MORE_LAYOUTS

STEPS = 20  # by default; fewer than train's, because every layout runs them
MATRIX_STEPS, MATRIX_LAYERS, MATRIX_RANKS = 3, 4, 4  # by default with --matrix


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "verify",
        help="train in many layouts and compare fingerprints",
        description="Train the same model in one process and in each layout, and compare the SHA-256 of weights, "
        "optimizer state and losses. Exit status: 0 if all agree, 1 if one differs.",
    )
    command.set_defaults(command=_verify)
    command.add_argument(
        "layouts",
        nargs="*",
        metavar="LAYOUT",
        help="layout to verify, as key=value,key=value, such as dp=4,algorithm=ring; the keys are "
        f"{', '.join(field.name for field in fields(Layout))} "
        f"(default: {len(DEFAULT_LAYOUTS)} layouts that use every setting)",
    )
    command.add_argument(
        "--all", action="store_true", help=f"verify {len(DEFAULT_LAYOUTS) + len(MORE_LAYOUTS)} layouts (takes minutes)"
    )
    command.add_argument(
        "--matrix",
        action="store_true",
        help="verify a set of layouts and precisions that covers every pair of settings",
    )
    command.add_argument(
        "--max-ranks",
        type=integer,
        metavar="N",
        help=f"most ranks of a layout, with --matrix (default: {MATRIX_RANKS})",
    )
    command.add_argument("--png", metavar="PATH", help="draw the results to this file, with --matrix")
    command.add_argument("--json", metavar="PATH", help="write the results to this file; - for standard output")
    add_config(
        command,
        layers=f"{TrainConfig.layers}, or more if a layout needs them; {MATRIX_LAYERS} with --matrix",
        steps=f"{STEPS}; {MATRIX_STEPS} with --matrix",
    )


def _verify(options) -> int:
    asked = [Layout.parse(text) for text in options.layouts]
    if options.steps is None:
        options.steps = MATRIX_STEPS if options.matrix else STEPS
    if options.matrix:
        return _matrix(options)
    if options.png is not None or options.max_ranks is not None:
        raise ValueError("--png and --max-ranks apply to the matrix: add --matrix")
    if options.all and asked:
        raise ValueError("--all chooses the layouts itself: name layouts, or use --all, but not both")
    if options.layers is None:
        options.layers = max([TrainConfig.layers, *map(_fewest_layers, asked)])
    config = config_of(options)
    check_memory(config, ONE_PROCESS)
    candidates = asked or (DEFAULT_LAYOUTS + MORE_LAYOUTS if options.all else DEFAULT_LAYOUTS)
    layouts = asked or [layout for layout in candidates if _fits(config, layout)]
    for layout in asked:  # the others were chosen because they fit
        config.check(layout)
        check_memory(config, layout)
    check_outputs({"json": options.json}, options.text)
    implementations = implementations_of(options.impl) if options.impl else []
    rank_function = training_on(implementations) if implementations else None
    console = console_of(options)
    console.print(_describe(config), style="dim", soft_wrap=True)
    if len(layouts) < len(candidates):
        console.print(f"skipped {len(candidates) - len(layouts)} layouts that do not fit this model, batch or memory")

    runs = _run_all(console, layouts, config, rank_function)
    differences = _differences(runs, rank_function)
    _print_verdict(console, runs, differences)
    if implementations and len(differences) == len(runs) - 1 and len({run.fingerprint for run in runs[1:]}) == 1:
        shared = called_in_all(implementations, runs[1:])
        console.print(
            f"These layouts agree with each other ({runs[1].fingerprint[:8]}) but not with the library, so the cause "
            f"is something that all of them use. Your functions that all of them call: {', '.join(shared) or 'none'}."
        )
    if implementations:
        print_implementations(console, implementations, runs)
    report = [
        run.as_dict() | {"same": number not in differences, "difference": differences.get(number)}
        for number, run in enumerate(runs)
    ]
    content = {"all_same": not differences, "runs": report} | implementations_as_dict(implementations, runs)
    write_outputs(console, json_output(options.json, content))
    return 1 if differences else 0


def _run_all(console: Console, layouts: Sequence[Layout], config: TrainConfig, rank_function) -> list[Run]:
    """Train in one process and in every layout, and print one line per run."""
    names = ["one process", *map(str, layouts)]
    width = max(map(len, names))
    console.print(f"{'layout':<{width}}  steps  final loss   time  SHA-256   same", style="bold", soft_wrap=True)
    runs: list[Run] = []
    with console.status("") as status:  # the layout that is running, below the lines of those that have ended

        def on_step(layout: Layout, step: int) -> None:
            status.update(f"{layout}: step {step + 1} of {config.steps}")

        for name, run in zip(names, verify(layouts, config, on_step, rank_function), strict=True):
            runs.append(run)
            same = Text("yes", "green") if agrees(runs[0], run) else Text("NO", "red")
            line = f"{len(run.losses):5}  {run.losses[-1]:10.5f}  {run.seconds:4.1f}s  {run.fingerprint[:8]}  "
            console.print(Text(f"{name:<{width}}  {line}") + (same if len(runs) > 1 else Text("")), soft_wrap=True)
    return runs


def _differences(runs: Sequence[Run], rank_function) -> dict[int, str]:
    """Index of each run that differs from the first -> where it first differs, in words."""
    reference = runs[0]
    return {
        number: str(first_difference(reference, run, rank_function) or NOT_REPRODUCED)
        for number, run in enumerate(runs)
        if not agrees(reference, run)
    }


def _print_verdict(console: Console, runs: Sequence[Run], differences: dict[int, str]) -> None:
    if not differences:
        which = "The layout matches" if len(runs) == 2 else f"All {len(runs) - 1} layouts match"
        console.print(
            f"{which} the single-process run bit for bit, SHA-256:\n{runs[0].fingerprint}",
            soft_wrap=True,
        )
    for difference in dict.fromkeys(differences.values()):  # each difference once, with the layouts that show it
        layouts = [str(runs[number].layout) for number, found in differences.items() if found == difference]
        console.print(Text(" ".join(layouts), "bold red") + f": {difference}", soft_wrap=True)


def _matrix(options) -> int:
    if options.layouts or options.all or options.impl:
        raise ValueError(
            "--matrix chooses the layouts itself and runs the library's own code: remove layouts, --all and --impl"
        )
    if options.precision != TrainConfig.precision or options.loss_scale:
        raise ValueError("--matrix runs every precision: remove --precision and --loss-scale")
    options.layers = MATRIX_LAYERS if options.layers is None else options.layers
    most = MATRIX_RANKS if options.max_ranks is None else options.max_ranks
    config = config_of(options)
    check_memory(config, ONE_PROCESS)
    check_outputs({"json": options.json, "png": options.png}, options.text)
    console = console_of(options)
    console.print(_describe(config), style="dim", soft_wrap=True)
    return run_matrix(config, most, console, options.json, options.png)


def _fewest_layers(layout: Layout) -> int:
    """How many layers a model needs to be split into this layout's stages."""
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
        f"{config.micro_batches} micro-batches of {config.micro_batch} per step\non {text}; NumPy {np.__version__}"
    )
