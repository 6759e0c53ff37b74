"""``minidist demo``: a demonstration on real ranks, in the terminal or as files for slides.

The menu shows all demonstrations, in groups where there is room, on one screen of 80 x 24.
"""

import argparse
import sys
from itertools import groupby

from rich.console import Console
from rich.prompt import Prompt
from rich.text import Text

from minidist import backend
from minidist.cli.flags import integer
from minidist.cli.output import Output, check_outputs, terminal_console, write_outputs
from minidist.show.demos import DEMONSTRATIONS, Demonstration
from minidist.show.stage.animation import Animation
from minidist.show.stage.story import Story

DESCRIPTION = """\
Run a mechanism on real ranks and show what happened, on a running clock, without and with an injected bug.
Without a name, print the menu. In a terminal, space goes on to the next beat, s shows the next scene,
b breaks it and fixes it, q quits. If the output is not a terminal, print the beats.

A picture (--png, --svg) shows all scenes; with --scene or --break every beat of one scene; with --step
that beat alone, as a slide. --scene X --break is the broken run that belongs to scene X."""
ON_GPU = ", ".join(one.name for one in DEMONSTRATIONS.values() if one.on_gpu)
FILES = ("html", "gif", "png", "svg", "trace")
SINGLE = (*FILES[1:], "ranks", "size", "scene", "step", "backend")  # flags of one demonstration
DPI = 150
WIDE = 118  # characters; in a terminal this wide the menu shows the sizes
ABOUT = 62  # characters of what a demonstration shows: with its number and name they fill 80


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "demo",
        help="show one mechanism, from a real run",
        description=DESCRIPTION,
        epilog=sizes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(command=_demo)
    command.add_argument(
        "name", nargs="?", choices=tuple(DEMONSTRATIONS), metavar="NAME", help=", ".join(DEMONSTRATIONS)
    )
    command.add_argument("--ranks", type=integer, metavar="N", help="number of ranks (default: see below)")
    command.add_argument("--size", type=integer, metavar="N", help="size of what is shown; what it counts: see below")
    command.add_argument("--seed", type=integer, default=0, metavar="N", help="seed of all random numbers (default: 0)")
    command.add_argument(
        "--backend",
        choices=backend.BACKENDS,
        help=f"array library of {ON_GPU}; cupy needs an NVIDIA GPU (default: numpy)",
    )
    command.add_argument("--scene", metavar="NAME", help="show this scene first")
    command.add_argument("--break", dest="broken", action="store_true", help="show the run with the bug first")
    command.add_argument(
        "--notes", action="store_true", help="print the speaker's notes: what to say and ask, and when"
    )
    command.add_argument("--all", action="store_true", help="all demonstrations: a gallery (--html DIR), or --notes")
    output = command.add_argument_group("files (nothing is played if one of these is given)")
    output.add_argument(
        "--html", metavar="PATH", help="a page that plays in any browser, without a network; with --all, a folder"
    )
    output.add_argument("--gif", metavar="PATH", help="one scene as an animated picture, for a README or a slide")
    output.add_argument("--png", metavar="PATH", help="a still picture")
    output.add_argument("--svg", metavar="PATH", help="the same as --png, to be scaled to any size")
    output.add_argument(
        "--step", type=integer, metavar="N", help="of a picture: this beat alone, the first is 0, as a slide of 16:9"
    )
    output.add_argument("--trace", metavar="PATH", help="the run without the bug, for https://ui.perfetto.dev")


def _demo(options) -> int:
    console = terminal_console()
    if options.all:
        _check_all(options)
        from minidist.cli.demo_gallery import show_all

        return show_all(options, console)
    _check(options)
    if options.name is not None:
        _show(DEMONSTRATIONS[options.name], options, console)
        return 0
    console.print(menu(*console.size))
    while _is_interactive(console) and (name := ask(console)):
        _show(DEMONSTRATIONS[name], options, console)
    return 0


def _check_all(options) -> None:
    """Check the options that are given with ``--all``."""
    single = {flag: getattr(options, flag) for flag in SINGLE}
    single |= {"break": options.broken or None, options.name: options.name}
    if refused := [
        f"--{flag}" if flag != options.name else flag for flag, value in single.items() if value is not None
    ]:
        raise ValueError(f"--all shows every demonstration as it is: leave out {', '.join(refused)}")
    if options.html is None and not options.notes:
        raise ValueError("--all needs --html DIR for a gallery, --notes for the speaker's notes, or both")


