"""The parts of the player's screen as texts."""

from rich.text import Text

from minidist.show.player.characters import BACKGROUNDS, lines_of, messages_of
from minidist.show.player.scene import WIDTH, Scene
from minidist.show.player.terminal.lecture import Lecture

RIGHT, WRONG, ASKED = "#3DDBA5", "#FF5C77", "#56B4E9"
KEYS = (
    ("space →", "a step, or a question's answer"),
    ("←", "a step back"),
    ("Home End", "to the beginning, to the end"),
    ("p", "play, pause"),
    ("1 to 9", "speed; while a question is open, a vote for a choice"),
    ("s", "next scene"),
    ("b", "break it, or fix it, at the same moment"),
    ("a", "questions on, off"),
    ("[ ]", "choose a dial"),
    ("- +", "turn it"),
    ("n", "notes for the speaker"),
    ("v", "details of the outcome, at the end"),
    ("↑ ↓", "scroll, if the window is too low"),
    ("?", "these keys"),
    ("Esc", "close what is open; then quit"),
    ("q", "quit"),
)


def title(lecture: Lecture) -> Text:
    """The names of the scenes, if there are several, the title of the one that is shown, and the bug."""
    names = [f"[{one.name}]" if one is lecture.correct else one.name for one in lecture.animation.scenes]
    bug = Text(f"\nbroken: {lecture.animation.bug_of(lecture.scene)}", WRONG) if lecture.is_broken else ""
    choice = Text(f"{'  '.join(names)}\n", "dim") if len(names) > 1 else ""
    return Text.assemble(choice, (lecture.shown.title, "bold"), bug)


def picture(scene: Scene, number: int, colours: bool) -> Text:
    """A frame, and below it its messages, which a terminal cannot draw as arrows."""
    frame = scene.frames[number]
    drawn = Text("\n").join(lines_of(frame, scene.height, colours))
    messages = messages_of(frame, 2 * WIDTH - len("messages: "))
    return drawn if not messages else Text("\n").join([drawn, Text(f"messages: {messages}")])


def note(lecture: Lecture) -> Text:
    frame = lecture.shown.frames[lecture.frame]
    return Text.assemble((f"{lecture.frame} of {len(lecture.shown.frames) - 1}  ", "dim"), (frame.note, "bold"))


def facts(scene: Scene, number: int, width: int, most: int | None = None) -> Text:
    """Each fact and its figure, on at most ``most`` lines of this width; a width of 0 gives each a line."""
    pairs = [Text(f"{what}: {value}") for what, value in scene.frames[number].facts.items()]
    return Text("\n").join(_packed(pairs, width)[:most])


def key(scene: Scene, colours: bool, width: int) -> Text:
    """Each colour and its meaning, on lines of this width; a width of 0 gives each a line."""
    entries = []
    for name, colour, mark in scene.marks():
        if mark is None:  # an outline
            sign = Text("! !" if colour == "wrong" else "[ ]")
        elif colours and colour != "paper":
            sign = Text("■", BACKGROUNDS.get(colour, colour))
        else:
            sign = Text(mark)
        entries.append(Text.assemble(sign, f" {name}"))
    return Text("\n").join(_packed(entries, width))


def _packed(entries: list[Text], width: int, between: str = "   ") -> list[Text]:
    """Lines with as many entries as fit, none of them broken."""
    lines: list[Text] = []
    for entry in entries:
        if lines and lines[-1].cell_len + len(between) + entry.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], between, entry)
        else:
            lines.append(entry)
    return lines


def question(lecture: Lecture) -> Text:
    """The open question, the votes for its choices, and the answer once it is revealed."""
    asked = lecture.question
    if asked is None:
        return Text()
    parts = [Text(asked.text, f"bold {ASKED}")]
    for number, choice in enumerate(asked.choices):
        votes = lecture.votes[number]
        is_right = lecture.is_revealed and number == asked.answer
        hands = f"  {'█' * min(votes, 20)} {votes}" if votes else ""
        parts.append(Text(f"{number + 1}  {choice}{' ✓' * is_right}{hands}", f"bold {RIGHT}" if is_right else ""))
    if lecture.is_revealed:
        parts.append(Text(asked.reason))
    return Text("\n").join(parts)


def dials(lecture: Lecture, width: int) -> Text:
    """Each dial with its value; the chosen one stands out."""
    parts = []
    for number, (dial, at) in enumerate(zip(lecture.scene.dials, lecture.dials, strict=True)):
        is_chosen = number == lecture.dial
        less, more = "◂" if at else " ", "▸" if at < len(dial.values) - 1 else " "
        parts.append(Text(f"{dial.name} {less} {dial.values[at]} {more}", f"bold {ASKED}" if is_chosen else ""))
    return Text("\n").join(_packed(parts, width))


def verdict(lecture: Lecture, unfolded: bool) -> Text:
    """The outcome, with the last frame, and its details if they are unfolded."""
    scene = lecture.shown
    if not lecture.at_end:
        return Text()
    colour = WRONG if lecture.is_broken else RIGHT
    details = (f"\n{scene.details}" if unfolded else "  (v: details)") if scene.details else ""
    return Text.assemble((scene.verdict, f"bold {colour}"), details)


def code(lecture: Lecture) -> Text:
    """The program, with the lines that this step runs lit up."""
    lit = lecture.shown.frames[lecture.frame].lines
    lines = enumerate(lecture.shown.code)
    return Text("\n").join(
        Text(f"▸ {line}", "bold #E69F00") if number in lit else Text(f"  {line}", "dim") for number, line in lines
    )


def speaker(lecture: Lecture) -> Text:
    """What to say now and next, and the next question."""
    scene, frame = lecture.shown, lecture.frame
    lines = [f"notes, {sum(cue.minutes for cue in scene.cues):g} minutes for this scene"]
    before, after = [cue for cue in scene.cues if cue.frame <= frame], [cue for cue in scene.cues if cue.frame > frame]
    lines += [f"now ({cue.minutes:g} min): {cue.text}" for cue in before[-1:]]
    lines += [f"at step {cue.frame}: {cue.text}" for cue in after[:1]]
    asked = [one for one in scene.questions if one.before > frame]
    lines += [f"question before step {one.before}: {one.text}" for one in asked[:1]]
    return Text("\n".join(lines))


def keys(lecture: Lecture) -> Text:
    """The keys that matter now, in at most 78 characters."""
    if lecture.question is not None and not lecture.is_revealed:
        reveal = "watch" if lecture.is_answered_later else "reveal"
        pairs = [(f"1-{len(lecture.votes)}", "vote"), ("space", reveal), ("←", "skip"), ("a", "questions off")]
    elif lecture.question is not None:
        pairs = [("space", "go on"), ("←", "close"), ("a", "questions off")]
    else:
        pairs = [("space", "step"), ("←", "back"), ("p", "play"), ("s", "scene")]
        pairs += [("b", "fix" if lecture.is_broken else "break")] * lecture.can_break
        pairs += [("[]", "dial"), ("-+", "turn")] if lecture.dials else [("n", "notes")]
    pairs += [("?", "keys"), ("q", "quit")]
    return Text("  ").join(Text.assemble((name, f"bold {ASKED}"), f" {what}") for name, what in pairs)


def help_text() -> Text:
    return Text("\n").join(Text.assemble((f"{name:>9}", f"bold {ASKED}"), f"  {what}") for name, what in KEYS)
