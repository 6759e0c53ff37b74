"""The player in a terminal, with the same keys as the page's, and q to quit."""

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.widgets import Static

from minidist.show.player.animation import Animation
from minidist.show.player.scene import USUAL_SPEED, WIDTH, Scene
from minidist.show.player.terminal import texts
from minidist.show.player.terminal.lecture import Lecture

SLOWEST = 2.4  # seconds a frame, before the speed
PADDING = 4  # columns at both sides of a text
WIDE = 120  # columns: from here on, words are beside the picture
BOARD = ("title", "picture", "help")
SIDE = ("note", "facts", "question", "dials", "verdict", "key", "code", "speaker")


def play(animation: Animation, scene: Scene) -> Scene:
    """Show the player, beginning with this scene, until the user quits. Returns the last scene shown."""
    player = Player(animation, scene)
    player.run()
    return player.scene


class Player(App):
    """The player. Below the picture, or beside it in a wide window, the words are always visible."""

    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Static {{ padding: 0 2; }}
    #picture {{ min-width: {WIDTH + 4}; }}
    #main, #board {{ height: 1fr; }}
    #side {{ height: auto; max-height: 100%; }}
    #facts, #speaker {{ color: $text-muted; }}
    #keys {{ height: 1; background: $panel; padding: 0 1; }}
    .wide #main {{ layout: horizontal; }}
    .wide #board {{ width: {WIDTH + 5}; height: 100%; }}
    .wide #side {{ width: 1fr; max-width: 90; height: 100%; padding-top: 1; }}
    .wide #side Static {{ margin-bottom: 1; }}
    """
    BINDINGS = [  # noqa: RUF012  Textual declares it so
        Binding("space,right,pagedown", "forward"),
        Binding("left,pageup", "backward"),
        Binding("home", "go(0)"),
        Binding("end", "go(999999)"),
        Binding("p", "toggle"),
        Binding("b", "break_it"),
        Binding("s", "next_scene"),
        Binding("a", "toggle_questions"),
        Binding("left_square_bracket", "choose_dial(-1)"),
        Binding("right_square_bracket", "choose_dial(1)"),
        Binding("minus", "turn(-1)"),
        Binding("plus,equals_sign", "turn(1)"),  # the same key without shift
        Binding("n", "open('speaker')"),
        Binding("v", "open('details')"),
        Binding("question_mark", "open('help')"),
        Binding("up", "look(-3)"),
        Binding("down", "look(3)"),
        *(Binding(str(digit), f"digit({digit})") for digit in range(1, 10)),
        Binding("escape", "close"),
        Binding("q", "quit"),
    ]

    def __init__(self, animation: Animation, scene: Scene) -> None:
        super().__init__()
        self.title = animation.title
        self.lecture = Lecture(animation, scene)
        self.opened: set[str] = set()  # of "speaker", "details", "help"
        self.speed, self.timer = USUAL_SPEED, None

    @property
    def scene(self) -> Scene:
        return self.lecture.scene

    @property
    def frame(self) -> int:
        return self.lecture.frame

    def compose(self) -> ComposeResult:
        with Container(id="main"):
            with VerticalScroll(id="board", can_focus=False):  # with the focus it would take a presenter's keys
                for part in BOARD:
                    yield Static(id=part, markup=False)
            with VerticalScroll(id="side", can_focus=False):
                for part in SIDE:
                    yield Static(id=part, markup=False)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.show_frame()

    def on_resize(self) -> None:
        self.show_frame()

    def show_frame(self) -> None:
        """Show the current frame, and whatever is open."""
        lecture, wide, colours = self.lecture, self.size.width >= WIDE, not self.no_color
        self.screen.set_class(wide, "wide")
        scene, asks, helps = lecture.shown, lecture.question is not None, "help" in self.opened
        width = 0 if wide else self.size.width - PADDING  # 0: one entry per line
        parts = {
            "title": "" if helps else texts.title(lecture),
            "picture": "" if helps else texts.picture(scene, lecture.frame, colours),
            "help": texts.help_text() if helps else "",
            "note": texts.note(lecture),
            "question": texts.question(lecture),
            "dials": texts.dials(lecture, width),
            "verdict": texts.verdict(lecture, "details" in self.opened),
            "key": texts.key(scene, colours, width),
            "code": texts.code(lecture) if wide else "",
            "speaker": texts.speaker(lecture) if "speaker" in self.opened else "",
            "keys": texts.keys(lecture),
        }
        room = None if wide else max(1, self.size.height - sum(map(self._lines, parts.values())))
        parts["facts"] = "" if asks and not wide else texts.facts(scene, lecture.frame, width, room)
        for name, text in parts.items():
            part = self.query_one(f"#{name}", Static)
            part.update(text)
            part.display = bool(text)
        if self.timer is not None and lecture.at_end:
            self._pause()

    def _lines(self, text: Text | str) -> int:
        """How many lines a part takes below the picture, or with it."""
        parts = text.plain.split("\n") if text else []
        return sum(max(1, -(-len(part) // (self.size.width - PADDING))) for part in parts)

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def action_forward(self) -> None:
        self._do(self.lecture.forward)

    def action_backward(self) -> None:
        self._do(self.lecture.backward)

    def action_go(self, frame: int) -> None:
        self._do(self.lecture.go, frame)

    def action_break_it(self) -> None:
        if not self.lecture.can_break:
            places = ", ".join(self.lecture.animation.breakable())
            self.notify(f"nothing to break here: the bug is in {places}", timeout=3)
        self._do(self.lecture.break_it, pauses=False)

    def action_next_scene(self) -> None:
        self._do(self.lecture.next_scene, pauses=False)

    def action_toggle_questions(self) -> None:
        self._do(self.lecture.toggle_questions)
        self.notify("questions are asked" if self.lecture.asks else "no questions are asked", timeout=2)

    def action_choose_dial(self, by: int) -> None:
        self._do(self.lecture.choose_dial, by)

    def action_turn(self, by: int) -> None:
        self._do(self.lecture.turn, by)

    def action_open(self, what: str) -> None:
        """Open a panel, or close it."""
        self.opened ^= {what}
        self.show_frame()

    def action_close(self) -> None:
        """Close what is open; if nothing is, quit."""
        if not self.opened and self.lecture.question is None:
            self.exit()
        self.opened, self.lecture.question = set(), None
        self.show_frame()

    def action_look(self, lines: int) -> None:
        """Scroll, if the window is too low for everything."""
        for part in ("#board", "#side"):
            self.query_one(part).scroll_relative(y=lines, animate=False)

    def action_digit(self, digit: int) -> None:
        """A vote while a question is open, the speed otherwise."""
        if self.lecture.question is not None:
            self._do(self.lecture.vote, digit - 1)
            return
        self.speed = digit
        if self.timer is not None:
            self._pause()
            self._play()

    def action_toggle(self) -> None:
        if self.timer is not None:
            self._pause()
            return
        self.lecture.go(0 if self.lecture.at_end else self.frame)
        self.show_frame()
        self._play()

    def _do(self, action, *arguments, pauses: bool = True) -> None:
        if pauses:
            self._pause()
        action(*arguments)
        self.show_frame()

    def _play(self) -> None:
        self.timer = self.set_interval(SLOWEST / 1.5**self.speed, self._advance)

    def _advance(self) -> None:
        self.lecture.go(self.frame + 1)
        self.show_frame()

    def _pause(self) -> None:
        if self.timer is not None:
            self.timer.stop()
            self.timer = None
