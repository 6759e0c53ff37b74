"""Find a scaling law: train several sizes at several budgets, fit, predict a larger budget, train that.

    python benchmarks/scaling.py [--json minidist/plan/scaling/experiment.json] [--png scaling.png]

About 8 minutes on two cores. Each budget is C = 6 N D with all parameters N; so a larger model sees fewer tokens. The
learning rate is 0.2 / width, warm-up takes a tenth of a run and a cosine ends with it: both follow the run, because a
rule that suits one size or length alone would bend the curves. The losses do not depend on the layout.

No 64 bytes of the held-out text occur in training: otherwise memorised text would count as learned (Lee et al., 2022,
arXiv 2107.06499). The runs in the JSON file used another text, the topics of Python's ``help()`` with each line once.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.nn.data import load_corpus
from minidist.nn.gpt import GPT
from minidist.plan.scaling.experiment import Experiment, Run, by_budget
from minidist.plan.scaling.fit import Fit, IsoFlop
from minidist.show.figures.scaling import draw
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

WIDTHS = {  # budget, FLOPs -> widths around the best one
    4e10: (10, 14, 18, 24, 34),
    8e10: (14, 18, 24, 32, 44),
    1.6e11: (18, 24, 32, 42, 56),
    3.2e11: (22, 30, 40, 52, 70),
}
NEXT = 3  # times the largest budget
AROUND = (0.5, 1.0, 2.0)  # parameters to train there, over the predicted ones
LARGEST_WIDTH = 128  # to choose from
SETTINGS = {"heads": 2, "context": 32, "global_batch": 16, "micro_batch": 8, "clip": 0.3}


def config_of(width: int, budget: float, layers: int) -> tuple[TrainConfig, int]:
    """Return the settings of a run with this budget, and its number of parameters."""
    config = TrainConfig(width=width, layers=layers, **SETTINGS)
    parameters = sum(parameter.data.size for parameter in GPT(config.model).parameters())
    steps = round(budget / (6 * parameters * config.tokens_per_step))
    schedule = {"lr": 0.2 / width, "steps": steps, "warmup": steps // 10}
    return replace(config, **schedule), parameters


def nearest_width(parameters: float, layers: int) -> int:
    """Return the width whose model comes closest to this number of parameters."""
    widths = range(SETTINGS["heads"], LARGEST_WIDTH + 1, SETTINGS["heads"])
    return min(widths, key=lambda width: abs(config_of(width, 1e12, layers)[1] - parameters))


def runs_table(found: Experiment) -> Table:
    """Tabulate every run next to the fit; those of the next budget, next to the interval predicted for them."""
    table = Table(title="loss on held-out text, nats per byte", title_justify="left")
    for heading in ("C = 6 N D", "width", "N", "D", "D / text", "products / C", "measured", "fitted", "90 % interval"):
        table.add_column(heading, justify="right")
    for runs in (found.runs, found.next_runs):
        for budget, each in by_budget(runs).items():
            for one in each:
                low, high = found.fit.predicted(one.parameters, one.tokens)
                table.add_row(
                    f"{budget:.3g}",
                    str(one.width),
                    f"{one.parameters:,}",
                    f"{one.tokens:,}",
                    f"{one.tokens / found.text_tokens:.1f}",
                    f"{one.flops / one.training.flops:.2f}",
                    f"{one.loss:.3f}",
                    f"{found.fit.law.loss(one.parameters, one.tokens):.3f}",
                    f"{low:.3f} to {high:.3f}" if runs is found.next_runs else "",
                )
            table.add_section()
    return table


def law_table(fit: Fit) -> Table:
    """Tabulate the constants, and the exponent of the best size."""
    table = Table("", title=f"L = E + A / N^alpha + B / D^beta, {len(fit.runs)} runs", title_justify="left")
    for heading in ("fitted", "90 % interval"):
        table.add_column(heading, justify="right")
    for name in ("E", "A", "alpha", "B", "beta", "size_exponent"):
        low, high = fit.interval(lambda law, name=name: getattr(law, name))
        table.add_row(name.replace("_", " "), f"{getattr(fit.law, name):.3g}", f"{low:.3g} to {high:.3g}")
    return table


def sizes_table(found: Experiment, curves: tuple[IsoFlop, ...]) -> Table:
    """Tabulate each budget's best size: by its parabola, by the power law through the parabolas, and by the law."""
    table = Table(title="best parameters of a budget", title_justify="left")
    headings = ("C", "parabola", "power law", "fitted law", "90 % interval", "tokens / parameter")
    for heading in headings:
        table.add_column(heading, justify="right")
    for curve in curves:
        best = found.fit.law.optimum(curve.flops)
        low, high = found.fit.interval(lambda law, flops=curve.flops: law.optimum(flops).parameters)
        table.add_row(
            f"{curve.flops:.3g}",
            f"{curve.parameters:,.0f}" if curve.is_inside else f"({curve.parameters:,.0f}: outside)",
            f"{found.best_size(curve.flops):,.0f}",
            f"{best.parameters:,.0f}",
            f"{low:,.0f} to {high:,.0f}",
            f"{best.tokens_per_parameter:.0f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", default="dp=2", help="of every run; no loss depends on it (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=1, help="of every model (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the runs to this file")
    parser.add_argument("--png", metavar="PATH", help="draw them")
    options = parser.parse_args()
    layout, console = Layout.parse(options.layout), Console(width=120, highlight=False)

    def trained(budget: float, widths) -> list[Run]:
        found = []
        for width in widths:
            config, parameters = config_of(width, budget, options.layers)
            ranks = run(cluster, config, layout, RunOptions(validate=True)).ranks
            tokens, flops = config.steps * config.tokens_per_step, sum(sum(rank.flops.values()) for rank in ranks)
            found.append(Run(budget, width, parameters, tokens, flops, ranks[0].validation_loss))
            console.print(f"{budget:.3g} FLOPs, width {width}: {found[-1].loss:.4f}")
        return found

    text_tokens = len(load_corpus(None, SETTINGS["context"]).training)
    with md.Cluster(layout.world_size) as cluster:
        runs = [one for budget, widths in WIDTHS.items() for one in trained(budget, widths)]
        before = Experiment(options.layers, tuple(runs), (), text_tokens)
        console.print(law_table(before.fit))
        backtest = before.backtest()
        for one in backtest.next_runs:
            low, high = backtest.fit.predicted(one.parameters, one.tokens)
            console.print(f"width {one.width} without its budget: {low:.3f} to {high:.3f}, measured {one.loss:.3f}")
        budget = NEXT * max(WIDTHS)
        best = before.fit.law.optimum(budget)
        low, high = before.fit.predicted(best.parameters, best.tokens)
        console.print(
            f"predicted for {budget:.3g} FLOPs: {best.parameters:,.0f} parameters, {best.tokens:,.0f} tokens, "
            f"loss {best.loss:.3f} ({low:.3f} to {high:.3f})"
        )
        next_runs = trained(budget, [nearest_width(share * best.parameters, options.layers) for share in AROUND])
    found = Experiment(options.layers, tuple(runs), tuple(next_runs), text_tokens)
    console.print(runs_table(found))
    console.print(
        sizes_table(found, (*found.curves, *Experiment(options.layers, found.next_runs, (), text_tokens).curves))
    )
    if options.json:
        found.write(options.json)
    if options.png:
        draw(found).savefig(options.png, dpi=110)


if __name__ == "__main__":
    main()
