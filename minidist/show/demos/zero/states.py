"""The field's 16 bytes per parameter, and what each stage of ZeRO leaves of them on one rank.

With bfloat16: 2 bytes of weights, 2 of gradients, and 12 of optimizer state, which are a float32 master weight and two
float32 moments (Rajbhandari et al., "ZeRO", SC 2020, section 3.1 and figure 1).
"""

from minidist.show.figures.memory import COLOURS
from minidist.show.player.scene import Box, Cue, Dial, Frame, Label, Question, Scene, Shape

NAME = "16 bytes"
BYTES = {"parameters": 2, "gradients": 2, "optimizer": 12}
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}  # the first stage in which a kind is sharded
STAGES = ("replicated", "stage 1", "stage 2", "stage 3")
RANKS = (2, 4, 8, 64, 1024)
LEFT, PITCH, WIDE = 7, 16.5, 12  # characters: the first bar, from one bar to the next, and a bar
TOP, FLOOR = 1.2, 9.6  # lines
NOTES = (
    "Plain data parallelism: every rank keeps all 16 bytes of every parameter, and all ranks keep the same.",
    "Stage 1: a rank keeps the optimizer state of its own shard alone. Three quarters of all bytes were there.",
    "Stage 2: it keeps the gradients of its shard alone: they are freed as soon as they are summed.",
    "Stage 3: and the weights of its shard alone. A block's weights are gathered to compute, and freed after it.",
    "Gathered and freed in every step: the next scenes show it as measured here.",
)


def kept(kind: str, stage: int, ranks: int) -> float:
    """Bytes per parameter that a rank keeps of a kind."""
    return BYTES[kind] / (ranks if stage >= SHARDED_FROM[kind] else 1)


def scene(ranks: int) -> Scene:
    """A scene with a dial for the number of ranks, which begins with ``ranks`` or the next larger number."""
    start = next((i for i, count in enumerate(RANKS) if count >= ranks), len(RANKS) - 1)
    variants = tuple(_scene(count) for count in RANKS)
    dial = Dial("ranks", tuple(map(str, RANKS)), start)
    return _scene(RANKS[start], (dial,), variants)


def _scene(ranks: int, dials: tuple[Dial, ...] = (), variants: tuple[Scene, ...] = ()) -> Scene:
    frames = tuple(
        Frame(tuple(_shapes(min(now, 3), ranks)), note, _facts(min(now, 3), ranks)) for now, note in enumerate(NOTES)
    )
    totals = [sum(kept(kind, stage, ranks) for kind in BYTES) for stage in range(4)]
    left = tuple(f"{totals[stage]:.3g} bytes" for stage in (1, 2, 3))
    questions = (
        Question(1, "Which stage removes the 12 bytes first?", STAGES[1:], 0,
                 "Optimizer state is the largest part, and no one needs another rank's: each updates its own shard."),
        Question(3, f"How much of the 16 bytes is left in stage 3 on {ranks} ranks?", left, 2,
                 f"16 / {ranks}: everything is sharded, so memory per rank falls with every rank that is added."),
    )  # fmt: skip
    cues = (
        Cue(0, 2, "A model of 7 billion parameters needs 112 GB for this alone, more than an H100's 80 GB."),
        Cue(1, 2, "Turn the dial: which bar still shrinks with more ranks, and which has a floor?"),
        Cue(3, 2, "Stage 3 pays with traffic: 1.5 times that of plain data parallelism."),
    )
    return Scene(
        NAME,
        f"What one rank of {ranks} keeps of a model in bfloat16, bytes per parameter",
        frames,
        FLOOR + 1.2,
        {"weights": COLOURS["parameters"], "gradients": COLOURS["gradients"], "optimizer state": COLOURS["optimizer"]},
        f"16 bytes, then {', '.join(f'{total:.3g}' for total in totals[1:])}",
        stills=(3,),
        details="4 + 12/N, 2 + 14/N and 16/N bytes per parameter in stages 1, 2 and 3 on N ranks.",
        questions=questions,
        cues=cues,
        dials=dials,
        variants=variants,
    )


def _shapes(now: int, ranks: int) -> list[Shape]:
    """The bars of the stages until now."""
    shapes: list[Shape] = []
    for value in (0, 4, 8, 12, 16):
        y = FLOOR - (FLOOR - TOP) * value / 16
        shapes += [Label(LEFT - 2, y, str(value), "faint", "end"), Box(LEFT - 1, y, 66, 0.06, "faint", "", " ")]
    for stage in range(now + 1):
        x, level = LEFT + PITCH * stage, FLOOR
        for kind in BYTES:
            size = kept(kind, stage, ranks)
            h = (FLOOR - TOP) * size / 16
            whole = f"{size:.3g}" if stage < SHARDED_FROM[kind] else f"{BYTES[kind]}/{ranks}"
            text = whole if h >= 0.9 else ""
            level -= h
            shapes.append(Box(x, level, WIDE, h, COLOURS[kind], text, kind[0], id=f"{kind}, {STAGES[stage]}"))
        total = sum(kept(kind, stage, ranks) for kind in BYTES)
        shapes += [
            Label(x + WIDE / 2, level - 0.6, f"{total:.3g} bytes", "ink", "middle"),
            Label(x + WIDE / 2, FLOOR + 0.7, STAGES[stage], "ink", "middle"),
        ]
    return shapes


def _facts(now: int, ranks: int) -> dict[str, str]:
    total = sum(kept(kind, now, ranks) for kind in BYTES)
    return {
        "now": STAGES[now],
        "a rank keeps": f"{total:.3g} B per parameter",
        "a model of 7 billion": f"{7 * total:.3g} GB per rank",
        "fits on an H100 (80 GB)": "yes" if 7 * total <= 80 else "no",
    }
