"""What the animation of mixed precision says: one weight in every step, and what rounding does to it."""

from minidist.show.demos.bf16 import picture
from minidist.show.demos.bf16.run import STEPS, Weight
from minidist.show.player.scene import Cue, Frame, Question, Scene


def of_weight(
    name: str, weight: Weight, index: int, ranks: int, verdict: str, right: Weight | None = None, details: str = ""
) -> Scene:
    """The scene of a run; ``right`` is the weight in the run with masters, if this one has none."""
    seen = [weight.masters, *([right.masters] if right else []), [weight.number(step) for step in range(STEPS + 1)]]
    low, high = min(map(min, seen)), max(map(max, seen))
    low, high = float(low) - 0.15 * float(high - low), float(high) + 0.15 * float(high - low)
    frames = [
        Frame(
            picture.draw(weight, step, low, high, right),
            _note(weight, step, right),
            _facts(weight, step, right is None),
        )
        for step in range(STEPS + 1)
    ]
    title = f"One weight in {weight.format.name}, on {ranks} ranks: gain {index} of the first norm"
    key = picture.BROKEN_KEY if right else picture.KEY
    stills = (1, STEPS // 2, STEPS)
    return Scene(
        name,
        title,
        tuple(frames),
        picture.HEIGHT,
        key,
        verdict,
        1 if right else None,
        stills,
        twin=name.removeprefix("broken ") if right else "",
        details=details,
        questions=(_lost(weight, right) if right else _first_change(weight),),
        cues=(Cue(0, 1, "Bits above, the same numbers as heights below. Watch the bits that are cut off."),),
    )


def _first_change(weight: Weight) -> Question:
    """When the stored number changes for the first time."""
    first = next((step for step in range(1, STEPS + 1) if weight.moves(step)), None)
    step, far = (
        abs(float(weight.masters[1] - weight.masters[0])),
        weight.distance(0, weight.masters[1] > weight.masters[0]),
    )
    answers = {1: "in the first step", None: f"in none of {STEPS}"}
    answers.setdefault(first, f"after {first} steps")
    choices = tuple(answers[key] for key in sorted(answers, key=lambda key: key or STEPS + 1))
    return Question(
        first or STEPS,
        f"An update moves the master by about {step:.4f}. When does the stored {weight.format.name} first change?",
        choices,
        choices.index(answers[first]),
        f"The next {weight.format.name} is {far:.4f} away: the master must come more than half of that.",
        1,
    )


def _lost(weight: Weight, right: Weight) -> Question:
    """Where a weight ends without a master."""
    end, there = weight.number(STEPS), right.number(STEPS)
    elsewhere = end if end != there else weight.number(0)
    choices = (f"at {there:g}, as with a master", f"elsewhere: at {elsewhere:g}")
    return Question(
        STEPS,
        f"Each update is now added to the {weight.format.name} itself. With a master it ends at {there:g}. And now?",
        choices,
        int(end != there),
        "What is less than half a step of the format is rounded away, in each step anew.",
        1,
    )


def _facts(weight: Weight, step: int, has_master: bool) -> dict[str, str]:
    before = max(0, step - 1)
    begins = weight.masters[before] if has_master else weight.number(before)
    update = float(weight.masters[step]) - float(begins)
    format = weight.format
    return {
        "update": f"{update:+.6f}",
        f"distance to the next {format.name}": f"{weight.distance(before, update > 0):.6f}",
        f"formula 2^-{format.mantissa + 1} below 1, 2^-{format.mantissa} above": _formula(weight, before, update > 0),
        "changes of the stored number": str(weight.moves(step)),
        "bytes in a message": f"{format.bits // 8}, in float32 4",
    }


def _formula(weight: Weight, step: int, up: bool) -> str:
    """The distance from a number between 1/2 and 2 to the next one above or below."""
    number = weight.number(step)
    return f"{2.0 ** -(weight.format.mantissa + (number < 1 or (number == 1 and not up))):.6f}"


def _note(weight: Weight, step: int, right: Weight | None) -> str:
    if not step:
        return "Before the first step, the weight is 1, in float32 and in 16 bits."
    moved = weight.stored[step] != weight.stored[step - 1]
    number = f"{weight.number(step):g}"
    step -= 1  # steps are counted from 0 everywhere
    if right is None:
        if moved:
            return f"Step {step}: the master has moved far enough: the nearest {weight.format.name} is now {number}."
        return f"Step {step}: the master moves, but the nearest {weight.format.name} is still {number}."
    if moved:
        return f"Step {step}: this update is large enough, and the weight jumps to {number}; the rest is lost."
    return f"Step {step}: the update is rounded away and lost: the weight stays {number}."
