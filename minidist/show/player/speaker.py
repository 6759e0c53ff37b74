"""Notes for the speaker: what to say at which step, for how long, and what to ask, as plain text to print."""

from textwrap import fill

from minidist.show.player.animation import Animation
from minidist.show.player.scene import Cue, Question, Scene

COLUMNS = 100


def notes(animation: Animation) -> str:
    """Every scene with its cues and questions, in the order of the steps, and the minutes that they take."""
    minutes = sum(cue.minutes for scene in animation.all_scenes for cue in scene.cues)
    heading = f"{animation.name}: {animation.title}"
    about = f"{f'about {minutes:g} minutes; ' if minutes else ''}b breaks it: {animation.bug}"
    scenes = [_scene(scene, animation.is_broken(scene)) for scene in animation.all_scenes]
    return "\n\n".join(["\n".join((heading, "=" * len(heading), _paragraph(about))), *scenes])


def _scene(scene: Scene, is_broken: bool) -> str:
    minutes = sum(cue.minutes for cue in scene.cues)
    broken = ", broken" if is_broken and "broken" not in scene.name else ""
    length = f"{len(scene.frames) - 1} steps" + (f", {minutes:g} min" if minutes else "")
    heading = f"{scene.name}{broken} ({length}): {scene.title}"
    said = [(cue.frame, 1, _cue(cue)) for cue in scene.cues]
    asked = [(question.before, 0, _question(question)) for question in scene.questions]  # before what the step shows
    lines = [text for _, _, text in sorted([*said, *asked], key=lambda entry: entry[:2])]
    if scene.verdict:
        lines.append(_paragraph(f"end: {scene.verdict}", "  "))
    return "\n".join((_paragraph(heading), *lines))


def _cue(cue: Cue) -> str:
    return _paragraph(f"step {cue.frame} ({cue.minutes:g} min): {cue.text}", "  ")


def _question(question: Question) -> str:
    choices = [
        f"      {number}  {choice}{'   <- the answer' if number == question.answer + 1 else ''}"
        for number, choice in enumerate(question.choices, 1)
    ]
    asked = _paragraph(f"before step {question.before}, ask: {question.text}", "  ")
    return "\n".join((asked, *choices, _paragraph(f"because: {question.reason}", "      ")))


def _paragraph(text: str, indent: str = "") -> str:
    return fill(text, COLUMNS, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
