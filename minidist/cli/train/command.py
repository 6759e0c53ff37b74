"""The command ``minidist train``: from the flags to a run, and to its files and tables."""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from minidist.cli import INTERRUPTED
from minidist.cli.flags import HelpByGroup, add_config, add_fields, config_of, defaults, integer, layout_of
from minidist.cli.output import Output, check_outputs, console_of, json_output, written_last
from minidist.cli.train.as_if import Wanted, add_as_if, as_if_of, on_cluster, print_on_cluster
from minidist.cli.train.progress import Narrator, add_live, narrating, watching
from minidist.cli.train.resilience import (
    add_checkpoints,
    add_elastic,
    begun_from,
    elasticity_of,
    faults_of,
    interruptions_table,
    peer_copies_of,
    resumed,
    saving_of,
    stopping,
)
from minidist.cli.train.summary import compare_with_library, print_summary
from minidist.cli.train.tables import print_tables, utilization_of
from minidist.comm.runtime.clusters import job_size, new_cluster
from minidist.course.learner.implementations import (
    Implementation,
    implementations_as_dict,
    implementations_of,
    overriding,
    print_implementations,
    training_on,
)
from minidist.nn.tokenizer import open_tokenizer
from minidist.plan.memory_check import check_memory
from minidist.train.checkpoint.hugging_face import check_tensors
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring.evaluate import prompt_of
from minidist.train.resilience.elastic import Elasticity, Interruption, run_elastic
from minidist.train.result import Run, RunOptions
from minidist.train.rules import CHECKS, check, of_options
from minidist.train.trainer import run

USUAL = (
    *("--dp", "--zero", "--tp", "--cp", "--pp", "--layers", "--width", "--steps", "--precision"),
    *("--save", "--resume", "--watch", "--config"),
)


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "train", help="train in one layout", description="Train in one layout.", add_help=False
    )
    command.add_argument("-h", "--help", action=HelpByGroup, usual=USUAL)
    command.add_argument(
        "--config",
        metavar="FILE",
        help="read flags from this TOML file, or from what --json wrote; those on the command line come first",
    )
    command.set_defaults(command=_train, on_ranks=True)
    add_fields(command, Layout, **defaults(Layout))
    add_checkpoints(command)
    add_elastic(command)
    _add_watches(command)
    add_as_if(command)
    add_live(command)
    command.add_argument(
        "--loader",
        type=integer,
        default=0,
        metavar="N",
        help="let a process per rank prepare its micro-batches, up to N steps ahead (default: 0, none)",
    )
    output = command.add_argument_group("output")
    output.add_argument(
        "--sample",
        type=integer,
        default=0,
        metavar="N",
        help="print N tokens that the trained model generates after 'The '",
    )
    output.add_argument(
        "--noise-scale",
        type=integer,
        default=0,
        metavar="K",
        help="measure the gradient noise scale every K steps: the batch size up to which larger batches help",
    )
    output.add_argument(
        "--tables",
        action="store_true",
        help="print all counts: traffic, collectives, memory, matrix products, FLOP/s, where the time went",
    )
    output.add_argument("--json", metavar="PATH", help="write the results to this file; - for standard output")
    output.add_argument(
        "--trace", metavar="PATH", help="write a trace of the last steps to this file, for https://ui.perfetto.dev"
    )
    output.add_argument("--png", metavar="PATH", help="draw the last steps to this file")
    add_config(command, **defaults(TrainConfig))


def _add_watches(command: argparse.ArgumentParser) -> None:
    """Add the flags that watch training: for slow ranks, and for wrong numbers."""
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
        help="check the numbers every K steps, and end the run if they are wrong; 0 for never (default: 0)",
    )
    group.add_argument(
        "--check-by",
        choices=CHECKS,
        default="auto",
        help="vote compares replicas; replay also computes every step again, on another rank, and so finds errors that "
        "all replicas share; auto replays if fewer than three ranks hold the same data (default: auto)",
    )


