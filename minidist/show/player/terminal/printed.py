"""The frames of an animation, one below the other, where output is not a terminal."""

from rich.console import Console
from rich.text import Text

from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene
from minidist.show.player.terminal import texts


def print_animation(animation: Animation, scene: Scene, console: Console) -> None:
    """Print the frames of a scene; of successive frames with the same note, print the last."""
    colours = console.color_system is not None
    broken = animation.is_broken(scene)
    console.print(Text(scene.title, "bold"))
    if broken:
        console.print(Text(f"broken: {animation.bug_of(scene)}", "red"))
    console.print(texts.key(scene, colours, console.width))
    notes = [frame.note for frame in scene.frames]
    for number, frame in enumerate(scene.frames):
        if notes[number + 1 : number + 2] == [frame.note]:
            continue
        console.print()
        console.print(Text(f"── {number} of {len(scene.frames) - 1} ──"))
        console.print(texts.picture(scene, number, colours), soft_wrap=True)
        console.print(Text(frame.note))
        console.print(texts.facts(scene, number, console.width))
    console.print()
    console.print(Text(scene.verdict, "red" if broken else "green"))
    if scene.details:
        console.print(Text(scene.details))
    console.print(Text(_others(animation, scene), "dim"), soft_wrap=True)


def _others(animation: Animation, scene: Scene) -> str:
    """How to see the rest."""
    others = [f"--scene {_quoted(one.name)}" for one in animation.scenes if one is not scene]
    if not animation.is_broken(scene):
        others.append("--break")
    return f"also: {', '.join(others)}" if others else ""


def _quoted(name: str) -> str:
    """Quote a name for a shell."""
    return name if name.isalnum() or name.replace("-", "").isalnum() else f'"{name}"'
