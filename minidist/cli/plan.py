"""``minidist plan``: the best layouts of a model on a cluster, one layout explained, or plans of published runs.

``minidist explore`` writes what training would cost as one page of sliders.
"""

from argparse import Namespace
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from minidist.cli.flags import integer, reader, real
from minidist.cli.output import (
    Output,
    check_outputs,
    console_of,
    json_output,
    terminal_console,
    write_outputs,
    written_last,
)
from minidist.cli.plan_tables import (
    best_table,
    explanation,
    memory_of_others,
    no_layout,
    read_count,
    sequences_of,
    summary,
    validation_tables,
)
from minidist.plan.cluster.efficiency import ATTENTION
from minidist.plan.cluster.hardware import PRECISIONS, ClusterSpec, load
from minidist.plan.cluster.roofline import peak_flops
from minidist.plan.goodput import llama3_gpu_mtbf_hours
from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import NUMERICS
from minidist.plan.models import model_of, published
from minidist.plan.planned_run import Campaign, PlannedRun, campaign, plan_run
from minidist.plan.published_runs import FAMILIES, Comparison, compare_all, family_of, figures_of, spread_of, summarize
from minidist.plan.search import search, what_would_help
from minidist.plan.time import StepCosts

EXPLORE = """\
Plan every combination of model, GPUs, axes, ZeRO, recomputation, precision, sequence length and micro-batch that
the page's sliders can be set to, and write them into one page that needs no network."""
TOKENS = 15e12  # Llama 3's
MOST_SEQUENCES = 10**9  # in a step; the search for layouts of more takes long


@dataclass(frozen=True)
class Asked:
    """The plan that the flags ask for: costs of the model on the cluster, and the sequences of a step."""

    costs: StepCosts
    batch: int
    options: Namespace

    def campaign(self, run: PlannedRun) -> Campaign:
        options = self.options
        return campaign(
            run, options.tokens, options.gpu_mtbf_hours, options.save_seconds, options.restart_seconds, options.price
        )


def add_commands(commands) -> None:
    """Add the commands to the subparsers of the command line."""
    command = commands.add_parser(
        "plan",
        help="what a model costs on a cluster: memory, step time, MFU, days; the best layout",
        description="Plan a training run by arithmetic alone: search all legal layouts of a model on a cluster, "
        "explain one, or compare plans with published runs.",
    )
    command.set_defaults(command=_plan)
    command.add_argument(
        "--model",
        metavar="MODEL",
        help=f"{', '.join(published())}; or by hand, layers=96,width=12288,heads=96,vocab=51200,context=2048",
    )
    command.add_argument("--cluster", metavar="CLUSTER", help="h100:16384, a100:64x8, ...: see minidist hardware")
    command.add_argument("--hardware", metavar="FILE", help="TOML file with hardware of your own")
    command.add_argument("--context", type=integer, metavar="N", help="tokens of a sequence (default: the model's)")
    command.add_argument("--batch", type=integer, metavar="N", help="sequences in a step")
    command.add_argument("--batch-tokens", metavar="N", help="tokens in a step, such as 16M")
    command.add_argument(
        "--layout",
        metavar="LAYOUT",
        help="explain this layout, such as dp=8,tp=8,pp=16,sp=1,virtual=6,zero=1,recompute=selective,micro_batch=1; "
        "without dp, it fills the cluster",
    )
    command.add_argument("--top", type=integer, default=5, metavar="N", help="layouts to list (default: 5)")
    numerics = command.add_argument_group("numbers")
    numerics.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="precision of matrix products (default: bf16, or fp16 where the chip lacks it)",
    )
    numerics.add_argument(
        "--numerics",
        choices=tuple(NUMERICS),
        default="mixed",
        help="bytes of each parameter, gradient and optimizer state: mixed 2 + 4 + 12 (default), half-gradients "
        "2 + 2 + 12 (ZeRO's 16), float32 4 + 4 + 8",
    )
    numerics.add_argument(
        "--attention", choices=ATTENTION, help="attention kernel (default: the one usual in the chip's time)"
    )
    run = command.add_argument_group("the whole run")
    run.add_argument(
        "--tokens", type=reader(read_count), default=TOKENS, metavar="N", help="tokens to train on (default: 15T)"
    )
    run.add_argument("--price", type=real, metavar="X", help="price of a GPU hour, in any currency")
    run.add_argument(
        "--gpu-mtbf-hours",
        type=real,
        default=llama3_gpu_mtbf_hours(),
        metavar="X",
        help=f"mean time between failures of one GPU (default: Llama 3's, {llama3_gpu_mtbf_hours():,.0f})",
    )
    run.add_argument(
        "--save-seconds", type=real, default=60.0, metavar="X", help="how long a save stops training (default: 60)"
    )
    run.add_argument(
        "--restart-seconds",
        type=real,
        default=300.0,
        metavar="X",
        help="time from a failure until training goes on (default: 300)",
    )
    command.add_argument(
        "--validate", action="store_true", help="compare plans with published runs: published, ours, error"
    )
    command.add_argument("--json", metavar="PATH", help="write the numbers to this file; - for standard output")
    _add_explore(commands)


