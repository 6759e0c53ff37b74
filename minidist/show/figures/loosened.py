"""An experiment with looser steps, as a table and as two pictures: loss over bytes, and over time."""

from statistics import fmean

from rich.table import Table

from minidist.analysis.loosened import Experiment, Method
from minidist.show.figures.subplots import subplots
from minidist.show.palette import RANKS

DRAWN = (  # method, and style of its line
    ("data parallelism", "-"),
    ("top 1 %", "-"),
    ("top 1 %, no feedback", ":"),
    ("PowerSGD, rank 2", "-"),
    ("one step late", "--"),
    ("asynchronous", "-"),
    ("DiLoCo, every 40", "-"),
)


def table(experiment: Experiment) -> Table:
    """Return a table of methods: their costs, and the loss after equal steps, bytes and time, with the seeds' range."""
    seeds = len(experiment.methods[0].runs)
    result = Table(title=f"loss in nats per byte: mean of {seeds} seeds (lowest to highest)", title_justify="left")
    for column in headings(experiment):
        result.add_column(column, justify="left" if column == "method" else "right")
    for method in experiment.methods:
        result.add_row(*row(experiment, method))
    return result


def headings(experiment: Experiment) -> list[str]:
    """Return the headings of the cells of ``row``."""
    steps, megabytes, seconds = experiment.methods[0].steps, experiment.equal_bytes / 1e6, experiment.equal_seconds
    costs = ["kB sent a step", "seconds a step"]
    return ["method", *costs, f"held out, {steps} steps", f"{megabytes:.1f} MB", f"{seconds:.0f} s"]


def row(experiment: Experiment, method: Method) -> list[str]:
    """Return the cells of a method; a star marks losses of runs that ended too early for the comparison."""
    cells = [method.name, f"{method.bytes_per_step / 1e3:,.0f}", f"{method.seconds_per_step:.2f}"]
    cells.append(spread(method.validation_losses))
    for losses, reached in (experiment.after_bytes(method), experiment.after_seconds(method)):
        cells.append(spread(losses) + ("" if reached else " *"))
    return cells


def spread(losses: list[float]) -> str:
    return f"{fmean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"


def draw(experiment: Experiment):
    """Return a matplotlib Figure: the mean of the seeds as a line, their range as a band."""
    figure, (left, right) = subplots(11, 4.6, 1, 2, sharey=True)
    for (name, style), colour in zip(DRAWN, RANKS, strict=False):
        method = experiment.named(name)
        lowest, mean, highest = zip(
            *((min(some), fmean(some), max(some)) for some in zip(*method.curves(), strict=True)), strict=True
        )
        steps = range(1, method.steps + 1)
        for axes, unit in ((left, method.bytes_per_step / 1e6), (right, method.seconds_per_step)):
            places = [step * unit for step in steps]
            axes.plot(places, mean, style, color=colour, linewidth=1.5, label=name)
            axes.fill_between(places, lowest, highest, color=colour, alpha=0.15, linewidth=0)
    left.set(xscale="log", xlabel="MB that each worker has sent", ylabel="loss, nats per byte")
    right.set(xlabel="seconds, on four sites with slow links")
    right.legend(frameon=False, fontsize=9)
    return figure