def _check(options) -> None:
    """Check everything that can be checked before a rank starts."""
    check_outputs({flag: getattr(options, flag) for flag in FILES})
    chosen = any(getattr(options, flag) not in (None, False) for flag in ("broken", "notes", "html", *SINGLE))
    if options.name is None and chosen:
        raise ValueError(f"name a demonstration: minidist demo NAME, one of {', '.join(DEMONSTRATIONS)}")
    if options.backend is not None and not DEMONSTRATIONS[options.name].on_gpu:
        raise ValueError(f"{options.name} is NumPy's alone: --backend is for {ON_GPU}")
    if options.scene is not None:
        DEMONSTRATIONS[options.name].check_scene(options.scene)
    if options.step is not None and options.png is None and options.svg is None:
        raise ValueError("--step chooses the beat of a picture: add --png PATH or --svg PATH")


def _show(demonstration: Demonstration, options, console: Console) -> None:
    backend.use(options.backend or "numpy")
    with Console(stderr=True).status(f"{demonstration.name}: running real ranks"):
        animation = demonstration(options.ranks, options.size, options.seed)
    story = animation.find(options.scene, options.broken)
    if options.notes:
        from minidist.show.stage.lecture import notes

        console.print(notes(animation), soft_wrap=True)
    if any(getattr(options, flag) for flag in FILES):
        write(animation, story, options, console)
    elif not options.notes:
        _play(animation, story, console)


def _play(animation: Animation, story: Story, console: Console) -> None:
    from minidist.show.stage import terminal  # Textual takes a while to import

    if _is_interactive(console):
        last = terminal.play(animation, story)
        console.print(Text(last.verdict), soft_wrap=True)
    else:
        terminal.print_animation(animation, story, console)


def _is_interactive(console: Console) -> bool:
    """Return whether a terminal can show the player and read keys."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdin is not None and sys.stdin.isatty()


def write(animation: Animation, story: Story, options, console: Console) -> None:
    """Write the files that the options ask for; ``story`` is the one that they choose."""
    from minidist.show import perfetto
    from minidist.show.stage import still

    outputs = [
        Output(
            "html",
            options.html,
            lambda path: path.write_text(animation.html(story), encoding="utf-8"),
            f"page: {options.html} (open it in a browser)",
        ),
        Output("gif", options.gif, lambda path: still.gif(story.at_start, path), f"animation: {options.gif}"),
        Output(
            "trace",
            options.trace,
            lambda path: perfetto.write(path, animation.logs),
            f"trace: {options.trace} (open it at https://ui.perfetto.dev)",
        ),
    ]
    if options.png is not None or options.svg is not None:
        figure, what = _picture(animation, story, options)
        outputs += [
            Output("png", options.png, lambda path: figure.savefig(path, dpi=DPI), f"{what}: {options.png}"),
            Output("svg", options.svg, lambda path: figure.savefig(path), f"{what}: {options.svg}"),
        ]
    write_outputs(console, *outputs)


def _picture(animation: Animation, story: Story, options) -> tuple:
    """Draw one beat, every beat of one scene, or an overview of all scenes; return the Figure and a name for it."""
    from minidist.show.stage import still

    if options.step is not None:
        return still.slide(story.at_start, options.step), "slide"
    if options.scene is None and not options.broken:
        return animation.figure(), "picture"
    return still.sheet([story.at_start]), f"picture of {len(story.at_start.beats)} beats"


def menu(width: int, height: int) -> Text:
    """Return the menu for a terminal of this size: a wide one shows the sizes too, a high one the groups."""
    heading = [_line(" ", "", "", "--ranks", "--size", width)] if width >= WIDE else []
    plain, grouped = list(heading), list(heading)
    for group, those in groupby(enumerate(DEMONSTRATIONS.values(), 1), lambda entry: entry[1].group):
        grouped.append(Text(f"   {group}", "dim"))
        for number, one in those:
            line = _line(str(number), one.name, one.about, ranks_of(one), f"{one.size} ({one.size_is})", width)
            plain.append(line)
            grouped.append(line)
    return Text("\n").join(grouped if len(grouped) < height else plain)  # one line is for the prompt


def _line(number: str, name: str, about: str, ranks: str, size: str, width: int) -> Text:
    sizes = f"  {ranks:<10}  {size}" if width >= WIDE else ""
    return Text.assemble(f"{number:>2} ", (f"{name:<15}", "bold"), f"{about:<{ABOUT}}{sizes}".rstrip())


def ranks_of(one: Demonstration) -> str:
    """Describe a demonstration's numbers of ranks: the default, and the fewest and most."""
    return f"{one.ranks} ({one.least_ranks} to {one.most_ranks})" if one.most_ranks > 1 else "1"


def sizes() -> str:
    """List the sizes of every demonstration, one per line, for the command's help."""
    lines = [
        f"  {one.name:<15}--ranks {ranks_of(one)}, --size {one.size} ({one.size_is})" for one in DEMONSTRATIONS.values()
    ]
    return "\n".join(["sizes:", *lines])


def ask(console: Console) -> str | None:
    """Ask for a demonstration; return its name, or None to leave."""
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