def _plan(options) -> int:
    check_outputs({"json": options.json})
    console = console_of(options)
    if options.validate:
        if given := [f"--{name}" for name in ("model", "cluster", "layout") if getattr(options, name) is not None]:
            raise ValueError(f"--validate plans published runs, each as it was: leave out {' and '.join(given)}")
        compared = compare_all()
        told, content = validation_tables(compared), validation_numbers(compared)
    else:
        asked = _asked(options)
        told, content = _explained(asked) if options.layout else _found(asked)
        told.insert(0, summary(asked.costs, asked.batch))
    with written_last(console, json_output(options.json, content)):
        for one in told:
            console.print(one)
    return 1 if content.get("layouts") == [] else 0


def _asked(options) -> Asked:
    """Check the flags and return the plan that they ask for."""
    for flag, value, example in (("model", options.model, "llama3-8b"), ("cluster", options.cluster, "h100:8")):
        if value is None:
            raise ValueError(f"--{flag} is missing: name one, such as --{flag} {example}; or --validate")
    known = load(options.hardware)
    model, cluster = model_of(options.model), ClusterSpec.parse(options.cluster, known)
    if options.context is not None:
        model = replace(model, context=options.context)
    if (options.batch is None) == (options.batch_tokens is None):
        raise ValueError(
            "give the size of a step either with --batch SEQUENCES or with --batch-tokens TOKENS, such as 16M"
        )
    batch = options.batch if options.batch is not None else sequences_of(options.batch_tokens, model.context)
    for flag in ("batch", "top", "price", "save_seconds", "restart_seconds"):
        value = getattr(options, flag)
        if value is not None and value <= 0 and not (value == 0 and flag == "restart_seconds"):
            raise ValueError(f"--{flag.replace('_', '-')} must be above 0, got {value:g}")
    if batch > MOST_SEQUENCES:
        raise ValueError(f"a step may have at most {MOST_SEQUENCES:,} sequences, got {batch:,}")
    precision = options.precision or ("bf16" if "bf16" in cluster.accelerator.flops else "fp16")
    peak_flops(cluster.accelerator, precision)  # raises if the chip lacks it
    return Asked(StepCosts(model, cluster, precision, NUMERICS[options.numerics]), batch, options)


def _explained(asked: Asked) -> tuple[list, dict]:
    """Plan one layout; return what to print and its numbers."""
    options, costs = asked.options, asked.costs
    layout = PlannedLayout.parse(options.layout, costs.cluster.world_size)
    if options.attention:
        layout = replace(layout, attention=options.attention)
    run = plan_run(costs, layout, asked.batch)
    whole = asked.campaign(run)
    ways = what_would_help(costs, run)
    numbers = layout_numbers(costs, run, whole)
    numbers["changes"] = {name: layout_numbers(costs, other, asked.campaign(other)) for name, other in ways}
    told = [*explanation(run, whole, ways), memory_of_others(run, costs.numerics)]
    return told, _head(asked) | {"layouts": [numbers]}


def _found(asked: Asked) -> tuple[list, dict]:
    """Search all layouts; return what to print and the numbers of the best."""
    costs = asked.costs
    found = search(costs, asked.batch, asked.options.top, PlannedLayout(attention=asked.options.attention or ""))
    numbers = {"legal": found.legal, "planned": found.planned, "seconds": found.seconds}
    if not found.best:
        smallest = [layout_numbers(costs, found.smallest, asked.campaign(found.smallest))] if found.smallest else []
        told = [no_layout(costs, asked.batch, found)]
        return told, _head(asked) | {"search": numbers, "layouts": [], "smallest": smallest}
    wholes = [asked.campaign(run) for run in found.best]
    layouts = [layout_numbers(costs, run, whole) for run, whole in zip(found.best, wholes, strict=True)]
    told = [best_table(found, wholes), *explanation(found.best[0], wholes[0], [])]
    return told, _head(asked) | {"search": numbers, "layouts": layouts}


