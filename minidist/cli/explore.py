"""``minidist explore``: what training would cost, as one page of sliders."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from minidist.cli.output import Output, check_outputs, terminal_console, write_outputs

DESCRIPTION = """\
Plan every combination of model, GPUs, axes, ZeRO, recomputation, precision, sequence length and micro-batch that
the page's sliders can be set to, and write them into one page that needs no network."""


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "explore", help="what training a model would cost: a page of sliders", description=DESCRIPTION
    )
    command.set_defaults(command=_explore)
    command.add_argument("--html", metavar="FILE", required=True, help="the page, for any browser")
    command.add_argument(
        "--models", metavar="NAMES", help="plan these alone, separated by commas, such as 7b,llama3-405b"
    )
    command.add_argument("--gpu", metavar="NAME", default="h100", help="h100, h200 or a100 (default: h100)")


def _explore(options) -> int:
    from minidist.show.explorer.choices import CHOICES
    from minidist.show.explorer.page import explore

    check_outputs({"html": options.html}, None)
    models = tuple(CHOICES) if options.models is None else tuple(options.models.split(","))
    columns = TextColumn("planning {task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=sum(len(CHOICES[key].positions["gpus"]) for key in {*models} & {*CHOICES}))
        made = explore(models, options.gpu, lambda model: progress.update(task, advance=1, description=model))
        progress.update(task, description="the page")
        page = made.html()
    told = f"page: {options.html} ({made.layouts:,} layouts, {len(page) / 1e6:.1f} MB; open it in a browser)"
    output = Output("html", options.html, lambda path: Path(path).write_text(page, encoding="utf-8"), told)
    write_outputs(terminal_console(), output)
    return 0
