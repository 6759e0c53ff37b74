"""``minidist failures``: how often a cluster fails, how often to save, and what is left of the time."""

from dataclasses import dataclass
from math import inf

from rich.table import Table

from minidist.cli.flags import integer, real
from minidist.cli.output import check_outputs, console_of, json_output, titled, written_last
from minidist.plan.failing_run import Machines, TimeSpent, simulate
from minidist.plan.goodput import (
    GPUS,
    best_interval,
    cluster_mtbf,
    daly_interval,
    expected_failures,
    first_order_waste,
    goodput,
    llama3_gpu_mtbf_hours,
    no_failure_probability,
    speed_with_spares,
    young_interval,
)
from minidist.plan.units import DAY, HOUR, in_time

AT_LEAST_ZERO = ("save_seconds", "restart_seconds", "detection_seconds", "asynchronous", "spares", "repair_hours")
MORE_THAN_ZERO = ("gpus", "gpus_per_node", "gpu_mtbf_hours", "interval", "simulate")


@dataclass(frozen=True)
class Case:
    """A way to deal with failed nodes, and its goodput by formula and by simulation (None: not simulated)."""

    name: str
    goodput: float
    spent: TimeSpent | None

    def as_dict(self) -> dict:
        simulation = self.spent and {
            "goodput": self.spent.share("useful"),
            "failures": self.spent.failures,
            "microseconds": self.spent.parts,
        }
        return {"nodes": self.name, "goodput": self.goodput, "simulation": simulation}


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "failures",
        help="how often a cluster fails, how often to save, what time is useful",
        description="Compute how often a cluster fails, how often a run should save, and which share of its time is "
        "useful. With --simulate, simulate the run beside the formulas.",
    )
    command.set_defaults(command=_failures)
    cluster = command.add_argument_group("cluster")
    cluster.add_argument(
        "--gpus",
        type=integer,
        default=GPUS,
        metavar="N",
        help=f"GPUs of the run; one failure stops all (default: {GPUS:,}, those of Llama 3 405B)",
    )
    cluster.add_argument(
        "--gpu-mtbf-hours",
        type=real,
        default=llama3_gpu_mtbf_hours(),
        metavar="X",
        help="mean time between failures of one GPU and its share of everything else (default: that of Llama 3 405B, "
        f"{llama3_gpu_mtbf_hours():,.0f})",
    )
    cluster.add_argument(
        "--gpus-per-node", type=integer, default=8, metavar="N", help="GPUs that a repair takes out (default: 8)"
    )
    cluster.add_argument(
        "--spares", type=integer, metavar="N", help="nodes that stand by, with --repair-hours (default: 0)"
    )
    cluster.add_argument(
        "--repair-hours",
        type=real,
        metavar="X",
        help="from a node's failure until it is back (default: a failed node is replaced at once)",
    )
    run = command.add_argument_group("run")
    run.add_argument(
        "--save-seconds", type=real, default=60.0, metavar="X", help="how long a save stops training (default: 60)"
    )
    run.add_argument(
        "--asynchronous",
        type=real,
        default=0.0,
        metavar="X",
        help="seconds that a save takes to write in the background before it counts (default: 0)",
    )
    run.add_argument("--interval", type=real, metavar="X", help="seconds of training between saves (default: Daly's)")
    run.add_argument(
        "--detection-seconds", type=real, default=0.0, metavar="X", help="time until a failure is known (default: 0)"
    )
    run.add_argument(
        "--restart-seconds", type=real, default=300.0, metavar="X", help="then, until training goes on (default: 300)"
    )
    command.add_argument("--simulate", type=real, metavar="DAYS", help="simulate a run for this many days")
    command.add_argument("--seed", type=integer, default=0, metavar="N", help="seed of the simulation (default: 0)")
    command.add_argument("--json", metavar="PATH", help="write the results to this file; - for standard output")


def _failures(options) -> int:
    _check(options)
    check_outputs({"json": options.json})
    mtbf = cluster_mtbf(options.gpu_mtbf_hours, options.gpus) * HOUR
    interval = options.interval or best_interval(mtbf, options.save_seconds, options.asynchronous)
    cases = _cases(options, mtbf, interval)
    estimates = {
        "mtbf_seconds": mtbf,
        "failures_per_day": expected_failures(mtbf, DAY),
        "no_failure_in_a_day": no_failure_probability(mtbf, DAY),
        "young_seconds": young_interval(mtbf, options.save_seconds),
        "daly_seconds": daly_interval(mtbf, options.save_seconds),
        "interval_seconds": interval,
        "first_order_waste": first_order_waste(
            mtbf, interval, options.save_seconds, _recovery(options), options.asynchronous
        ),
    }
    console = console_of(options)
    content = estimates | {"cases": [case.as_dict() for case in cases]}
    with written_last(console, json_output(options.json, content)):
        console.print(_table(options, estimates, cases))
        if options.simulate is not None:
            console.print(_where_time_went(cases))
    return 0