def _head(asked: Asked) -> dict:
    costs = asked.costs
    return {
        "model": costs.model.name,
        "parameters": costs.model.parameters,
        "active_parameters": costs.model.active_parameters,
        "cluster": str(costs.cluster),
        "gpus": costs.cluster.world_size,
        "batch": asked.batch,
        "context": costs.model.context,
        "batch_tokens": asked.batch * costs.model.context,
        "precision": costs.machine.precision,
        "memory_limit_bytes": costs.cluster.accelerator.memory,
    }


def layout_numbers(costs: StepCosts, run: PlannedRun, whole: Campaign) -> dict:
    """Return the numbers of one layout: times in seconds, memory in bytes of one GPU."""
    spread = spread_of(family_of(run.layout.zero == 3))
    return {
        "layout": str(run.layout),
        **{name: getattr(run, name) for name in ("fits", "step_seconds", "mfu", "hfu")},
        "mfu_all_pairs": run.utilization("full"),  # with scores that the causal mask hides
        "mfu_causal": run.utilization("causal"),
        "tokens_per_second": run.tokens_per_second,
        "published_runs": asdict(spread)
        | {"step_seconds": [run.step_seconds * spread.low, run.step_seconds * spread.high]},
        "memory_bytes": run.memory.total,
        "tflops_per_gpu": run.mfu * run.peak_flops / run.cluster.world_size / 1e12,
        "micro_batches": run.layout.micro_batches(run.batch),
        "step_seconds_parts": asdict(run.time),
        "compute_seconds_by_phase": costs.phases(run.layout, run.batch),
        "memory_bytes_parts": asdict(run.memory),
        "sent": [
            {
                "axis": sent.axis,
                "collective": sent.collective,
                "ranks": sent.group.size,
                "leaves_node": sent.group.leaves_node,
                "bytes": sent.nbytes,
                "seconds": sent.seconds,
                "exposed_seconds": sent.exposed,
            }
            for sent in run.sent
        ],
        "whole_run": asdict(whole),
    }


def validation_numbers(compared: list[Comparison]) -> dict:
    """Return every published figure with the planned one, and the errors by family of systems and figure."""
    runs = [
        {name: getattr(one.run, name) for name in ("name", "source", "note", "layout", "cluster")}
        | {
            "family": one.family,
            "problem": one.problem,
            "figures": {
                figure.name: {"published": figure.published, "planned": figure.planned, "error": figure.error}
                for figure in one.figures
            },
        }
        for one in compared
    ]
    return {
        "runs": runs,
        "errors": {
            family: {name: asdict(summarize(figures)) for name, figures in figures_of(compared, family).items()}
            for family in FAMILIES
        },
    }


def _add_explore(commands) -> None:
    command = commands.add_parser(
        "explore", help="what training a model would cost: a page of sliders", description=EXPLORE
    )
    command.set_defaults(command=_explore)
    command.add_argument(
        "--html", metavar="FILE", default="explorer.html", help="the page, for any browser (default: explorer.html)"
    )
    command.add_argument(
        "--models", metavar="NAMES", help="plan these alone, separated by commas, such as 7b,llama3-405b"
    )
    command.add_argument(
        "--shape", metavar="MODEL", help="a model of your own, layers=32,width=4096,heads=32,vocab=32000,context=2048"
    )
    command.add_argument(
        "--positions",
        metavar="SLIDER=N,N;...",
        default="",
        help="other positions of sliders, such as gpus=24,48;tp=1,3",
    )
    command.add_argument("--gpu", metavar="NAME", default="h100", help="h100, h200 or a100 (default: h100)")


def _explore(options) -> int:
    from minidist.show.explorer.choices import CHOICES
    from minidist.show.explorer.page import explore

    check_outputs({"html": options.html})
    named = options.models.split(",") if options.models else [] if options.shape else [*CHOICES]
    models = (*([options.shape] if options.shape else []), *named)
    columns = TextColumn("planning {task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def planned(model: str, total: int) -> None:
            progress.update(task, advance=1, total=total, description=model)

        made = explore(models, options.gpu, planned, options.positions)
        progress.update(task, description="the page")
        page = made.html()
    told = f"page: {options.html} ({made.layouts:,} layouts, {len(page) / 1e6:.1f} MB; open it in a browser)"
    output = Output("html", options.html, lambda path: path.write_text(page, encoding="utf-8"), told)
    write_outputs(terminal_console(), output)
    return 0
