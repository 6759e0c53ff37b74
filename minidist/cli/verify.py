"""``minidist verify``: trains in many layouts, compares fingerprints, and shows where two runs first differ."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from math import lcm

import numpy as np
from rich.console import Console
from rich.status import Status
from rich.text import Text

from minidist.cli.flags import HelpByGroup, add_config, config_of, given, integer
from minidist.cli.output import NOT_REPRODUCED, check_outputs, console_of, json_output, write_outputs
from minidist.cli.verify_matrix import run_interruptions, run_matrix
from minidist.comm.runtime.clusters import job_size
from minidist.comm.transports.shared_memory import MAX_RANKS
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
from minidist.train.rules import loosened_by
from minidist.verify.comparison import (
    DEFAULT_LAYOUTS,
    MORE_LAYOUTS,
    ONE_PROCESS,
    Difference,
    agrees,
    check_exact,
    first_difference,
    published,
    verify,
)

STEPS = 20  # by default; fewer than train's, because every layout runs them
FEW_STEPS = 5  # of the usual layouts that need sequence chunks or experts: they have references of their own
EXPERTS = 8  # of the usual layouts that share experts; more if their ranks do not divide 8
MATRIX_STEPS, MATRIX_LAYERS, MATRIX_RANKS, MATRIX_CHUNKS, MATRIX_EXPERTS = 3, 4, 4, 4, 4  # by default with --matrix

Group = tuple[TrainConfig, list[Layout]]  # layouts that share a reference


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "verify",
        help="train in many layouts and compare fingerprints",
        description="Train the same model in one process and in each layout, and compare the SHA-256 of weights, "
        "optimizer state and losses. Exit status: 0 if all agree, 1 if one differs.",
        add_help=False,
    )
    usual = ("--all", "--matrix", "--interrupt", "--json", "--layers", "--steps", "--precision", "--impl")
    command.add_argument("-h", "--help", action=HelpByGroup, usual=usual)
    command.set_defaults(command=_verify, on_ranks=True)
    command.add_argument(
        "layouts",
        nargs="*",
        metavar="LAYOUT",
        help="layout to verify, as key=value,key=value, such as dp=4,algorithm=ring; the keys are "
        f"{', '.join(field.name for field in fields(Layout))} "
        f"(default: {len(DEFAULT_LAYOUTS)} layouts that use every axis, schedule and all-reduce algorithm)",
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
        "--interrupt",
        action="store_true",
        help="save, end and resume runs in other layouts: a set that lets every two settings before and after meet",
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
        steps=f"{STEPS}; {MATRIX_STEPS} with --matrix; {FEW_STEPS} with --interrupt",
        sequence_chunks=f"{TrainConfig.sequence_chunks}, or as many as the layouts need; {MATRIX_CHUNKS} with --matrix",
        experts=f"{TrainConfig.experts}, or {EXPERTS} for layouts with ep; {MATRIX_EXPERTS} with --matrix",
        vocab=f"{TrainConfig.vocab}, or the tokenizer's",
    )


def _verify(options) -> int:
    asked = [Layout.parse(text) for text in options.layouts]
    if options.matrix:
        return _matrix(options)
    if options.all and asked:
        raise ValueError("--all chooses the layouts itself: name layouts, or use --all, but not both")
    if options.interrupt:
        return _interrupt(options, asked)
    if options.png is not None or options.max_ranks is not None:
        raise ValueError("--png and --max-ranks apply to the matrix: add --matrix")
    groups, skipped = _chosen(options) if not asked else ([_asked(options, asked)], 0)
    check_outputs({"json": options.json}, options.text, options.tokenizer)
    implementations = implementations_of(options.impl) if options.impl else []
    rank_function = training_on(implementations) if implementations else None
    console = console_of(options)
    console.print(_describe(groups[0][0]), style="dim", soft_wrap=True)
    if skipped:
        reason = ", job" if job_size() is not None else ""
        console.print(f"skipped {skipped} layouts that do not fit this model, batch{reason} or memory")

    runs = _run_all(console, groups, rank_function)
    references: dict[TrainConfig, Run] = {}
    for run in runs:
        references.setdefault(run.config, run)  # the first run of each config is on one process
    differences = _differences(console, runs, references, rank_function)
    _print_verdict(console, runs, list(references.values()), differences)
    as_elsewhere = _print_published(console, list(references.values()))
    trained = [run for run in runs if run is not references[run.config]]
    same_hash = len({run.fingerprint for run in trained}) == 1
    if implementations and len(differences) == len(trained) == len(runs) - 1 and same_hash:
        names = ", ".join(called_in_all(implementations, trained)) or "none"
        if len(trained) == 1:
            console.print(f"Your functions that {trained[0].layout} calls, where the cause may be: {names}.")
        else:
            console.print(
                f"These layouts agree with each other ({trained[0].fingerprint[:8]}) but not with the library, so the "
                f"cause is something that all of them use. Your functions that all of them call: {names}."
            )
    if implementations:
        print_implementations(console, implementations, runs)
    report = [
        run.as_dict() | {"same": number not in differences, "difference": _in_words(differences, number)}
        for number, run in enumerate(runs)
    ]
    content = {"all_same": not differences, "as_published": as_elsewhere, "runs": report}
    write_outputs(console, json_output(options.json, content | implementations_as_dict(implementations, runs)))
    return 1 if differences or as_elsewhere is False else 0


def _asked(options, layouts: list[Layout], steps: int = STEPS) -> Group:
    """Return a config with the layers, sequence chunks and experts that these layouts need, and the layouts."""
    settings = {
        "layers": max([TrainConfig.layers, *map(_fewest_layers, layouts)]),
        "steps": steps,
        "sequence_chunks": lcm(*(layout.least_chunks for layout in layouts)),
        "experts": _experts_for(layouts),
    }
    config = _config(options, **settings)
    for layout in (ONE_PROCESS, *layouts):
        _check_job(layout)
        check_exact(config, layout)
        check_memory(config, layout)
    return config, layouts


def _chosen(options) -> tuple[list[Group], int]:
    """Return the usual layouts that fit, by reference, and how many do not. Chunks and experts change the bits."""
    candidates = DEFAULT_LAYOUTS + MORE_LAYOUTS if options.all else DEFAULT_LAYOUTS
    alike: dict[tuple[bool, bool], list[Layout]] = {(False, False): []}  # by whether they need chunks, and experts
    for layout in candidates:
        needs = options.sequence_chunks is None and layout.cp > 1, options.experts is None and layout.ep > 1
        alike.setdefault(needs, []).append(layout)
    groups = []
    for (chunks, experts), layouts in alike.items():
        settings = {
            "layers": TrainConfig.layers,
            "steps": FEW_STEPS if chunks or experts else STEPS,
            "sequence_chunks": lcm(*(layout.least_chunks for layout in layouts)) if chunks else 1,
            "experts": _experts_for(layouts) if experts else 0,
        }
        if options.context % settings["sequence_chunks"] == 0:
            config = _config(options, **settings)
            groups.append((config, [layout for layout in layouts if _fits(config, layout)]))
    check_memory(groups[0][0], ONE_PROCESS)
    groups = groups[:1] + [group for group in groups[1:] if group[1]]
    return groups, len(candidates) - sum(len(layouts) for _, layouts in groups)


def _experts_for(layouts: Sequence[Layout]) -> int:
    """Return how many experts such layouts can share: 8, or the next number that their ranks divide; 0 for none."""
    ranks = lcm(*(layout.ep for layout in layouts))
    return 0 if ranks == 1 else -(-EXPERTS // ranks) * ranks


def _config(options, **usual: int) -> TrainConfig:
    """Return the run that the options describe; ``usual`` has the values of flags that were not given."""
    named = given(**{name: getattr(options, name) for name in usual})
    return config_of(Namespace(**vars(options) | usual | named))


def _run_all(console: Console, groups: Sequence[Group], rank_function) -> list[Run]:
    """Train in one process and in every layout, and print one line per run."""
    names = [[_reference_name(config), *map(str, layouts)] for config, layouts in groups]
    width = max(len(name) for group in names for name in group)
    console.print(f"{'layout':<{width}}  steps  final loss   time  SHA-256   same", style="bold", soft_wrap=True)
    runs: list[Run] = []
    with console.status("") as status:  # the layout that is running, below the lines of those that have ended
        for (config, layouts), group in zip(groups, names, strict=True):

            def on_step(layout: Layout, step: int, steps: int = config.steps) -> None:
                _tell(console, status, f"{layout}: step {step + 1} of {steps}", always=step + 1 == steps // 2)

            reference = None
            for name, run in zip(group, verify(layouts, config, on_step, rank_function), strict=True):
                runs.append(run)
                line = f"{len(run.losses):5}  {run.losses[-1]:10.5f}  {run.seconds:4.1f}s  {run.fingerprint[:8]}  "
                text = Text(f"{name:<{width}}  {line}")
                if reference is None:
                    reference = run
                else:
                    text += Text("yes", "green") if agrees(reference, run) else Text("NO", "red")
                console.print(text, soft_wrap=True)
    return runs


def _tell(console: Console, status: Status, text: str, always: bool = True) -> None:
    """Show what is running: in the status line, or as a line on stderr if no terminal shows that."""
    status.update(text)
    if always and not console.is_terminal:
        print(text, file=sys.stderr, flush=True)


def _reference_name(config: TrainConfig) -> str:
    return ", ".join(["one process", *_grains(config)])


def _grains(config: TrainConfig) -> list[str]:
    """Describe the sequence chunks and the experts of a run, if it has them."""
    chunks = [f"{config.sequence_chunks} sequence chunks"] * (config.sequence_chunks > 1)
    return chunks + [f"{config.experts} experts"] * (config.experts > 0)


def _differences(
    console: Console, runs: Sequence[Run], references: dict[TrainConfig, Run], rank_function
) -> dict[int, Difference | None]:
    """Return index -> first difference, for runs that differ from their reference; None if not when run again."""
    differences = {}
    with console.status("") as status:
        for number, run in enumerate(runs):
            if not agrees(references[run.config], run):
                _tell(console, status, f"{run.layout} differs: running again to see where")
                differences[number] = first_difference(references[run.config], run, rank_function)
    return differences


def _in_words(differences: dict[int, Difference | None], number: int) -> str | None:
    return str(differences[number] or NOT_REPRODUCED) if number in differences else None


def _print_verdict(
    console: Console, runs: Sequence[Run], references: Sequence[Run], differences: dict[int, Difference | None]
) -> None:
    if not differences:
        count = len(runs) - len(references)
        which = {1: "The layout matches", 2: "Both layouts match"}.get(count, f"All {count} layouts match")
        hashes = [run.fingerprint for run in references]
        if len(references) > 1:
            hashes[1:] = [f"{run.fingerprint} with {', '.join(_grains(run.config))}" for run in references[1:]]
        console.print(
            f"{which} the single-process run bit for bit, SHA-256:\n" + "\n".join(hashes),
            soft_wrap=True,
        )
    for difference in dict.fromkeys(differences.values()):  # each difference once, with the layouts that show it
        layouts = [str(runs[number].layout) for number, found in differences.items() if found == difference]
        console.print(Text(" ".join(layouts), "bold red"), soft_wrap=True)
        for line in [NOT_REPRODUCED] if difference is None else difference.lines():
            console.print(f"  {line}", soft_wrap=True)


def _print_published(console: Console, references: Sequence[Run]) -> bool | None:
    """Print and return whether one process ends on the published hashes here; None if none is published."""
    known = {run.fingerprint: hash for run in references if (hash := published(run))}
    if not known:
        return None
    other = [hash for found, hash in known.items() if found != hash]
    if other:
        console.print(
            f"Other machines get {', '.join(other)}: this machine, or its NumPy, computes differently.", style="red"
        )
    else:
        console.print(f"Every machine ends on {'this hash' if len(known) == 1 else 'these hashes'}.")
    return not other


def _matrix(options) -> int:
    if options.layouts or options.all or options.impl or options.interrupt:
        raise ValueError(
            "--matrix chooses the layouts itself and runs the library's own code to its end: remove layouts, --all, "
            "--impl and --interrupt"
        )
    if (options.precision, options.products) != (TrainConfig.precision, TrainConfig.products) or options.loss_scale:
        raise ValueError(
            "--matrix runs every precision, with both products: remove --precision, --products and --loss-scale"
        )
    most = MATRIX_RANKS if options.max_ranks is None else options.max_ranks
    if not 1 <= most <= MAX_RANKS:
        raise ValueError(f"--max-ranks must be from 1 to {MAX_RANKS}, got {most}")
    config = _config(
        options, layers=MATRIX_LAYERS, steps=MATRIX_STEPS, sequence_chunks=MATRIX_CHUNKS, experts=MATRIX_EXPERTS
    )
    check_memory(config, ONE_PROCESS)
    check_outputs({"json": options.json, "png": options.png}, options.text, options.tokenizer)
    console = console_of(options)
    console.print(_describe(config), style="dim", soft_wrap=True)
    return run_matrix(config, most, console, options.json, options.png)


def _interrupt(options, asked: list[Layout]) -> int:
    if options.impl or options.max_ranks is not None or options.png is not None:
        raise ValueError("--interrupt runs the library's own code in layouts: remove --impl, --max-ranks and --png")
    usual = DEFAULT_LAYOUTS + (MORE_LAYOUTS if options.all else [])
    candidates = asked or [layout for layout in usual if not loosened_by(layout)]  # those that keep checkpoints
    config, layouts = _asked(options, list(dict.fromkeys(candidates)), FEW_STEPS)
    if len(layouts) < 2:
        raise ValueError("--interrupt goes from one layout to another: name two or more, or none for the usual ones")
    if config.steps < 2:
        raise ValueError("--interrupt cuts a run off between two steps: set steps to 2 or more")
    for layout in layouts:
        if loosened_by(layout):
            raise ValueError(f"--interrupt saves runs, and layout {layout} keeps no checkpoints: leave it out")
    check_outputs({"json": options.json}, options.text, options.tokenizer)
    console = console_of(options)
    console.print(_describe(config), style="dim", soft_wrap=True)
    return run_interruptions(config, layouts, console, options.json)


def _fewest_layers(layout: Layout) -> int:
    """Return how many layers a model needs to be split into this layout's stages."""
    return sum(layout.layers_of_stages) or layout.stage_count


def _check_job(layout: Layout) -> None:
    """Raise ValueError if an MPI job has too few ranks for the layout."""
    if (size := job_size()) is not None and layout.world_size > size:
        raise ValueError(
            f"layout {layout} needs {layout.world_size} ranks, but the MPI job has {size}: "
            f"mpiexec -n {layout.world_size}"
        )


def _fits(config: TrainConfig, layout: Layout) -> bool:
    try:
        _check_job(layout)
        check_exact(config, layout)
        check_memory(config, layout)
    except ValueError:
        return False
    return True


def _describe(config: TrainConfig) -> str:
    name = {"gpt2": "GPT", "llama": "Llama"}[config.arch]
    tokens = f", {config.vocab} tokens of {config.tokenizer}" if config.tokenizer else ""
    layers, heads = (f"{n} {word}" + "s" * (n > 1) for n, word in ((config.layers, "layer"), (config.heads, "head")))
    return (
        f"{name}: {layers}, {heads}, width {config.width}, context {config.context}; "
        f"{config.micro_batches} micro-batches of {config.micro_batch} per step\n"
        f"on {config.text or 'the course text'}{tokens}; {config.products} products; NumPy {np.__version__}"
    )
