"""Live view of a run in a terminal: the loss as a line of bars, and a lane for each rank."""

from rich.console import Group
from rich.style import Style
from rich.table import Table
from rich.text import Text

from minidist.show.figures.timeline import COLOURS
from minidist.show.live.state import Live, lanes_of
from minidist.show.palette import PAPER

BARS = "▁▂▃▄▅▆▇█"
WIDE, LANE = 54, 38  # characters of the loss and of a lane, in a terminal of 80 columns
MOST_RANKS = 16
DEAD = Style(color="white", bgcolor=PAPER["wrong"])
KEY = Text("       ").append_text(
    Text("  ").join(Text.assemble(("■", colour), f" {kind}") for kind, colour in COLOURS.items())
)


def picture(live: Live) -> Group:
    """Return the current state of the run for rich to show."""
    with live.lock:
        loss = loss_line(live.losses, live.config.steps, live.first)
        news = [Text(line, no_wrap=True, overflow="ellipsis") for line in live.news[-4:]]
        parts = [loss, lanes(live), KEY, *news]
    return Group(*parts)


def loss_line(losses: list[float], steps: int, first: int) -> Text:
    """Return the loss of every step as bars, and the newest one as a number."""
    if not losses:
        return Text("loss: no step yet")
    return Text.assemble(
        "loss ", loss_bars(losses, steps - first), f" {losses[-1]:.4f} (step {first + len(losses) - 1})"
    )


def loss_bars(losses: list[float], steps: int, width: int = WIDE) -> Text:
    """Return losses of a run of ``steps`` steps as a line of bars; each bar is the mean over its share of the steps."""
    each = -(-steps // width)
    means = [sum(part) / len(part) for part in (losses[i : i + each] for i in range(0, len(losses), each))]
    low, high = min(means), max(means)
    scaled = [BARS[round((mean - low) / (high - low or 1) * (len(BARS) - 1))] for mean in means]
    return Text("".join(scaled), COLOURS["backward"])


def lanes(live: Live) -> Table:
    """Return a table of what each rank did in the last reported step, its peak memory, and the bytes it sent."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    start, end = live.span()
    step = max((moment.step for moment in live.moments.values()), default=0)
    for column in ("", f"step {step}: {(end - start) / 1e6:.1f} ms", "memory at peak", "sent in the step"):
        table.add_column(column, no_wrap=True)
    moments = sorted(live.moments.items())
    left_out = len(moments) - MOST_RANKS + 1 if len(moments) > MOST_RANKS else 0  # and one for their line
    for rank, moment in moments[: len(moments) - left_out]:
        cells: list[str | None] = [None] * LANE
        for kind, begin, until in lanes_of(moment):
            first, last = ((time - start) * LANE / (end - start) for time in (begin, until))
            for cell in range(int(first), min(LANE, max(int(first) + 1, round(last)))):
                cells[cell] = COLOURS[kind]
        lane = Text.assemble(*((" ", Style(bgcolor=colour)) for colour in cells))
        held = f"{sum(moment.memory.values()) / 1e6:.2f} MB"
        table.add_row(f"rank {rank}", lane, held, f"{moment.sent / 1e3:,.0f} kB")
    if left_out:
        table.add_row("", f"{left_out} more ranks are on the page")
    for rank, layout, step in live.dead:
        table.add_row(f"rank {rank}", Text(f"died in step {step}, in {layout}".ljust(LANE), DEAD))
    return table