@dataclass(frozen=True)
class Request:
    """A run as the flags ask for it, checked before any rank starts.

    Attributes:
        first: step that it begins with.
        wanted: cluster to replay it on (``--as-if``), or None.
        elasticity: how to go on after a failure (``--on-failure``); None to end.
        implementations: those of a learner, to run in place of the library's.
    """

    config: TrainConfig
    layout: Layout
    options: RunOptions
    first: int
    wanted: Wanted | None
    elasticity: Elasticity | None
    implementations: list[Implementation]

    @property
    def rank_function(self) -> Callable | None:
        return training_on(self.implementations) if self.implementations else None


def _train(options) -> int:
    console = console_of(options)
    request = _checked(options, console)
    result, narrator, interruptions = _run(options, request)
    layout, wanted, implementations = result.layout, request.wanted, request.implementations
    logs = [rank.log for rank in result.ranks]
    cluster, problem = None, ""
    if wanted is not None:
        try:
            with overriding(implementations):  # the run is replayed here, after its ranks have ended
                cluster = on_cluster(wanted, result)
            logs = cluster.replayed.logs
        except ValueError as error:  # this must not cost the run's own results
            problem = f"--as-if {wanted.cluster}: {error}"
    content = result.as_dict() | implementations_as_dict(implementations, [result])
    content["init_from"] = options.init_from
    used = utilization_of(result)
    content["utilization"] = used and used.as_dict()
    content["stragglers"] = [asdict(straggler) for straggler in narrator.stragglers]
    content["as_if"] = cluster and cluster.as_dict()
    content["interruptions"] = [interruption.as_dict() for interruption in interruptions]
    files = (
        json_output(options.json, content),
        Output(
            "trace",
            options.trace,
            lambda path: _write_trace(path, logs),
            f"trace of the last steps: {options.trace} (open it at https://ui.perfetto.dev)",
        ),
        Output(
            "png",
            options.png,
            lambda path: _draw(path, logs, layout, wanted),
            f"picture of the last steps: {options.png}{_nothing_overlaps(result)}",
        ),
    )
    with written_last(console, *files):
        if options.tables and result.steps_here:
            print_tables(console, result, used)
        print_summary(console, result, used)
        if cluster is not None:
            print_on_cluster(console, cluster)
        if problem:
            console.print(problem, soft_wrap=True)
        for straggler in narrator.stragglers:
            console.print(str(straggler))
        if options.rebalance and result.steps_here:
            counts = [rank.micro_batch_counts[-1] for rank in result.ranks[:: layout.cp * layout.tp]]
            console.print(f"micro-batches of each data-parallel rank in the last step: {', '.join(map(str, counts))}")
        if interruptions:
            console.print(interruptions_table(interruptions))
        if implementations:
            print_implementations(console, implementations, [result])
            content["same_as_library"] = compare_with_library(
                console, result, content["implementations"], request.options, request.rank_function
            )
    if result.ranks[0].save_errors or problem:
        return 2
    taken = len(result.ranks[0].losses)
    if taken < result.config.steps:
        console.print(
            f"ended by SIGTERM after step {taken} of {result.config.steps}: --resume {options.save} goes on",
            soft_wrap=True,
        )
        return INTERRUPTED
    return 1 if content.get("same_as_library") is False else 0


