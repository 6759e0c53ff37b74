"""A made-up animation: carts on a road, with a question, bugs, a program and a dial."""

from minidist.show.stage.animation import Animation
from minidist.show.stage.marks import box, line, text
from minidist.show.stage.story import Beat, Dial, Question, Story

QUESTION = Question("Where is the cart in the end?", ("at 20", "at 40", "at 80"), 1, "It moves 10 a second.")
BUG = "</script> & a wheel is off"
CUE = "Ask what a cart is."
CODE = ("push(cart)", "rest()")
SPEEDS = tuple(range(5, 17))


def drive(name: str, speed: int = 10, ends: float = 4, **more) -> Story:
    """A cart that is on its way until ``ends``."""
    cart = box(0, 300, 100, 60, "#D55E00", "the cart", text="cart", sign="c").to(0, ends, x=speed * 15 * ends)
    marks = [line([(0, 370), (1280, 370)]), cart, text(640, 100, f"{name} at {speed}")]
    asks = {} if "broken" in more else {"asks": QUESTION}
    beats = [
        Beat(0, f"{name} begins.", {"miles": "0"}, cue=CUE, lines=(0,), **asks),
        Beat(2, f"{name} is on its way at {speed}.", {"miles": str(2 * speed)}),
        Beat(ends, f"{name} is over.", {"miles": f"{ends * speed:g}"}, answers=asks.get("asks"), lines=(1,)),
    ]
    question = f"How does a cart go, {name}?"
    return Story(name, question, marks, beats, f"{speed} is right." if asks else "It limps.", code=CODE, **more)


def animation(name: str = "cart") -> Animation:
    """Two stories that can be broken, and one with a dial."""
    by_dial = Dial("speed", tuple(map(str, SPEEDS)), 5)
    variants = [drive("dialled", speed) for speed in SPEEDS]
    scenes = (
        drive("slow"), drive("late", 8, 6), drive("slow", 5, broken=BUG, details="wheel 2, by 7 ulps"),
        drive("late", 3, 8, broken=BUG), drive("dialled", dials=[by_dial], variants=variants),
    )  # fmt: skip
    return Animation(name, f"A {name} <on> its road", scenes)
