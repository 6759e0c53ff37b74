"""``minidist verify --matrix``: every pair of settings in some run, and the grid of how they ended."""

from dataclasses import asdict, replace

from rich.console import Console
from rich.text import Text

from minidist.cli.output import telling, write_json
from minidist.train.config import TrainConfig
from minidist.train.layout import MOST_RANKS
from minidist.train.memory_check import check_memory
from minidist.verify.comparison import first_difference
from minidist.verify.matrix import Combination, covering, every_combination, run_all


def run_matrix(config: TrainConfig, max_ranks: int, console: Console, json: str | None, png: str | None) -> int:
    """Run a covering set of all combinations on up to so many ranks, and show how it went. Returns the exit status."""
    if not 1 <= max_ranks <= MOST_RANKS:
        raise ValueError(f"--max-ranks must be from 1 to {MOST_RANKS}, but is {max_ranks}")
    everything = every_combination(config, max_ranks)
    chosen = [everything[i] for i in covering([combination.settings for combination in everything])]
    for combination in chosen:
        check_memory(replace(config, precision=combination.precision), combination.layout)
    pairs = set().union(*(combination.pairs for combination in chosen))
    console.print(
        f"{len(everything):,} combinations of settings are legal on up to {max_ranks} ranks. Running {len(chosen)} of "
        f"them, in which all {len(pairs):,} pairs of settings occur that can; and one process in each precision.",
        soft_wrap=True,
    )
    width = max(len(str(combination.layout)) for combination in chosen)
    console.print(
        f"precision  {'layout':<{width}}  ranks  s/step  MB at most  MB sent/step  SHA-256   same",
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
            line = (
                f"{outcome.combination.precision:<9}  {layout!s:<{width}}  {layout.world_size:>5}  "
                f"{outcome.seconds:6.2f}  {outcome.memory / 1e6:10.2f}  {outcome.traffic / 1e6:12.2f}  "
                f"{result.fingerprint[:8]}  "
            )
            same = Text("yes", "green") if outcome.same else Text("NO", "red")
            console.print(Text(line) + (Text("") if result is reference else same), soft_wrap=True)
    from minidist.show import grid

    console.print(
        "\nTwo settings in one run: + the bits of one process, X others, . cannot meet. The columns are the rows:"
    )
    console.print(grid.as_text(outcomes), soft_wrap=True)
    title = f"{len(chosen)} of the {len(everything):,} legal combinations on up to {max_ranks} ranks"
    if png:
        with telling("png", png):
            grid.draw(outcomes, title).savefig(png, dpi=110)
        console.print(f"picture of the matrix: {png}", soft_wrap=True)
    content = [
        {"settings": outcome.combination.settings, "layout": str(outcome.combination.layout)}
        | {key: value for key, value in asdict(outcome).items() if key != "combination"}
        for outcome in outcomes
    ]
    write_json(json, {"all_same": not different, "legal": len(everything), "pairs": len(pairs), "runs": content})
    if not different:
        console.print(f"{title}: each ended on the bits of one process in its precision.", soft_wrap=True)
    for outcome, result, reference in different:
        place = first_difference(reference, result) or "agreed when run again: it does not repeat its own bits"
        name = f"{outcome.combination.precision} {outcome.combination.layout}"
        console.print(Text(name, "bold red") + f" {place}", soft_wrap=True)
    return 1 if different else 0
