"""``minidist verify --matrix``: runs layouts that cover every pair of settings, and shows the outcomes as a grid."""

from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from minidist.cli.output import NOT_REPRODUCED, Output, json_output, write_outputs
from minidist.plan.memory_check import check_memory
from minidist.train.config import TrainConfig
from minidist.verify.comparison import first_difference
from minidist.verify.matrix import Combination, covering_set, every_combination, run_all


def run_matrix(config: TrainConfig, max_ranks: int, console: Console, json: str | None, png: str | None) -> int:
    """Run combinations on up to ``max_ranks`` ranks that cover every pair of settings; returns the exit status."""
    everything = every_combination(config, max_ranks)
    chosen = covering_set(everything)
    for combination in chosen:
        check_memory(combination.config(config), combination.layout)
    pairs = set().union(*(combination.pairs for combination in chosen))
    console.print(
        f"{len(everything):,} combinations of settings are legal on up to {max_ranks} ranks. Running {len(chosen)} of "
        f"them, which cover all {len(pairs):,} legal pairs of settings, and one process in each precision"
        + (", with experts and without." if config.experts else "."),
        soft_wrap=True,
    )
    width = max(len(str(combination.layout)) for combination in chosen)
    console.print(
        f"precision  experts  {'layout':<{width}}  ranks  s/step  MB at peak  MB sent/step  SHA-256   same",
        style="bold", soft_wrap=True,
    )  # fmt: skip
    outcomes, different = [], []
    with console.status("") as status:

        def on_start(combination: Combination) -> None:
            status.update(f"{len(outcomes) + 1} of about {len(chosen)}: {combination.precision} {combination.layout}")

        for outcome, result, reference in run_all(chosen, config, on_start):
            outcomes.append(outcome)
            if not outcome.same:
                different.append((outcome, result, reference))
            layout = outcome.combination.layout
            experts = outcome.combination.experts or 0
            line = (
                f"{outcome.combination.precision:<9}  {experts:>7}  {layout!s:<{width}}  {layout.world_size:>5}  "
                f"{outcome.seconds:6.2f}  {outcome.memory / 1e6:10.2f}  {outcome.traffic / 1e6:12.2f}  "
                f"{result.fingerprint[:8]}  "
            )
            same = Text("yes", "green") if outcome.same else Text("NO", "red")
            console.print(Text(line) + (Text("") if result is reference else same), soft_wrap=True)
    from minidist.show.figures import grid

    console.print(
        "\nPairs of settings: + matches one process bit for bit, X differs, . is not legal. "
        "Columns are in the order of the rows:"
    )
    console.print(grid.as_text(outcomes), soft_wrap=True)
    title = f"{len(chosen)} of the {len(everything):,} legal combinations on up to {max_ranks} ranks"
    if not different:
        console.print(f"{title}: each matches the single-process run of its kind bit for bit.", soft_wrap=True)
    for outcome, result, reference in different:
        place = first_difference(reference, result) or NOT_REPRODUCED
        experts = f" {outcome.combination.experts} experts" if outcome.combination.experts else ""
        name = f"{outcome.combination.precision}{experts} {outcome.combination.layout}"
        console.print(Text(name, "bold red") + f": {place}", soft_wrap=True)
    content = [
        {"settings": outcome.combination.settings, "layout": str(outcome.combination.layout)}
        | {key: value for key, value in asdict(outcome).items() if key != "combination"}
        for outcome in outcomes
    ]
    results = {"all_same": not different, "legal": len(everything), "pairs": len(pairs), "runs": content}
    write_outputs(
        console,
        json_output(json, results),
        Output(
            "png",
            png,
            lambda path: grid.draw(outcomes, title).savefig(path, dpi=110),
            f"picture of the matrix: {png}",
        ),
    )
    return 1 if different else 0
