"""``minidist demo``: a demonstration on real ranks, in the terminal or as files for slides."""

import argparse
import sys

from rich.console import Console
from rich.text import Text

from minidist.cli.demo import menu
from minidist.cli.demo.files import FILES, write
from minidist.cli.flags import integer
from minidist.cli.output import check_outputs, terminal_console
from minidist.show.demos import DEMONSTRATIONS, Demonstration
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene

DESCRIPTION = """\
Run a mechanism on real ranks and show what happened, step by step, without and with an injected bug.
Without a name, print the menu. In a terminal, space and the arrow keys step, p plays, s shows the next scene,
b breaks it and fixes it, ? lists all keys, q quits. If the output is not a terminal, print the frames.

A picture (--png, --svg) shows all scenes; with --scene or --break every step of one scene; with --step
that step alone, as a slide. --scene X --break is the broken run that belongs to scene X."""


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "demo",
        help="show one mechanism, from a real run",
        description=DESCRIPTION,
        epilog=menu.sizes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(command=_demo)
    command.add_argument(
        "name", nargs="?", choices=tuple(DEMONSTRATIONS), metavar="NAME", help=", ".join(DEMONSTRATIONS)
    )
    command.add_argument("--ranks", type=integer, metavar="N", help="number of ranks (default: see below)")
    command.add_argument("--size", type=integer, metavar="N", help="size of what is shown; what it counts: see below")
    command.add_argument("--seed", type=integer, default=0, metavar="N", help="seed of all random numbers (default: 0)")
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
    output.add_argument("--step", type=integer, metavar="N", help="of a picture: this step alone, as a slide of 16:9")
    output.add_argument("--trace", metavar="PATH", help="the run without the bug, for https://ui.perfetto.dev")


def _demo(options) -> int:
    console = terminal_console()
    if options.all:
        _check_all(options)
        from minidist.cli.demo.every import show_all

        return show_all(options, console)
    _check(options)
    if options.name is not None:
        _show(DEMONSTRATIONS[options.name], options, console)
        return 0
    console.print(menu.menu(*console.size))
    while _is_interactive(console) and (name := menu.ask(console)):
        _show(DEMONSTRATIONS[name], options, console)
    return 0


def _check_all(options) -> None:
    """Check the options that ``--all`` goes together with."""
    single = {flag: getattr(options, flag) for flag in ("gif", "png", "svg", "trace", "ranks", "size", "scene", "step")}
    single |= {"break": options.broken or None, options.name: options.name}
    if refused := [
        f"--{flag}" if flag != options.name else flag for flag, value in single.items() if value is not None
    ]:
        raise ValueError(f"--all shows every demonstration as it is: leave out {', '.join(refused)}")
    if options.html is None and not options.notes:
        raise ValueError("--all needs --html DIR for a gallery, --notes for the speaker's notes, or both")


def _check(options) -> None:
    """Check everything that can be checked before a rank starts."""
    files = {flag: getattr(options, flag) for flag in FILES}
    check_outputs(files, None)
    if options.name is None:
        chosen = (*files.values(), options.ranks, options.size, options.scene, options.step)
        if options.broken or options.notes or any(value is not None for value in chosen):
            raise ValueError(f"name a demonstration: minidist demo NAME, one of {', '.join(DEMONSTRATIONS)}")
    if options.scene is not None:
        DEMONSTRATIONS[options.name].check_scene(options.scene)
    if options.step is not None and options.png is None and options.svg is None:
        raise ValueError("--step chooses the step of a picture: add --png PATH or --svg PATH")


def _show(demonstration: Demonstration, options, console: Console) -> None:
    with Console(stderr=True).status(f"{demonstration.name}: running real ranks"):
        animation = demonstration(options.ranks, options.size, options.seed)
    scene = _scene(animation, options.scene, options.broken)
    if options.notes:
        from minidist.show.player.speaker import notes

        console.print(notes(animation), soft_wrap=True)
    if any(getattr(options, flag) for flag in FILES):
        write(animation, scene, options, console)
    elif not options.notes:
        _play(animation, scene, console)


def _play(animation: Animation, scene: Scene, console: Console) -> None:
    from minidist.show.player import terminal  # Textual takes a while to import

    if _is_interactive(console):
        last = terminal.play(animation, scene)
        console.print(Text(last.verdict), soft_wrap=True)
    else:
        terminal.print_animation(animation, scene, console)


def _scene(animation: Animation, name: str | None, broken: bool) -> Scene:
    if name is None:
        return animation.broken if broken else animation.scenes[0]
    scene = animation.only(name).scenes[0]
    return animation.broken_twin(scene) if broken else scene


def _is_interactive(console: Console) -> bool:
    """Whether there is a terminal that can show the player and read keys."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdin is not None and sys.stdin.isatty()
