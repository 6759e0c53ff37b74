"""``minidist scaling``: the best size for a budget of FLOPs, and what another size costs, by published laws."""

from dataclasses import asdict

from rich.table import Table

from minidist.cli.flags import given, real
from minidist.cli.output import check_outputs, console_of, json_output, titled, written_last
from minidist.plan.scaling.laws import LAWS, ScalingLaw, Training, check, kaplan_optimum, overtraining
from minidist.plan.units import in_count

CHINCHILLA = 5.76e23  # FLOPs of Gopher, for which Hoffmann et al. 2022 sought the best model
LARGEST = 1e40  # most that a flag accepts: FLOPs of all computers for a very long time


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "scaling",
        help="compute-optimal parameters and tokens, and what over-training costs",
        description="Compute by published scaling laws which model is best for a budget of training FLOPs, or the loss "
        "of a model and how far it is over-trained. Laws were fitted to different texts and tokenizers: compare sizes "
        "and tokens between them, and losses only within one.",
    )
    command.set_defaults(command=_scaling)
    command.add_argument(
        "--flops", type=real, metavar="C", help="budget of training FLOPs, C = 6 N D (default: Chinchilla's)"
    )
    command.add_argument("--params", type=real, metavar="N", help="parameters of a model, with --tokens, as in 8e9")
    command.add_argument("--tokens", type=real, metavar="D", help="tokens that it is trained on, as in 15e12")
    command.add_argument("--json", metavar="PATH", help="write the results to this file; - for standard output")


def _scaling(options) -> int:
    named = given(flops=options.flops, params=options.params, tokens=options.tokens) or {"flops": CHINCHILLA}
    if set(named) not in ({"flops"}, {"params", "tokens"}):
        raise ValueError("give either a budget, such as --flops 5.76e23, or a run, such as --params 8e9 --tokens 15e12")
    check(**{f"--{name}": value for name, value in named.items()})
    for name, value in named.items():
        if not 1 <= value <= LARGEST:
            raise ValueError(f"--{name} must be from 1 to {LARGEST:g}, got {value:g}")
    check_outputs({"json": options.json})
    if flops := named.get("flops"):
        best = {"kaplan": kaplan_optimum(flops)}
        best |= {name: law.optimum(flops) for name, law in LAWS.items()}
        table = _budget(flops, best)
        content = {name: _numbers(run) for name, run in best.items()}
    else:
        runs = {name: _run(law, options.params, options.tokens) for name, law in LAWS.items()}
        table, content = _comparison(options.params, options.tokens, runs), runs
    console = console_of(options)
    with written_last(console, json_output(options.json, content)):
        console.print(table)
    return 0


def _numbers(run: Training) -> dict[str, float]:
    return asdict(run) | {"tokens_per_parameter": run.tokens_per_parameter}


def _run(law: ScalingLaw, parameters: float, tokens: float) -> dict:
    """Compare a run with the cheapest of the same loss; no break-even unless the cheapest model is larger."""
    found = overtraining(law, parameters, tokens)
    return {
        "loss": found.model.loss,
        "times_optimal_tokens": law.times_optimal_tokens(parameters, tokens),
        "cheapest": _numbers(found.cheapest),
        "overhead": found.overhead,
        "break_even_tokens": found.break_even_tokens if parameters < found.cheapest.parameters else None,
    }


def _budget(flops: float, best: dict[str, Training]) -> Table:
    columns = ["law"], ("N", "D", "D / N", "loss, nats / token")
    table = titled(f"best N parameters and D tokens for C = {flops:.3g} FLOPs", *columns)
    for name, run in best.items():
        ratio = f"{run.tokens_per_parameter:,.3g}"
        table.add_row(name, in_count(run.parameters), in_count(run.tokens), ratio, f"{run.loss:.3f}")
    return table


def _comparison(parameters: float, tokens: float, runs: dict[str, dict]) -> Table:
    title = (
        f"N = {in_count(parameters)} on D = {in_count(tokens)} tokens: D / N = {tokens / parameters:,.4g}, "
        f"C = {Training(parameters, tokens, 0.0).flops:.3g} FLOPs"
    )
    table = titled(title, [""], runs)
    rows = {
        "loss, nats / token": lambda run: f"{run['loss']:.3f}",
        "D / best D for this N": lambda run: f"{run['times_optimal_tokens']:,.3g}",
        "cheapest for this loss: N": lambda run: in_count(run["cheapest"]["parameters"]),
        "cheapest for this loss: D": lambda run: in_count(run["cheapest"]["tokens"]),
        "C above the cheapest": lambda run: f"{run['overhead']:.0%}",
        "tokens of inference until even": lambda run: (
            "" if (even := run["break_even_tokens"]) is None else in_count(even)
        ),
    }
    for heading, cell in rows.items():
        table.add_row(heading, *map(cell, runs.values()))
    return table
