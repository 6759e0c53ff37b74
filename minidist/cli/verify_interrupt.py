"""``minidist verify --interrupt``: cuts runs off, goes on in other layouts, and compares where they end."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from minidist.cli.output import json_output, write_outputs
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.rules import loosened_by
from minidist.verify.interruption import covering_interruptions, run_interrupted


def run_interruptions(config: TrainConfig, layouts: Sequence[Layout], console: Console, json: str | None) -> int:
    """Interrupt runs so that every two settings of the layouts before and after meet; returns the exit status."""
    if len(set(layouts)) < 2:
        raise ValueError("--interrupt goes from one layout to another: name two or more, or none for the usual ones")
    if config.steps < 2:
        raise ValueError("--interrupt cuts a run off between two steps: set steps to 2 or more")
    for layout in layouts:
        if loosened_by(layout):
            raise ValueError(f"--interrupt saves runs, and layout {layout} keeps no checkpoints: leave it out")
    interruptions = covering_interruptions(layouts, config.steps)
    console.print(
        f"{len(interruptions)} interruptions of runs of {config.steps} steps, from {len(set(layouts))} layouts to "
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