def _checked(options, console: Console) -> Request:
    """Check the flags, and print how a checkpoint's layout and versions differ from those here."""
    begun = begun_from(options)
    checkpoint = resumed(options.resume, options.tokenizer)
    config = config_of(options, checkpoint.config if checkpoint else begun)
    given = layout_of(options)
    layout = given or (checkpoint.layout if checkpoint else Layout())
    config.check(layout)
    check_memory(config, layout)
    if begun is not None:
        check_tensors(Path(options.init_from), config.model)
    wanted = as_if_of(options, config, layout)
    if wanted is not None:
        layout = wanted.on_nodes(layout if given else replace(layout, node_size=0))  # a checkpoint's nodes are not kept
    if options.sample < 0:
        raise ValueError(f"--sample must not be negative, got {options.sample}")
    if options.sample and not len(open_tokenizer(config.tokenizer).encode(prompt_of(config))):
        raise ValueError(f"--sample continues 'The', which has no token in {config.tokenizer}: leave it out")
    files = {flag: getattr(options, flag) for flag in ("json", "trace", "png")}
    check_outputs(files, config.text, config.tokenizer, save=options.save)
    implementations = implementations_of(options.impl) if options.impl else []
    if checkpoint is not None:
        with overriding(implementations):  # files are checked here, before any rank starts
            checkpoint.check(config)
        for line in checkpoint.notes(layout, config.backend):
            console.print(line, soft_wrap=True)
    first = checkpoint.manifest.progress.step if checkpoint else 0
    run_options = RunOptions(
        progress=True,
        saving=saving_of(options, checkpoint),
        loader=options.loader,
        resume=checkpoint and str(checkpoint.folder),
        init_from=options.init_from,
        peer_copies=peer_copies_of(options, layout),
        faults=faults_of(options, config, layout, first),
        check_replicas=options.check_replicas,
        check_by=options.check_by,
        links=wanted and wanted.cluster.links,
        rebalance=options.rebalance,
        validate=True,
        sample=options.sample,
        noise_scale=options.noise_scale,
        trace=True,
        measure_peak=True,
    )
    check(of_options(config, layout, run_options))
    elasticity = elasticity_of(options, run_options)
    if wanted is not None and elasticity is not None and elasticity.on_failure == "shrink":
        raise ValueError(
            "--as-if needs as many ranks at the end as the cluster has accelerators: add --on-failure restart"
        )
    if job_size() is not None and elasticity is not None:
        raise ValueError(
            "the failure of a rank ends an MPI job: leave out --elastic, add --save, and start again with --resume"
        )
    if job_size() not in (None, layout.world_size):
        ranks = f"{layout.world_size} rank" + "s" * (layout.world_size > 1)
        raise ValueError(f"{layout} has {ranks}, but the MPI job has {job_size()}: mpiexec -n {layout.world_size}")
    return Request(config, layout, run_options, first, wanted, elasticity, implementations)


def _run(options, request: Request) -> tuple[Run, Narrator, list[Interruption]]:
    """Train, with progress on standard error; return the run, its narrator, and its interruptions."""
    config, layout, errors = request.config, request.layout, Console(stderr=True)
    with (
        stopping(request.options.saving) as stop_file,
        watching(options.watch, config, layout, request.first, errors) as (live, orders),
        narrating(errors, config, layout, request.first, live) as narrator,
        overriding(request.implementations),
    ):
        run_options = replace(request.options, live=orders, stop_file=stop_file)
        calls = narrator.on_step, request.rank_function, narrator.on_event
        if request.elasticity is None:
            with new_cluster(layout.world_size) as cluster:
                return run(cluster, config, layout, run_options, *calls, options.patience), narrator, []
        result, interruptions = run_elastic(
            config, layout, run_options, request.elasticity, *calls, narrator.on_interruption
        )
        return result, narrator, interruptions


def _write_trace(path: Path, logs: list[list]) -> None:
    from minidist.show import perfetto

    perfetto.write(path, logs)


def _nothing_overlaps(result: Run) -> str:
    """Say why the picture shows no communication under backward, if the size of a bucket is the reason, else ""."""
    layout = result.layout
    if layout.dp == 1 or layout.zero or layout.sync != "overlapped":
        return ""
    sums = [row["calls"] for row in result.ranks[0].collectives if row["axis"] == "dp" and row["elements"] != 1]
    if sum(sums) != 1:
        return ""
    return " (one bucket holds all gradients, and waits for the end of backward: a smaller --bucket-mb lets it overlap)"


def _draw(path: Path, logs: list[list], layout: Layout, wanted: Wanted | None) -> None:
    """Draw what each rank did: the first pipeline as a grid of micro-batches, other layouts as lanes of spans."""
    from minidist.analysis.steps import slots_of
    from minidist.show.figures import pipelines, timeline

    if not any(logs):  # the checkpoint was of the last step
        raise ValueError("--png draws the last steps, but this run took none: leave it out")
    run = str(layout) if wanted is None else f"{layout}, as if on {wanted.cluster}"
    if layout.pp > 1:
        ranks = range(0, len(logs), layout.replicas * layout.tp)  # of the first pipeline
        slots = slots_of([logs[rank] for rank in ranks])
        pipelines.draw({run: slots}, "seconds", ranks).savefig(path, dpi=110)
    else:
        timeline.save(path, logs, f"the last steps of minidist train, {run}")
