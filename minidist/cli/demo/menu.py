"""The menu of ``minidist demo``: all demonstrations, in groups where there is room, on one screen of 80 x 24."""

from itertools import groupby

from rich.console import Console
from rich.prompt import Prompt
from rich.text import Text

from minidist.show.demos import DEMONSTRATIONS, Demonstration

WIDE = 118  # characters: from here on there is room for the sizes
ABOUT = 62  # characters of what a demonstration shows: with its number and name they fill 80


def menu(width: int, height: int) -> Text:
    """The menu for a terminal of this size: a wide one shows the sizes too, a high one the groups."""
    heading = [_line(" ", "", "", "--ranks", "--size", width)] if width >= WIDE else []
    plain, grouped = list(heading), list(heading)
    for group, those in groupby(enumerate(DEMONSTRATIONS.values(), 1), lambda entry: entry[1].group):
        grouped.append(Text(f"   {group}", "dim"))
        for number, one in those:
            line = _line(str(number), one.name, one.about, ranks_of(one), f"{one.size} ({one.size_is})", width)
            plain.append(line)
            grouped.append(line)
    return Text("\n").join(grouped if len(grouped) < height else plain)  # a line is for the prompt


def _line(number: str, name: str, about: str, ranks: str, size: str, width: int) -> Text:
    sizes = f"  {ranks:<10}  {size}" if width >= WIDE else ""
    return Text.assemble(f"{number:>2} ", (f"{name:<15}", "bold"), f"{about:<{ABOUT}}{sizes}".rstrip())


def ranks_of(one: Demonstration) -> str:
    """Its default, and how many are possible."""
    return f"{one.ranks} ({one.least_ranks} to {one.most_ranks})" if one.most_ranks > 1 else "1"


def sizes() -> str:
    """The sizes of every demonstration, one per line, for the command's help."""
    lines = [
        f"  {one.name:<15}--ranks {ranks_of(one)}, --size {one.size} ({one.size_is})" for one in DEMONSTRATIONS.values()
    ]
    return "\n".join(["sizes:", *lines])


def ask(console: Console) -> str | None:
    """The name that the user chooses; None to leave."""
    names = {str(number): name for number, name in enumerate(DEMONSTRATIONS, 1)}
    while True:
        try:
            answer = Prompt.ask("which one? number or name, q to quit", console=console).strip()
        except EOFError:  # Ctrl-D
            return None
        if answer in ("q", "quit", ""):
            return None
        name = names.get(answer, answer)
        if name in DEMONSTRATIONS:
            return name
        console.print(f"{answer!r} is not in the menu")
