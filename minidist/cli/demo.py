"""``minidist demo``: a demonstration on real ranks, in the terminal or as files for slides."""

import sys

from rich.console import Console
from rich.prompt import Prompt
from rich.table import Table
from rich.text import Text

from minidist.cli.flags import integer
from minidist.cli.output import Output, check_outputs, terminal_console, write_outputs
from minidist.show.demos import DEMONSTRATIONS, Demonstration
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene

FILES = ("html", "gif", "png", "trace")


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "demo",
        help="show one mechanism, from a real run",
        description="Run a mechanism on real ranks and show what happened, step by step, without and with an injected "
        "bug. Without a name, print the menu. In a terminal, space and the arrow keys step, p plays, a digit sets the "
        "speed, b breaks and fixes it, s shows the next scene, q quits. If the output is not a terminal, print the "
        "frames.",
    )
    command.set_defaults(command=_demo)
    command.add_argument(
        "name", nargs="?", choices=tuple(DEMONSTRATIONS), metavar="NAME", help=", ".join(DEMONSTRATIONS)
    )
    command.add_argument("--ranks", type=integer, metavar="N", help="number of ranks (default: in the menu)")
    command.add_argument(
        "--size", type=integer, metavar="N", help="size of what is shown; the menu says what it counts"
    )
    command.add_argument("--seed", type=integer, default=0, metavar="N", help="seed of all random numbers (default: 0)")
    command.add_argument("--scene", metavar="NAME", help="show this scene first")
    command.add_argument("--break", dest="broken", action="store_true", help="show the run with the bug first")
    output = command.add_argument_group("files (nothing is played if one of these is given)")
    output.add_argument("--html", metavar="PATH", help="a page that plays in any browser, without a network")
    output.add_argument("--gif", metavar="PATH", help="one scene as an animated picture, for a README or a slide")
    output.add_argument("--png", metavar="PATH", help="a still picture")
    output.add_argument("--trace", metavar="PATH", help="the run without the bug, for https://ui.perfetto.dev")


def _demo(options) -> int:
    files = {flag: getattr(options, flag) for flag in FILES}
    check_outputs(files, None)
    if options.broken and options.scene is not None:
        raise ValueError("--break shows the broken scene first, and --scene another one: give one of the two")
    console = terminal_console()
    if options.name is not None:
        _show(DEMONSTRATIONS[options.name], options, console)
        return 0
    chosen = (*files.values(), options.ranks, options.size, options.scene)
    if options.broken or any(value is not None for value in chosen):
        raise ValueError(f"name a demonstration: minidist demo NAME, one of {', '.join(DEMONSTRATIONS)}")
    console.print(_menu())
    while _is_interactive(console):
        names = dict(zip(map(str, range(1, len(DEMONSTRATIONS) + 1)), DEMONSTRATIONS, strict=True))
        try:
            answer = Prompt.ask("which one? number or name, q to quit", console=console).strip()
        except EOFError:  # Ctrl-D
            break
        if answer in ("q", "quit", ""):
            break
        name = names.get(answer, answer)
        if name in DEMONSTRATIONS:
            _show(DEMONSTRATIONS[name], options, console)
        else:
            console.print(f"{answer!r} is not in the menu")
    return 0


def _menu() -> Table:
    table = Table(title="minidist demo NAME", title_justify="left")
    for column in ("", "name", "what it shows", "--ranks", "--size"):
        table.add_column(column)
    for number, one in enumerate(DEMONSTRATIONS.values(), 1):
        ranks = f"{one.ranks} ({one.least_ranks} to {one.most_ranks})" if one.most_ranks > 1 else "1"
        table.add_row(str(number), Text(one.name, "bold"), one.about, ranks, f"{one.size} ({one.size_is})")
    return table


def _show(demonstration: Demonstration, options, console: Console) -> None:
    with Console(stderr=True).status(f"{demonstration.name}: running real ranks"):
        animation = demonstration(options.ranks, options.size, options.seed)
    scene = _scene(animation, options.scene, options.broken)
    if any(getattr(options, flag) for flag in FILES):
        _write(animation, scene, options, console)
        return
    from minidist.show.player import terminal  # Textual takes a while to import

    if _is_interactive(console):
        last = terminal.play(animation, scene)
        console.print(Text(last.verdict), soft_wrap=True)
    else:
        terminal.print_animation(animation, scene, console)


def _scene(animation: Animation, name: str | None, broken: bool) -> Scene:
    if broken:
        return animation.broken
    return animation.scenes[0] if name is None else animation.only(name).scenes[0]


def _write(animation: Animation, scene: Scene, options, console: Console) -> None:
    from minidist.show import perfetto
    from minidist.show.player import gif

    write_outputs(
        console,
        Output(
            "html",
            options.html,
            lambda path: path.write_text(animation.html(scene), encoding="utf-8"),
            f"page: {options.html} (open it in a browser)",
        ),
        Output("gif", options.gif, lambda path: gif.save(animation, scene, path), f"animation: {options.gif}"),
        Output("png", options.png, lambda path: animation.figure().savefig(path, dpi=150), f"picture: {options.png}"),
        Output(
            "trace",
            options.trace,
            lambda path: perfetto.write(path, animation.logs),
            f"trace: {options.trace} (open it at https://ui.perfetto.dev)",
        ),
    )


def _is_interactive(console: Console) -> bool:
    """Whether there is a terminal that can show the player and read keys."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdin is not None and sys.stdin.isatty()
