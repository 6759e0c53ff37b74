"""Stories of ZeRO: four tanks against the memory of a GPU, and what a rank really holds over two steps."""

from collections.abc import Sequence

from minidist.show.demos.shared.memory_log import MemoryLog
from minidist.show.demos.zero.bug import STALE
from minidist.show.figures.memory import COLOURS
from minidist.show.palette import ink_on
from minidist.show.stage.marks import Mark, box, line, text
from minidist.show.stage.mountain import mountain, outline
from minidist.show.stage.piles import Pile
from minidist.show.stage.story import Beat, Dial, Question, Story, with_dial

BYTES = {"parameters": 2, "gradients": 2, "optimizer": 12}  # per parameter (Rajbhandari et al., SC 2020, section 3.1)
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}  # the first stage in which a kind is sharded
STAGES = ("replicated", "stage 1", "stage 2", "stage 3")
SHARDS = ("replicated", "1: optimizer", "2: + gradients", "3: + weights")  # what each stage shards
RANKS = (2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024)
BILLIONS, ROOM = 7, 80  # parameters of a model, and GB of an H100
KINDS = ("parameters", "optimizer", "gradients", "activations", "temporary")
RUNS = 8.0  # seconds that the recorded steps take
KEY = {"weights": COLOURS["parameters"], "gradients": COLOURS["gradients"], "optimizer state": COLOURS["optimizer"]}
KEPT = KEY | {"activations": COLOURS["activations"]}


def kept(kind: str, stage: int, ranks: int) -> float:
    """Bytes per parameter that a rank keeps of a kind."""
    return BYTES[kind] / (ranks if stage >= SHARDED_FROM[kind] else 1)


def tanks(ranks: int) -> Story:
    """Show 16 bytes per parameter, and what each stage leaves of them, with a dial for the number of GPUs."""
    start = min(range(len(RANKS)), key=lambda i: abs(RANKS[i] - ranks))
    return with_dial(Dial("GPUs", tuple(map(str, RANKS)), start), [_tanks(count) for count in RANKS])


def _tanks(ranks: int) -> Story:
    most, foot, high = 120.0, 540, 480  # GB at the top of a tank; pixels
    level = foot - high * ROOM / most
    marks: list[Mark] = []
    colours = {kind: COLOURS[kind] for kind in ("optimizer", "gradients", "parameters")}
    totals = []
    for stage, name in enumerate(SHARDS):
        x = 120 + stage * 300
        walls = box(x - 6, foot - high - 6, 212, high + 12, "none", f"a GPU in {STAGES[stage]}", stroke="ink", round=8)
        pile = Pile(name, (x, foot, 200, high), most, colours)
        amounts = {kind: BILLIONS * kept(kind, stage, ranks) for kind in BYTES}
        pile.set(1.0 + 2.0 * stage if stage else 0.0, amounts, 1.0)
        total = sum(amounts.values())
        totals.append(total)
        value = text(x + 100, 26, f"{total:.3g} GB", 40, "right" if total <= ROOM else "wrong", weight=700)
        marks += [*pile.marks(), walls, value.enter(2.0 + 2.0 * stage, 0.1) if stage else value]
    below = 0.0
    for kind, words in zip(colours, ("optimizer", "gradients", "weights"), strict=True):  # in the tank that stays full
        amount = BILLIONS * kept(kind, 0, ranks)
        ink = "#000000" if ink_on(colours[kind]) == "black" else "#FFFFFF"
        marks.append(text(220, foot - high * (below + amount / 2) / most, words, 28, ink))
        below += amount
    marks += [line([(20, level), (1260, level)], "wrong", 5), text(20, level - 22, f"{ROOM} GB", 28, "wrong", "start")]
    asked = Question.number(
        f"How much does each of {ranks} GPUs keep if all is sharded?",
        totals[3],
        totals[1:3],
        f"16 bytes x {BILLIONS} billion / {ranks}: every added GPU reduces it.",
        "{:.3g} GB",
    )
    says = (
        f"One GPU's memory: {BILLIONS} billion parameters, 16 bytes each, and every GPU has all of them.",
        "Stage 1: the optimizer state is sharded. Each GPU keeps its own share.",
        "Stage 2: the gradients are sharded, too.",
        "Stage 3: the weights are sharded, too. Each block's are gathered, used and freed.",
    )
    beats = [
        Beat(
            2.2 * (stage > 0) + 2.0 * stage,
            words,
            {"each GPU keeps": f"{totals[stage]:.3g} GB"},
            asks=asked if not stage else None,
            answers=asked if stage == 3 else None,
        )
        for stage, words in enumerate(says)
    ]
    return Story("16 bytes", "Must every GPU keep everything?", marks, beats, key=KEY)


def steps(held: Sequence[MemoryLog], most: int, details: str, stale: Sequence[int] = (), bug: str = "") -> Story:
    """Show what rank 0 holds over two real steps, in each stage, on one clock. ``stale``: stages with the bug."""
    marks: list[Mark] = []
    colours = {kind: COLOURS[kind] for kind in KINDS if kind in COLOURS}
    for stage, log in enumerate(held):
        x, y = 30 + 640 * (stage % 2), 40 + 290 * (stage // 2)
        place = (x, y, 580, 230)
        hill = [outline(lambda *part: sum(held[0].between(*part)[kind] for kind in colours), place, most)]
        hill += mountain(log.between, colours, place, most, (0.2, RUNS))
        if stage in stale:
            for start, end in [*log.places(STALE), *_ungathered(log, stage)]:
                band = box(x + 580 * start, y, 580 * (end - start), 230, "wrong", "stale parameters", sign="!")
                hill.append(band.begin(opacity=0.0).to(0.2 + RUNS * start, 0.2, opacity=0.5))
        marks += [*hill, text(x, y - 16, STAGES[stage], 30, anchor="start", weight=700)]
        peak = f"peak {log.highest() / 1e3:,.0f} kB"
        marks.append(text(x + 580, y - 16, peak, 30, anchor="end").enter(RUNS + 0.2, 0.1))
    least = min(range(len(held)), key=lambda stage: held[stage].highest())
    asked = Question(
        "Two real steps of rank 0. In which stage is the peak lowest?",
        STAGES,
        least,
        "Between steps only shards stay; what a block gathers is freed at once."
        if least == 3
        else "Between steps only shards stay. But gathering takes room, here more than stage 3 saves.",
    )
    facts = {
        name: f"{log.highest('gradients'):,} bytes of gradients at most" for name, log in zip(STAGES, held, strict=True)
    }
    asked = None if bug else asked
    beats = [
        Beat(0, "The grey line: rank 0 in plain data parallelism, in two real steps. What do stages save?", asks=asked),
        Beat(0.2 + RUNS / 2, "One step is over: activations are freed, the rest stays."),
        Beat(
            RUNS + 0.5,
            "Red: it uses weights of the previous step."
            if bug
            else f"The same bits in all four. {STAGES[least].capitalize()} has the lowest peak.",
            facts,
            answers=asked,
        ),
    ]
    verdict = "Training goes on, and is wrong." if bug else "Every bit matches one process."
    return Story("two steps", "What does a rank hold during a step?", marks, beats, verdict, bug, details, key=KEPT)


def _ungathered(log: MemoryLog, stage: int) -> list[tuple[float, float]]:
    """Return the places, in stages 1 and 2, from the gather that skips a block to the next gather."""
    if stage == 3:
        return []
    (start, _), (end, _) = log.places("sync parameters")
    return [(start, end)]
