"""A made-up animation: carts that move on a road, with all that a player can show."""

from minidist.show.player.animation import Animation
from minidist.show.player.scene import Arrow, Box, Cue, Curve, Dial, Frame, Label, Question, Scene

CODE = ("for step in range(3):", "    push(cart)", "rest()")
QUESTION = Question(2, "Where is the cart after step 2?", ("at 10", "at 20", "at 40"), 1, "It moves 10 in each step.")
LATER = Question(3, "Is it late?", ("yes", "no"), 0, "Its clock says so.", asked=1)
CUES = Cue(0, 2, "Ask what a cart is."), Cue(3, 1.5, "Say why.")
COLOURS = {"cart": "#D55E00", "track": "#0072B2", "wind": "#009E73", "road": "faint"}
BUG = "</script> & a wheel is off"


def run(name: str, speed: int = 10, ends: float = 40, words: int = 1, height: float = 5, **more) -> Scene:
    """A cart that moves by ``speed`` at each of 4 steps of a clock that ends at ``ends`` ms."""
    frames = []
    for step in range(5):
        shapes = (
            Box(0, 1, 70, 1, "faint", mark="_"),
            Label(0, 0.5, f"mile {speed * step}", COLOURS["track"]),
            Box(speed * step, 1, 9, 1, COLOURS["cart"], "cart", "c", id="the cart"),
            Curve(tuple((6 * i, 3.5 - 0.5 * i) for i in range(step + 2)), COLOURS["track"]),
            *([Arrow(1, 3, 5, 4, COLOURS["wind"], "whoa")] if step % 2 else []),
        )
        facts = {"miles": str(speed * step)} | {f"fact {i}": "of words " * (words - 1) for i in range(3) if words > 1}
        note = f"{name}, step {step}" + " and on it goes" * (words - 1)
        frames.append(Frame(shapes, note, facts, ends * step / 4, (step % 3,) if "code" in more else ()))
    key = {f"a thing of kind {word}" if words > 1 else word: colour for word, colour in COLOURS.items()}
    return Scene(name, f"A cart, {name}", tuple(frames), height, key, f"{name} is there.", **more)


def animation(words: int = 1, height: float = 5) -> Animation:
    """Two scenes that can be broken, and one with dials; with so many words to each fact."""
    dials = Dial("speed", ("10", "12", "14")), Dial("road", ("short", "long"), 1)
    roads = ("short", 20), ("long", 40)
    variants = tuple(run(f"{v} {road}", v, end, words, height) for v in (10, 12, 14) for road, end in roads)
    scenes = (
        run("slow", words=words, height=height, questions=(QUESTION,), cues=CUES, code=CODE),
        run("late", 8, 80, words, height, questions=(LATER,)),
        run("set by you", words=words, height=height, dials=dials, variants=variants),
    )
    bad = run("bad", 5, words=words, height=height, first_wrong=1, twin="slow", details="in wheel 2, by 7 ulps")
    bad_late = run("bad and late", 3, 80, words, height, first_wrong=2, twin="late")
    return Animation("cart", "A cart <on> its road", scenes, bad, BUG, also_broken=(bad_late,))
