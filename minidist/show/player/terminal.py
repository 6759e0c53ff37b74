"""An animation in a terminal: a player with keys, or the frames one below the other where output is not a terminal."""

from rich.console import Console
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Footer, Static

from minidist.show.player.animation import Animation
from minidist.show.player.characters import BACKGROUNDS, lines_of, messages_of
from minidist.show.player.scene import USUAL_SPEED, WIDTH, Scene

SLOWEST = 2.4  # seconds a frame, before the speed


def print_animation(animation: Animation, scene: Scene, console: Console) -> None:
    """Print the frames of a scene; of successive frames with the same note, print the last."""
    colours = console.color_system is not None
    console.print(Text(scene.title, "bold"))
    if scene is animation.broken:
        console.print(Text(f"broken: {animation.bug}", "red"))
    console.print(_key(scene, colours))
    notes = [frame.note for frame in scene.frames]
    for number, frame in enumerate(scene.frames):
        if notes[number + 1 : number + 2] == [frame.note]:
            continue
        console.print()
        console.print(Text(f"── {number} of {len(scene.frames) - 1} ──"))
        console.print(_picture(scene, number, colours), soft_wrap=True)
        console.print(Text(frame.note))
        console.print(Text(_facts(scene, number)))
    console.print()
    console.print(Text(scene.verdict, "red" if scene is animation.broken else "green"))


def play(animation: Animation, scene: Scene) -> Scene:
    """Show the player, beginning with this scene, until the user quits. Returns the last scene shown."""
    player = Player(animation, scene)
    player.run()
    return player.scene


class Player(App):
    """The player, with the same keys as the page's, and q to quit."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title, #verdict, #note, #facts, #key { padding: 0 2; }
    #title { text-style: bold; }
    #picture { padding: 0 2; min-width: 76; }
    #facts { color: $text-muted; }
    #below { dock: bottom; height: auto; }
    #below Footer { dock: none; }
    """
    BINDINGS = [  # noqa: RUF012  Textual declares it so
        Binding("space,right,pagedown", "step(1)", "step", key_display="space →"),
        Binding("left,pageup", "step(-1)", "back", key_display="←"),
        Binding("p", "toggle", "play/pause"),
        Binding("b", "break_it", "break/fix"),
        Binding("s", "next_scene", "next scene"),
        Binding("up", "look(-3)", "up", show=False),
        Binding("down", "look(3)", "down", show=False),
        Binding("home", "go(0)", "begin", show=False),
        Binding("end", "go(-1)", "end", show=False),
        *(
            Binding(str(speed), f"speed({speed})", "speed", show=speed == 1, key_display="1-9")
            for speed in range(1, 10)
        ),
        Binding("q,escape", "quit", "quit"),
    ]

    def __init__(self, animation: Animation, scene: Scene) -> None:
        super().__init__()
        self.title = animation.title
        self.animation, self.scene, self.frame = animation, scene, 0
        self.unbroken = animation.scenes[0] if scene is animation.broken else scene  # to return to from the broken one
        self.speed, self.timer = USUAL_SPEED, None

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):  # with the focus it would take the keys of a presenter
            for part in ("title", "picture", "key", "verdict"):
                yield Static(id=part, markup=False)
        with Vertical(id="below"):  # always visible, even in a low window
            for part in ("note", "facts"):
                yield Static(id=part, markup=False)
            yield Footer()

    def on_mount(self) -> None:
        self.show_frame()

    def show_frame(self) -> None:
        """Show the current frame."""
        scene, broken = self.scene, self.scene is self.animation.broken
        names = [
            f"[{one.name}]" if one is scene else one.name for one in (*self.animation.scenes, self.animation.broken)
        ]
        colour = "#FF5C77" if broken else "#3DDBA5"
        bug = Text(f"\nbroken: {self.animation.bug}", colour) if broken else ""
        parts = {
            "title": Text.assemble(f"{'  '.join(names)}\n{scene.title}", bug),
            "verdict": Text(scene.verdict if self.frame == len(scene.frames) - 1 else "", colour),
            "picture": _picture(scene, self.frame, not self.no_color),
            "note": Text(scene.frames[self.frame].note),
            "facts": Text(_facts(scene, self.frame)),
            "key": _key(scene, not self.no_color),
        }
        for name, text in parts.items():
            self.query_one(f"#{name}", Static).update(text)
        if self.timer is not None and self.frame == len(scene.frames) - 1:
            self._pause()

    def action_step(self, by: int) -> None:
        self._pause()
        self._advance(by)

    def action_go(self, frame: int) -> None:
        self._pause()
        self.frame = frame % len(self.scene.frames)
        self.show_frame()

    def action_look(self, lines: int) -> None:
        """Scroll, if the window is too low for everything."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_toggle(self) -> None:
        if self.timer is not None:
            self._pause()
            return
        if self.frame == len(self.scene.frames) - 1:
            self.frame = 0
            self.show_frame()
        self.timer = self.set_interval(SLOWEST / 1.5**self.speed, lambda: self._advance(1))

    def action_speed(self, speed: int) -> None:
        self.speed = speed
        if self.timer is not None:
            self._pause()
            self.action_toggle()

    def action_break_it(self) -> None:
        broken = self.animation.broken
        if self.scene is broken:
            self._choose(self.unbroken, self.frame)
            return
        twins = [scene for scene in self.animation.scenes if scene.name == broken.twin]
        if twins and self.scene is not twins[0]:  # this step is not in the broken run
            self.unbroken, self.frame = twins[0], 0
        self._choose(broken, self.frame)

    def action_next_scene(self) -> None:
        scenes = self.animation.scenes
        self._choose(scenes[(scenes.index(self.unbroken) + 1) % len(scenes)], 0)

    def _choose(self, scene: Scene, frame: int) -> None:
        self.scene, self.frame = scene, min(frame, len(scene.frames) - 1)
        if scene is not self.animation.broken:
            self.unbroken = scene
        self.show_frame()

    def _advance(self, by: int) -> None:
        self.frame = min(max(0, self.frame + by), len(self.scene.frames) - 1)
        self.show_frame()

    def _pause(self) -> None:
        if self.timer is not None:
            self.timer.stop()
            self.timer = None


def _picture(scene: Scene, number: int, colours: bool) -> Text:
    frame = scene.frames[number]
    picture = Text("\n").join(lines_of(frame, scene.height, colours))
    messages = messages_of(frame, 2 * WIDTH - len("messages: "))
    return picture if not messages else Text("\n").join([picture, Text(f"messages: {messages}")])


def _facts(scene: Scene, number: int) -> str:
    return "   ".join(f"{what}: {value}" for what, value in scene.frames[number].facts.items())


def _key(scene: Scene, colours: bool) -> Text:
    text = Text()
    for name, colour, mark in scene.marks():
        if mark is None:  # an outline
            sign = Text("! !" if colour == "wrong" else "[ ]")
        elif colours and colour != "paper":
            sign = Text("■", BACKGROUNDS.get(colour, colour))
        else:
            sign = Text(mark)
        text.append_text(Text.assemble(sign, f" {name}   "))
    return text
