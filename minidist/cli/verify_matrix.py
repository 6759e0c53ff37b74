"""``minidist verify --matrix`` and ``--interrupt``: sets of runs in which every two settings meet.

The matrix runs layouts that cover every pair of settings and shows the outcomes as a grid. The interruptions cut runs
off, go on in other layouts, and compare where they end.
"""

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from minidist.cli.output import NOT_REPRODUCED, Output, json_output, write_outputs
from minidist.plan.memory_check import check_memory
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.verify.comparison import first_difference
from minidist.verify.interruption import covering_interruptions, run_interrupted
from minidist.verify.matrix import Combination, covering_set, every_combination, run_all


def run_matrix(config: TrainConfig, max_ranks: int, console: Console, json: str | None, png: str | None) -> int:
    """Run combinations on up to ``max_ranks`` ranks that cover every pair of settings; return the exit status."""
    everything = every_combination(config, max_ranks)
    chosen = covering_set(everything)
    for combination in chosen:
        check_memory(combination.config(config), combination.layout)
    pairs = set().union(*(combination.pairs for combination in chosen))
    console.print(
        f"{len(everything):,} combinations of settings are legal on up to {max_ranks} ranks. Running {len(chosen)} of "
        f"them, which cover all {len(pairs):,} legal pairs of settings, and one process in each precision, with both "
        "products" + (", with experts and without." if config.experts else "."),
        soft_wrap=True,
    )
    width = max(len(str(combination.layout)) for combination in chosen)
    console.print(
        f"precision  products  experts  {'layout':<{width}}  ranks  s/step  MB at peak  MB sent/step  SHA-256   same",
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
            one = outcome.combination
            line = (
                f"{one.precision:<9}  {one.products:<8}  {one.experts or 0:>7}  "
                f"{one.layout!s:<{width}}  {one.layout.world_size:>5}  "
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
        name = f"{outcome.combination.precision} {outcome.combination.products}{experts} {outcome.combination.layout}"
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


def run_interruptions(config: TrainConfig, layouts: Sequence[Layout], console: Console, json: str | None) -> int:
    """Interrupt runs so that every two settings of the layouts before and after meet; return the exit status."""
    interruptions = covering_interruptions(layouts, config.steps)
    console.print(
        f"{len(interruptions)} interruptions of runs of {config.steps} steps, from {len(layouts)} layouts to "
        "others, in which every setting before meets every setting after. Each run is saved, ended, and resumed:",
        soft_wrap=True,
    )
    width = max(len(str(layout)) for layout in layouts)
    console.print(f"{'before':<{width}}  steps  {'after':<{width}}  SHA-256   same", style="bold", soft_wrap=True)
    rows = []
    with console.status("") as status:
        for interruption, result, same in run_interrupted(interruptions, config, status.update):
            if interruption is None:
                whole = result.fingerprint
                line, verdict = f"{'one process, never interrupted':<{2 * width + 9}}  {whole[:8]}", Text("")
            else:
                before, after = str(interruption.before), str(interruption.after)
                line = f"{before:<{width}}  {interruption.step:5}  {after:<{width}}  {result.fingerprint[:8]}  "
                verdict = Text("yes", "green") if same else Text("NO", "red")
                rows.append({"before": before, "after": after, "step": interruption.step, "same": same})
            console.print(Text(line) + verdict, soft_wrap=True)
    different = [row for row in rows if not row["same"]]
    if different:
        console.print(f"{len(different)} of {len(rows)} interrupted runs end on other bits", style="bold red")
    else:
        console.print(
            f"All {len(rows)} interrupted runs end on the fingerprint of the run that was never interrupted, SHA-256:\n"
            f"{whole}",
            soft_wrap=True,
        )
    write_outputs(console, json_output(json, {"all_same": not different, "fingerprint": whole, "runs": rows}))
    return 1 if different else 0
