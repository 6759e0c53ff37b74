"""``minidist demo``: a demonstration on real ranks, in the terminal or as files for the slides."""

import sys

from rich.console import Console
from rich.prompt import Prompt
from rich.table import Table
from rich.text import Text

from minidist.cli.flags import integer
from minidist.cli.output import check_outputs, telling, terminal_console
from minidist.show.demos import DEMONSTRATIONS, Demonstration
from minidist.show.player.scene import Animation, Scene

FILES = ("html", "gif", "png", "trace")


def add_demo(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "demo",
        help="show one mechanism, from a real run",
        description="Run a mechanism on real ranks and show what happened, step by step, as it should be and with a "
        "bug planted. Without a name: the menu. In a terminal, space or an arrow steps, p plays, a number sets the "
        "speed, b breaks it, s shows the next scene, q ends; without a terminal the frames are printed.",
    )
    command.set_defaults(command=_demo)
    command.add_argument(
        "name", nargs="?", choices=tuple(DEMONSTRATIONS), metavar="NAME", help=", ".join(DEMONSTRATIONS)
    )
    command.add_argument("--ranks", type=integer, metavar="N", help="how many (default: the demonstration's own)")
    command.add_argument("--size", type=integer, metavar="N", help="of what is shown: what it counts, the menu says")
    command.add_argument("--seed", type=integer, default=0, metavar="N", help="of all random numbers (default: 0)")
    command.add_argument("--scene", metavar="NAME", help="begin with this one of its scenes")
    command.add_argument("--break", dest="broken", action="store_true", help="begin with the bug planted")
    output = command.add_argument_group("files: with one of these nothing is played")
    output.add_argument("--html", metavar="PATH", help="one page that plays in any browser, without a network")
    output.add_argument("--gif", metavar="PATH", help="one scene as an animated picture, for a README or a slide")
    output.add_argument("--png", metavar="PATH", help="a still picture")
    output.add_argument("--trace", metavar="PATH", help="the run as it should be, for https://ui.perfetto.dev")


def _demo(options) -> int:
    files = {flag: getattr(options, flag) for flag in FILES}
    check_outputs(files, None)
    if options.broken and options.scene is not None:
        raise ValueError("--break begins with the broken scene, and --scene with another: leave one of them out")
    console = terminal_console()
    if options.name is not None:
        _show(DEMONSTRATIONS[options.name], options, console)
        return 0
    chosen = (*files.values(), options.ranks, options.size, options.scene)
    if options.broken or any(value is not None for value in chosen):
        raise ValueError(f"say which demonstration: minidist demo NAME, one of {', '.join(DEMONSTRATIONS)}")
    console.print(_menu())
    while _is_watched(console):
        names = dict(zip(map(str, range(1, len(DEMONSTRATIONS) + 1)), DEMONSTRATIONS, strict=True))
        try:
            answer = Prompt.ask("which one, by number or name? (q ends)", console=console).strip()
        except EOFError:  # Ctrl-D
            break
        if answer in ("q", "quit", ""):
            break
        name = names.get(answer, answer)
        if name in DEMONSTRATIONS:
            _show(DEMONSTRATIONS[name], options, console)
        else:
            console.print(f"there is no {answer!r}")
    return 0


def _menu() -> Table:
    table = Table(title="minidist demo NAME", title_justify="left")
    for column in ("", "name", "what is shown", "--ranks", "--size"):
        table.add_column(column)
    for number, one in enumerate(DEMONSTRATIONS.values(), 1):
        ranks = f"{one.ranks} ({one.least_ranks} to {one.most_ranks})"
        table.add_row(str(number), Text(one.name, "bold"), one.about, ranks, f"{one.size} ({one.size_is})")
    return table


def _show(demonstration: Demonstration, options, console: Console) -> None:
    with Console(stderr=True).status(f"{demonstration.name}: real ranks are running"):
        animation = demonstration(options.ranks, options.size, options.seed)
    scene = _scene(animation, options.scene, options.broken)
    if any(getattr(options, flag) for flag in FILES):
        _write(animation, scene, options, console)
        return
    from minidist.show.player import terminal  # Textual takes a while to import

    if _is_watched(console):
        last = terminal.play(animation, scene)
        console.print(Text(last.verdict), soft_wrap=True)
    else:
        terminal.print_animation(animation, scene, console)


def _scene(animation: Animation, name: str | None, broken: bool) -> Scene:
    if broken:
        return animation.broken
    return animation.scenes[0] if name is None else animation.only(name).scenes[0]


def _write(animation: Animation, scene: Scene, options, console: Console) -> None:
    if options.html:
        with telling("html", options.html), open(options.html, "w", encoding="utf-8") as file:
            file.write(animation.html(scene))
        console.print(f"page: {options.html} (open it in a browser)", soft_wrap=True)
    if options.gif:
        from minidist.show.player import gif

        with telling("gif", options.gif):
            gif.save(animation, scene, options.gif)
        console.print(f"animation: {options.gif}", soft_wrap=True)
    if options.png:
        from minidist.show.player import still

        with telling("png", options.png):
            still.save(animation, options.png)
        console.print(f"picture: {options.png}", soft_wrap=True)
    if options.trace:
        from minidist.show import perfetto

        with telling("trace", options.trace):
            perfetto.write(options.trace, animation.logs)
        console.print(f"trace: {options.trace} (open it at https://ui.perfetto.dev)", soft_wrap=True)


def _is_watched(console: Console) -> bool:
    """Whether there is a terminal to show the player in, and to read keys from."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdin is not None and sys.stdin.isatty()