def _check(options) -> None:
    """Check the flags, so that errors name them; the functions that compute with them check the rest."""
    for name in AT_LEAST_ZERO + MORE_THAN_ZERO:
        value, positive = getattr(options, name), name in MORE_THAN_ZERO
        if value is not None and not (0 < value < inf or (value == 0 and not positive)):
            flag, allowed = name.replace("_", "-"), "more than 0" if positive else "0 or more"
            raise ValueError(f"--{flag} must be {allowed} and finite, got {value:g}")
    if options.seed < 0:
        raise ValueError(f"--seed must not be negative, got {options.seed}")
    if options.save_seconds == options.asynchronous == 0 and options.interval is None:
        raise ValueError("with --save-seconds 0 there is no best interval: name one with --interval")
    if options.interval is not None and options.interval < options.asynchronous:
        raise ValueError(
            f"--interval must be at least --asynchronous ({options.asynchronous:g}), got {options.interval:g}: only "
            "one save is written at a time"
        )
    if options.spares is not None and options.repair_hours is None:
        raise ValueError("--spares needs --repair-hours: without it a failed node is replaced at once")


def _recovery(options) -> float:
    return options.detection_seconds + options.restart_seconds


def _cases(options, mtbf: float, interval: float) -> list[Case]:
    """Return the case of nodes replaced at once; with --repair-hours, also both choices of a run without a spare."""
    nodes = _nodes(options)
    useful = goodput(mtbf, interval, options.save_seconds, _recovery(options), options.asynchronous)
    repair, spares = (options.repair_hours or 0.0) * HOUR, options.spares or 0
    cases = [("replaced at once", nodes, 0.0)]
    if options.repair_hours is not None:
        cases += [("waits for a repair", nodes, repair), ("goes on smaller", 1, repair)]
    return [
        Case(
            name,
            useful * speed_with_spares(mtbf, time, spares, nodes, least),
            options.simulate
            and simulate(
                Machines(
                    mtbf=mtbf,
                    interval=interval,
                    pause=options.save_seconds,
                    write=options.asynchronous,
                    detection=options.detection_seconds,
                    restart=options.restart_seconds,
                    machines=nodes,
                    least=least,
                    spares=spares,
                    repair=time,
                ),
                options.simulate * DAY,
                options.seed,
            ),
        )
        for name, least, time in cases
    ]


def _nodes(options) -> int:
    if options.gpus > options.gpus_per_node and options.gpus % options.gpus_per_node:
        raise ValueError(f"--gpus-per-node {options.gpus_per_node} does not divide --gpus {options.gpus}")
    return max(1, options.gpus // options.gpus_per_node)


def _table(options, estimates: dict[str, float], cases: list[Case]) -> Table:
    spent = cases[0].spent
    table = titled(
        f"failures of {options.gpus:,} GPU{'s' * (options.gpus != 1)}", [""], ["formula"] + ["simulation"] * bool(spent)
    )
    if spent:
        failures = f"{spent.failures / options.simulate:,.3g}"
        mtbf = in_time(options.simulate * DAY / spent.failures) if spent.failures else "none failed"
    else:
        failures = mtbf = ""

    def row(name: str, formula: str, simulation: str = "") -> None:
        table.add_row(name, formula, *[simulation] * bool(spent))

    row("mean time between failures", in_time(estimates["mtbf_seconds"]), mtbf)
    row("failures per day", f"{estimates['failures_per_day']:,.3g}", failures)
    row("probability of a day without a failure", f"{estimates['no_failure_in_a_day']:.2%}")
    row("interval: Young", in_time(estimates["young_seconds"]))
    row("interval: Daly", in_time(estimates["daly_seconds"]))
    row("interval: chosen", in_time(estimates["interval_seconds"]))
    row("waste, first order", f"{estimates['first_order_waste']:.2%}")
    simulated = [case.spent.share("useful") if case.spent else None for case in cases]
    for kind, of in (("waste", lambda share: 1 - share), ("goodput", lambda share: share)):
        for case, share in zip(cases, simulated, strict=True):
            name = f"{kind}, failed node: {case.name}" if case is cases[0] else f"{kind}, run {case.name}"
            row(name, f"{of(case.goodput):.2%}", "" if share is None else f"{of(share):.2%}")
    return table


def _where_time_went(cases: list[Case]) -> Table:
    table = titled("where the time went, simulated", [""], [case.name for case in cases])
    simulated = [case.spent for case in cases if case.spent]
    for part in simulated[0].parts:
        table.add_row(part, *(f"{spent.share(part):.2%}" for spent in simulated))
    table.add_row("failures", *(f"{spent.failures:,}" for spent in simulated))
    return table
