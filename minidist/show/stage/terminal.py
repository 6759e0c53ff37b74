"""An animation in a terminal: a player with the page's keys, or its beats one below the other in a file or a pipe."""

from rich.console import Console
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Static

from minidist.show.stage.animation import Animation
from minidist.show.stage.characters import legend, picture
from minidist.show.stage.lecture import Lecture
from minidist.show.stage.story import Story

RATE = 15  # frames per second while the clock runs
PRINTED = 80, 22  # columns and lines of a printed picture
KEYS = "space on  ← back  s scene  b break  e evidence  n notes  d questions  q quit"


def play(animation: Animation, story: Story) -> Story:
    """Show the player, beginning with this story, until the user quits; return the last story shown."""
    player = Player(animation, story)
    player.run()
    return player.lecture.story


class Player(App):
    """Player of an animation: the question above, the stage, and below it what has happened."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Static { padding: 0 1; }
    #stage { height: 1fr; padding: 0; }
    #keys { height: 1; background: $panel; }
    """
    BINDINGS = [  # noqa: RUF012  Textual declares it so
        Binding("space,right,pagedown", "onward"),
        Binding("left,pageup", "back"),
        Binding("home", "go(0)"),
        Binding("end", "go(999999)"),
        Binding("b", "break_it"),
        Binding("s", "next_scene"),
        Binding("e", "open('evidence')"),
        Binding("n", "open('notes')"),
        Binding("d", "ask_or_not"),
        Binding("minus", "turn(-1)"),
        Binding("plus,equals_sign", "turn(1)"),
        *(Binding(str(digit), f"vote({digit})") for digit in range(1, 7)),
        Binding("q,escape", "quit"),
    ]

    def __init__(self, animation: Animation, story: Story) -> None:
        super().__init__()
        self.lecture = Lecture(animation, story)
        self.opened: set[str] = set()
        self.timer = None

    def compose(self) -> ComposeResult:
        for part in ("title", "stage", "key", "says", "dials", "asked", "more", "keys"):
            yield Static(id=part, markup=False)

    def on_mount(self) -> None:
        self.update_all()

    def on_resize(self) -> None:
        self.update_all()

    def update_all(self) -> None:
        """Redraw the stage and all open panels."""
        lecture, story = self.lecture, self.lecture.story
        beat = story.beats[lecture.beat]
        notes = Text(beat.cue, "italic") if "notes" in self.opened else Text()
        parts = {
            "title": title(story),
            "key": legend(story, not self.no_color),
            "says": says(story, lecture.beat),
            "dials": dials(lecture),
            "asked": asked(lecture),
            "more": Text("\n").join(
                filter(
                    None, (evidence(story, lecture.beat, self.size.width) if "evidence" in self.opened else None, notes)
                )
            ),
            "keys": Text(KEYS),
        }
        lines = 0
        for name, text in parts.items():
            part = self.query_one(f"#{name}", Static)
            part.update(text)
            part.display = bool(text.plain)
            lines += (
                sum(max(1, -(-len(line) // (self.size.width - 2))) for line in text.plain.split("\n")) * part.display
            )
        room = max(4, self.size.height - lines)
        self.query_one("#stage", Static).update(picture(story, lecture.time, self.size.width, room, not self.no_color))

    def action_onward(self) -> None:
        if self.timer is not None:
            self.stop(self.until)
        else:
            self.until = self.lecture.onward()
            if self.until is not None:
                self.timer = self.set_interval(1 / RATE, self.tick)
        self.update_all()

    def tick(self) -> None:
        """Advance the clock by one frame."""
        time = self.lecture.time + 1 / RATE
        if self.until is None or time >= self.until:
            self.stop(self.until)
        else:
            self.lecture.go(time)
        self.update_all()

    def stop(self, at: float | None = None) -> None:
        """Stop the clock, and set it to ``at`` unless that is None."""
        if self.timer is not None:
            self.timer.stop()
            self.timer = None
        if at is not None:
            self.lecture.go(at)

    def action_back(self) -> None:
        self.stop()
        self.lecture.back()
        self.update_all()

    def action_go(self, time: float) -> None:
        self.stop(time)
        self.update_all()

    def action_break_it(self) -> None:
        self.stop()
        if not self.lecture.break_it():
            self.notify("this scene has nothing to break", timeout=3)
        self.update_all()

    def action_next_scene(self) -> None:
        self.stop()
        self.lecture.next_scene()
        self.update_all()

    def action_open(self, what: str) -> None:
        """Open or close a panel."""
        self.opened ^= {what}
        self.update_all()

    def action_turn(self, by: int) -> None:
        """Turn the dial."""
        self.stop()
        self.lecture.turn(by)
        self.update_all()

    def action_ask_or_not(self) -> None:
        """Turn questions on or off."""
        self.lecture.asking = not self.lecture.asking
        self.stop(self.lecture.time)
        self.notify(f"questions: {'on' if self.lecture.asking else 'off'}", timeout=3)
        self.update_all()

    def action_vote(self, digit: int) -> None:
        self.lecture.vote(digit - 1)
        self.update_all()


def title(story: Story) -> Text:
    return (
        Text.assemble(("Broken: ", "bold red"), (story.question, "bold"))
        if story.broken
        else Text(story.question, "bold")
    )


def says(story: Story, beat: int) -> Text:
    last = beat == len(story.beats) - 1 and story.verdict
    return Text.assemble(
        story.beats[beat].says, (f" {story.verdict}" if last else "", "red" if story.broken else "green")
    )


def dials(lecture: Lecture) -> Text:
    """Return a line with the value of each dial."""
    named = zip(lecture.whole.dials, lecture.dials, strict=True)
    words = "   ".join(f"{dial.name}: {dial.values[position]}" for dial, position in named)
    return Text(f"{words}   (- and + turn it)" if words else "", "bold")


def asked(lecture: Lecture) -> Text:
    """Return the open question with its choices and, once revealed, its answer."""
    question = lecture.question
    if question is None:
        return Text()
    lines = [Text(question.text, "bold")]
    for number, choice in enumerate(question.choices):
        right = lecture.revealed and number == question.answer
        hands = f"   {lecture.votes[number]} for it" if lecture.votes[number] else ""
        lines.append(Text(f"  {number + 1}  {choice}{hands}", "bold green" if right else ""))
    return Text("\n").join([*lines, Text(question.reason)] if lecture.revealed else lines)


def evidence(story: Story, beat: int, width: int) -> Text:
    """Return the figures of a beat, the bug, and the program, with the lines that have run in bold."""
    now = story.beats[beat]
    lines = [Text("   ".join(f"{name}: {value}" for name, value in (now.facts or {}).items()))]
    lines += [Text(f"bug: {story.broken}", "red")] if story.broken else []
    lines += [Text(story.details)] if story.details and beat == len(story.beats) - 1 else []
    lines += [Text(line, "bold" if i in now.lines else "dim") for i, line in enumerate(story.code)]
    return Text("\n").join(lines)


def print_animation(animation: Animation, story: Story, console: Console) -> None:
    """Print every beat of a story with its picture; the dials are at their start."""
    story = story.at_start
    console.print(title(story))
    for number, beat in enumerate(story.beats):
        console.print(f"\n── {number} of {len(story.beats) - 1} ──", markup=False)
        console.print(picture(story, beat.at, *PRINTED, console.color_system is not None), soft_wrap=True)
        if story.shown_key:
            console.print(legend(story, console.color_system is not None))
        console.print(says(story, number))
        console.print(evidence(story, number, console.width))
    others = [f"--scene {one.name!r}" for one in animation.right if one is not story] + ["--break"] * (not story.broken)
    console.print(Text(f"\nalso: {', '.join(others)}", "dim"), soft_wrap=True)
