"""The files that ``minidist demo NAME`` writes."""

from rich.console import Console

from minidist.cli.output import Output, write_outputs
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene

FILES = ("html", "gif", "png", "svg", "trace")
DPI = 150
MANY = 40  # steps: a picture of more is too large to be read


def write(animation: Animation, scene: Scene, options, console: Console) -> None:
    """Write the files that the options ask for; ``scene`` is the one that they choose."""
    from minidist.show import perfetto
    from minidist.show.player import gif

    outputs = [
        Output(
            "html",
            options.html,
            lambda path: path.write_text(animation.html(scene), encoding="utf-8"),
            f"page: {options.html} (open it in a browser)",
        ),
        Output("gif", options.gif, lambda path: gif.save(animation, scene, path), f"animation: {options.gif}"),
        Output(
            "trace",
            options.trace,
            lambda path: perfetto.write(path, animation.logs),
            f"trace: {options.trace} (open it at https://ui.perfetto.dev)",
        ),
    ]
    if options.png is not None or options.svg is not None:
        figure, what = _picture(animation, scene, options)
        outputs += [
            Output("png", options.png, lambda path: figure.savefig(path, dpi=DPI), f"{what}: {options.png}"),
            Output("svg", options.svg, lambda path: figure.savefig(path), f"{what}: {options.svg}"),
        ]
    write_outputs(console, *outputs)


def _picture(animation: Animation, scene: Scene, options) -> tuple:
    """A matplotlib Figure, and what it is: one step, every step of one scene, or an overview of all scenes."""
    if options.step is not None:
        return animation.slide(scene, options.step), "slide"
    if options.scene is None and not options.broken:
        return animation.figure(), "picture"
    steps = len(scene.frames)
    many = "; --step N makes a slide of one" if steps > MANY else ""
    return animation.contact_sheet(scene), f"picture of {steps} steps{many}"
