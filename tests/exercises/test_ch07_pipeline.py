"""Graders of chapter 7: schedules are graded without running them, in exact slots; the executor runs on real ranks."""

import random
import re
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from minidist.course.authoring.assertions import brief, compared, number, peak_bytes
from minidist.course.sandbox.values import generator, nbytes, working_dtype
from minidist.parallel.tools import schedule_check, schedules
from minidist.parallel.tools.schedule_check import ScheduleError
from minidist.parallel.tools.schedules import Action, schedule, written

SCHEDULES, CHECK = "minidist.parallel.tools.schedules", "minidist.parallel.tools.schedule_check"


def answers(*forbidden):
    """While these tests run, these parts of the library are forbidden."""
    return pytest.mark.answers("ch07_pipeline", forbidden=forbidden)


pytestmark = answers()

RANKS, MICRO_BATCHES = range(1, 9), range(1, 17)
SIZES = (1, 2, 3)  # numbers of real ranks
DTYPES = ("float64", "float32")  # of the messages between stages


# On a rank


def lend(module, *mine: str) -> None:
    """Replace the learner's functions of other tasks by the library's, so that each task is graded on its own."""
    for library in (schedules, schedule_check):
        for name in ("gpipe", "one_f_one_b", "interleaved_1f1b", "needs", "timeline", "bubble", "in_flight"):
            if name not in mine and hasattr(library, name):
                setattr(module, name, getattr(library, name))


def run_each(world, module, name, inputs):
    return [getattr(module, name)(*args) for args in inputs]


def run_schedules(world, module, name, sizes):
    """Return for each (ranks, micro-batches, ...) the actions of every rank as text, or the error.

    Lists become text only at the end: a list that a later call changes shows.
    """
    lend(module, name)
    found = []
    for ranks, *more in sizes:
        try:
            found.append([getattr(module, name)(rank, ranks, *more) for rank in range(ranks)])
        except ValueError as error:
            found.append(f"{type(error).__name__}: {error}")
    return [lists if isinstance(lists, str) else list(map(actions_as_text, lists)) for lists in found]


def actions_as_text(actions) -> list[str] | str:
    """A list of Actions as a list of text; anything else as a description of it."""
    if not isinstance(actions, list | tuple):
        return brief(actions)
    wrong = [type(action).__name__ for action in actions if not isinstance(action, Action)]
    return f"a list with a {wrong[0]}" if wrong else [str(action) for action in actions]


# In the grader


def found_for(student, name: str, inputs) -> list[tuple]:
    """Pairs of arguments and what the function returns for them."""
    inputs = list(inputs)
    return list(zip(inputs, student.on_ranks(1, run_each, name, inputs)[0].value, strict=True))


def parsed(*ranks: str) -> list[list[Action]]:
    return [[Action.parse(text) for text in rank.split()] for rank in ranks]


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's' if not thing.endswith('h') else 'es'}"


def size_of(ranks: int, micro_batches: int, virtual: int = 1) -> str:
    stages = f" with {virtual} stages each" if virtual > 1 else ""
    return f"{counted(ranks, 'rank')}{stages}, {counted(micro_batches, 'micro-batch')}"


def as_text(planned) -> str:
    """A schedule as text, if it is short."""
    text = "; ".join(f"rank {rank}: {written(actions)}" for rank, actions in enumerate(planned))
    return f"\n{text}" if len(text) < 400 else ""


def times(planned) -> tuple[int, Fraction]:
    """The slots that a schedule takes, and the idle share of them."""
    slots = [slot for rank in schedule_check.timeline(planned) for slot in rank]
    span = int(max(slot.end for slot in slots))
    return span, 1 - Fraction(int(sum(slot.end - slot.start for slot in slots)), len(planned) * span)


def proved(student, name, sizes, kinds: str) -> list[tuple]:
    """Return the learner's schedule of each size, checked: complete, every stage on its rank, no deadlock."""
    sizes = list(sizes)
    found = []
    for size, lists in zip(sizes, student.on_ranks(1, run_schedules, name, sizes)[0].value, strict=True):
        what = f"{name}, {size_of(*size)}"
        assert not isinstance(lists, str), f"{what}: {lists}"
        for rank, actions in enumerate(lists):
            assert not isinstance(actions, str), f"{what}, rank {rank}: expected a list of Actions, got {actions}"
        try:
            planned = parsed(*map(" ".join, lists))
        except ValueError as error:
            raise AssertionError(f"{what}: {error}") from None
        for rank, actions in enumerate(planned):
            for action in actions:
                assert action.stage % size[0] == rank, (
                    f"{what}: {action} is on rank {rank}, but stage {action.stage} is on rank {action.stage % size[0]}"
                )
                assert action.kind in kinds, f"{what}: expected only {', '.join(kinds)}, got {action} on rank {rank}"
        stages = size[0] * (size[2] if len(size) > 2 else 1)
        there = {action.stage for actions in planned for action in actions}
        missing = sorted(set(range(stages)) - there)
        assert not missing, f"{what}: rank {missing[0] % size[0]} has no action of stage {missing[0]}"
        try:
            schedule_check.check_schedule(planned, size[1])
        except ScheduleError as error:
            raise AssertionError(f"{what}: {error}{as_text(planned)}") from None
        found.append((size, what, planned))
    return found


def check_bubble(what: str, planned, right: Fraction) -> None:
    span, found = times(planned)
    assert found == right, f"{what}: expected a bubble of {right}, got {found} in {span} slots{as_text(planned)}"


LARGE = [(9, 9), (3, 50), (12, 7), (16, 33)]  # not in any table
ALL_SIZES = [*product(RANKS, MICRO_BATCHES), *LARGE]
SMALL = [(1, 1), (2, 1), (1, 3), (2, 2), (2, 4), (3, 4)]


# 7.1


@pytest.mark.task(
    "7.1",
    points=3,
    kind="worksheet",
)
class TestBubble:
    """The bubble, how many micro-batches make it small, and how little a pipeline sends"""

    def check_share(self, student, sizes) -> None:
        for (p, m, v), found in found_for(student, "bubble_share", sizes):
            right = Fraction(p - 1, v * m + p - 1)
            assert number(found, "bubble_share") == pytest.approx(float(right), rel=1e-12), (  # two float operations
                f"{size_of(p, m, v)}: expected a bubble of {right} = {float(right):.6g}, got {found:.6g}"
            )

    def test_of_textbooks(self, student):
        self.check_share(student, [(4, 4, 1), (8, 32, 1), (16, 64, 1), (1, 5, 1), (9, 1, 1), (9, 18, 5)])

    def test_like_simulated_ones(self, student):
        """The bubbles of GPipe, 1F1B and interleaved 1F1B, counted slot by slot."""
        for name, sizes in (
            ("gpipe", [(p, m, 1) for p in (1, 2, 5) for m in (1, 3, 8)]),
            ("1f1b", [(p, m, 1) for p in (1, 2, 5) for m in (1, 3, 8)]),
            ("interleaved", [(p, m * p, v) for p in (1, 2, 4) for m in (1, 3) for v in (1, 2, 3)]),
        ):
            for size, found in found_for(student, "bubble_share", sizes):
                _, right = times(schedule(name, *size))
                assert number(found, "bubble_share") == pytest.approx(float(right), rel=1e-12), (
                    f"{name}, {size_of(*size)}: expected {right} = {float(right):.6g} by counting slots, got "
                    f"{found:.6g}"
                )

    def test_fewest_micro_batches(self, student):
        ranks = (*range(1, 10), 16, 61)
        sizes = [(p, v, percent) for p in ranks for v in (1, 2, 3, 7) for percent in range(99, 0, -1)]
        right = 0
        for (p, v, percent), found in found_for(student, "fewest_micro_batches", sizes):
            step = p if v > 1 else 1
            if percent == 99:  # for lower percentages it only grows
                right = step
            while 100 * (p - 1) > percent * (v * right + p - 1):
                right += step
            rounds = f", a multiple of {p}" if v > 1 else ""
            assert number(found, "fewest_micro_batches") == right, (
                f"{counted(p, 'rank')}, {counted(v, 'stage')} on each, a bubble of at most {percent} per cent: "
                f"expected {counted(right, 'micro-batch')}{rounds}, got {found}"
            )

    def test_pipeline_bytes(self, student):
        sizes = [(r, p, v, m, 96) for p in (1, 2, 3, 8, 9) for r in range(p) for v in (1, 2, 5) for m in (1, 16)]
        sizes = [size for size in sizes if size[1] > 1 or size[2] == 1]
        for (r, p, v, m, each), found in found_for(student, "pipeline_bytes", sizes):
            stages = range(r, p * v, p)
            neighbours = [side for stage in stages for side in (stage > 0, stage + 1 < p * v)]
            right = m * sum(neighbours) * each
            assert number(found, "pipeline_bytes") == right, (
                f"bytes that rank {r} of {size_of(p, m, v)} sends in messages of {each} bytes: expected {right}, got "
                f"{found}; it has stage {', '.join(map(str, stages))} of {p * v}"
            )

    def test_tensor_to_pipeline(self, student):
        for (layers, p), found in found_for(
            student, "tensor_to_pipeline", [(126, 8), (126, 16), (32, 4), (6, 3), (9, 9), (61, 61)]
        ):
            ring = Fraction(2 * (p - 1), p)
            right = float(4 * layers * ring / 2)  # to the left and to the right
            assert number(found, "tensor_to_pipeline") == pytest.approx(right, rel=1e-12), (
                f"{layers} layers, {p} ranks: expected {right:g} times as many bytes, got {found:g}. Tensor "
                "parallelism "
                f"sends {ring} times the activations in each of {4 * layers} all-reduces, the pipeline 2 times in all"
            )


# 7.2


@answers(f"{SCHEDULES}:gpipe")
@pytest.mark.task(
    "7.2",
    points=2,
)
class TestGPipe:
    """gpipe: all forwards, then all backwards"""

    def check(self, student, sizes) -> None:
        for (p, m), what, planned in proved(student, "gpipe", sizes, "FB"):
            for rank, actions in enumerate(planned):
                kinds = "".join(action.kind for action in actions)
                assert kinds == "F" * m + "B" * m, (
                    f"{what}, rank {rank}: expected all F, then all B, got {written(actions)[:300]}"
                )
            check_bubble(what, planned, Fraction(p - 1, m + p - 1))

    def test_small(self, student):
        self.check(student, SMALL)

    def test_all_sizes(self, student):
        self.check(student, ALL_SIZES)


# 7.3


def uneven(action: Action) -> int:
    """A duration that depends on everything."""
    return 1 + (3 * action.stage + 5 * action.micro_batch + 7 * "FBIW".index(action.kind)) % 6


def fractions(action: Action) -> float:
    """A duration in quarters of a slot, and sometimes none at all: exact in float64."""
    return (uneven(action) - 1) / 4


DURATIONS = {"uneven": uneven, "fractions": fractions}


def run_needs(world, module, cases):
    found = [module.needs(*case) for case in cases]
    return [[[str(one) for one in some] for some in needed] for needed in found]


def run_timeline(world, module, planned, how: str):
    """Each rank's Slots, or the error's message; and whether the schedule is unmodified."""
    kept = [list(actions) for actions in planned]
    try:
        found = module.timeline(planned, DURATIONS[how]) if how else module.timeline(planned)
    except ScheduleError as error:
        found = str(error)
    return found, list(map(list, planned)) == kept


def run_timelines(world, module, cases):
    """Return for each case what ``run_timeline`` finds. Slots become tuples only at the end."""
    lend(module, "needs", "timeline", "bubble")
    found = [run_timeline(world, module, *case) for case in cases]
    return [(one if isinstance(one, str) else list(map(slots_as_tuples, one)), kept) for one, kept in found]


def slots_as_tuples(slots) -> list[tuple]:
    return [(str(slot.action), slot.start, slot.end) for slot in slots]


def run_bubbles(world, module, cases):
    lend(module, "bubble")
    return [module.bubble(slots) for slots in cases]


def any_order(seed: int, ranks: int, stages: int, micro_batches: int, halves: bool = False) -> list[list[Action]]:
    """A random schedule that can run."""
    chance = random.Random(seed)
    kinds = "FIW" if halves else "FB"
    left = {Action(s, kind, i) for s in range(stages) for kind in kinds for i in range(micro_batches)}
    planned, done = [[] for _ in range(ranks)], set()
    while left:
        ready = [a for a in sorted(left) if all(done & set(some) for some in schedule_check.needs(a, stages))]
        action = chance.choice(ready)
        left.remove(action)
        done.add(action)
        planned[action.stage % ranks].append(action)
    return planned


def stuck_at(planned) -> list[Action]:
    """The action at which each rank is stuck, found by running one action after the other."""
    stages = 1 + max(action.stage for actions in planned for action in actions)
    done, places = set(), [0] * len(planned)
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(planned):
            if places[rank] < len(actions):
                action = actions[places[rank]]
                if all(done & set(some) for some in schedule_check.needs(action, stages)):
                    done.add(action)
                    places[rank] += 1
                    moved = True
    return [actions[place] for actions, place in zip(planned, places, strict=True) if place < len(actions)]


def check_names(message: str, actions, what: str) -> None:
    for action in actions:
        assert re.search(rf"\b{action}\b", message), f"{what}: expected a message that names {action}, got: {message}"


@answers(f"{CHECK}:needs", f"{CHECK}:timeline", f"{CHECK}:bubble")
@pytest.mark.task(
    "7.3",
    points=4,
)
class TestTimeline:
    """needs, timeline, bubble: when everything happens, from the schedule alone"""

    def test_needs(self, student):
        cases = [(Action(s, kind, i), n) for n in (1, 2, 4) for s in range(n) for kind in "FBIW" for i in (0, 3)]
        for (action, stages), found in zip(cases, student.on_ranks(1, run_needs, cases)[0].value, strict=True):
            right = sorted(sorted(map(str, some)) for some in schedule_check.needs(action, stages))
            words = " and ".join(" or ".join(some) for some in right) or "nothing"
            assert sorted(map(sorted, found)) == right, (
                f"needs of {action} with {counted(stages, 'stage')}: expected {words}: {right}, got {found}"
            )

    def check(self, student, cases) -> None:
        cases = list(cases)
        for (planned, how), (found, kept) in zip(
            cases, student.on_ranks(1, run_timelines, cases)[0].value, strict=True
        ):
            assert not isinstance(found, str), f"this schedule can run, got ScheduleError: {found}{as_text(planned)}"
            assert kept, f"expected the schedule unmodified, but timeline modifies it{as_text(planned)}"
            right = schedule_check.timeline(planned, *([DURATIONS[how]] if how else []))
            assert len(found) == len(right), f"expected {counted(len(right), 'list')}, one per rank, got {len(found)}"
            durations = " (the durations differ from the default)" if how else ""
            for rank, (mine, those) in enumerate(zip(found, right, strict=True)):
                for one, slot in zip(mine, those, strict=False):
                    assert one == (str(slot.action), slot.start, slot.end), (
                        f"rank {rank}: expected {slot.action} from {slot.start:g} to {slot.end:g}, "
                        f"got {one[0]} from {one[1]:g} to {one[2]:g}{durations}{as_text(planned)}"
                    )
                assert len(mine) == len(those), f"rank {rank}: expected {len(those)} slots, got {len(mine)}"

    def test_of_schedules(self, student):
        self.check(student, [(parsed("0F0 0B0"), ""), (parsed("0F0 0B0", "1F0 1B0"), "")])
        sizes = [(1, 3), (2, 3), (3, 4), (4, 8)]
        self.check(student, [(schedule(name, *size), "") for name in ("gpipe", "1f1b", "zb-h1") for size in sizes])

    def test_any_durations(self, student):
        for how in DURATIONS:
            self.check(student, [(schedule("1f1b", 4, 5), how), (schedule("zb-h1", 3, 5), how)])

    def test_any_schedule(self, student):
        cases = [(schedule("interleaved", 2, 4, 3), "uneven"), (schedule("interleaved", 4, 8, 2), "")]
        cases += [(any_order(seed, 1 + seed % 4, 1 + seed % 6, 4, seed % 2 == 0), "uneven") for seed in range(12)]
        cases += [(any_order(seed, 3, 4, 3), "fractions") for seed in range(12, 16)]
        cases += [
            (tuple(map(tuple, schedule("1f1b", 3, 3))), ""),
            (parsed("0F0 0B0", ""), ""),
        ]  # a rank without actions
        cases += [(schedule("1f1b", 9, 20), "fractions"), (parsed("1F7 1B7", "0F7 0B7"), "")]
        self.check(student, [*cases, (parsed("0F0 1F0 1B0 0B0"), "")])

    def test_deadlocks(self, student):
        cases = [
            parsed("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"),
            parsed("0B0 0F0", "1F0 1B0"),
            parsed("0F0 0W0 0I0", "1F0 1B0"),
            parsed("0F0 0F1", "1F0 1F1 1F2"),
        ]
        found = student.on_ranks(1, run_timelines, [(planned, "") for planned in cases])[0].value
        for planned, (message, _) in zip(cases, found, strict=True):
            assert isinstance(message, str), (
                f"this schedule deadlocks: expected a ScheduleError, got none{as_text(planned)}"
            )
            check_names(message, stuck_at(planned), f"a schedule that deadlocks{as_text(planned)}")

    def test_bubble(self, student):
        later = [[schedule_check.Slot(Action(0, "F", 0), 7, 9)], [schedule_check.Slot(Action(1, "F", 0), 9, 11)]]
        cases = [schedule_check.timeline(schedule(name, *size)) for name in ("gpipe", "1f1b") for size in SMALL]
        cases += [schedule_check.timeline(schedule("zb-h1", 3, 4), how) for how in DURATIONS.values()]
        early = [[schedule_check.Slot(Action(0, "F", 0), -2.5, -0.25)], []]  # and a rank that does nothing
        cases += [later, early, later + early, [[schedule_check.Slot(Action(0, "F", 0), 0.125, 0.25)]]]
        for slots, found in zip(cases, student.on_ranks(1, run_bubbles, cases)[0].value, strict=True):
            right, start = schedule_check.bubble(slots), min(slot.start for row in slots for slot in row)
            assert number(found, "bubble") == pytest.approx(right, abs=1e-12), (  # a few float operations
                f"expected a bubble of {right:g}, got {found:g}; the first action starts at {start:g}"
                f"{as_text([[s.action for s in row] for row in slots])}"
            )


# 7.4


def timeline_of_7_3(planned, *how):
    """``timeline`` as task 7.3 asks for it: its message names where ranks are stuck, not what is missing."""
    if stuck := stuck_at(planned):
        raise ScheduleError(f"stuck at {', '.join(map(str, stuck))}")
    return schedule_check.timeline(planned, *how)


def run_checks(world, module, cases):
    """Return for each case the error's type, its message, and whether the schedule is unmodified."""
    lend(module)
    module.timeline = timeline_of_7_3
    found = []
    for planned, micro_batches in cases:
        kept = [list(actions) for actions in planned]
        kind = message = ""
        try:
            module.check_schedule(planned, micro_batches)
        except Exception as error:
            if isinstance(error, NotImplementedError):
                raise
            kind, message = type(error).__name__, str(error)
        found.append((kind, message, [list(actions) for actions in planned] == kept))
    return found


def check_by_training(world, module) -> tuple:
    """The library's training calls the learner's checker before it starts."""
    from minidist import overrides
    from minidist.train.config import TrainConfig
    from minidist.train.layout import Layout
    from minidist.train.result import RunOptions
    from minidist.train.trainer import train_rank

    lend(module)
    overrides.override({"check_schedule": module.check_schedule})
    try:
        config = TrainConfig(layers=2, heads=2, width=4, context=4, steps=1, global_batch=2, micro_batch=1, warmup=1)
        train_rank(world, config, Layout.parse("pp=2"), RunOptions())
        return dict(overrides.calls)
    finally:
        overrides.override({})


@answers(f"{CHECK}:check_schedule")
@pytest.mark.task(
    "7.4",
    points=4,
)
class TestCheckSchedule:
    """check_schedule: reject schedules that are incomplete or deadlock"""

    def check(self, student, cases) -> None:
        """Cases: a schedule, its micro-batches, and groups of actions; the message names one action of each group. A
        correct schedule has no groups."""
        cases = list(cases)
        found = student.on_ranks(1, run_checks, [case[:2] for case in cases])[0].value
        for (planned, micro_batches, groups), (kind, message, kept) in zip(cases, found, strict=True):
            what = f"{counted(micro_batches, 'micro-batch')}{as_text(planned)}"
            if groups:
                wrong = ", ".join(map(str, groups[0]))
                assert kind, f"expected a ScheduleError, got none: the schedule is wrong at {wrong}: {what}"
                assert kind == "ScheduleError", f"expected a ScheduleError, got {kind}: {message}: {what}"
                for some in groups:
                    assert any(re.search(rf"\b{one}\b", message) for one in some), (
                        f"expected a message that names {' or '.join(map(str, some))}, got: {message}\n{what}"
                    )
            else:
                assert not kind, f"this schedule is correct, got {kind}: {message}: {what}"
            assert kept, f"expected the schedule unmodified, but check_schedule modifies it: {what}"

    def test_right_ones(self, student):
        cases = [(schedule(name, p, m), m) for name in ("gpipe", "1f1b", "zb-h1") for p in (1, 2, 5) for m in (1, 7)]
        cases += [(schedule("interleaved", p, 2 * p, v), 2 * p) for p, v in ((1, 3), (2, 2), (3, 3))]
        cases += [(any_order(seed, 1 + seed % 3, 1 + seed % 6, 3, seed % 2 == 0), 3) for seed in range(6)]
        cases += [(parsed("0F0 0I0 0W0", "1F0 1B0"), 1), (tuple(map(tuple, schedule("1f1b", 3, 3))), 3)]
        cases += [(parsed("0F0 1F0 1B0 0B0", "2F0 2B0"), 1), (parsed("1F0 1B0", "0F0 0B0"), 1)]  # another placement
        cases += [(parsed("", "0F0 0B0", ""), 1), (schedule("1f1b", 9, 10), 10)]
        self.check(student, [(planned, m, []) for planned, m in cases])

    def test_missing(self, student):
        cases = [(parsed("0F0 0B0", "1B0"), 1, ["1F0"]), (parsed("0F0 0B0", "1F0"), 1, ["1B0 1I0 1W0"])]
        cases += [
            (parsed("0F0 0I0", "1F0 1B0"), 1, ["0W0 0B0 0I0"]),
            (parsed("0F0 0W0", "1F0 1B0"), 1, ["0I0 0B0 0W0"]),
        ]
        cases += [(parsed("0F0 0B0", "2F0 2B0"), 1, ["1F0 1B0 1I0 1W0"])]
        cases += [(schedule("1f1b", 2, 3), 4, ["0F3 1F3 0B3 1B3 0I3 1I3 0W3 1W3"])]
        correct = schedule("gpipe", 3, 3)
        for rank, place in product(range(3), range(6)):
            fewer = [list(actions) for actions in correct]
            gone = fewer[rank].pop(place)
            names = [str(gone)] if gone.kind == "F" else [f"{gone.stage}{kind}{gone.micro_batch}" for kind in "BIW"]
            cases.append((fewer, 3, [" ".join(names)]))
        self.check(student, [(planned, m, [group.split() for group in groups]) for planned, m, groups in cases])

    def test_too_many(self, student):
        cases = [
            (parsed("0F0 0F0 0B0", "1F0 1B0"), 1, "0F0"),
            (parsed("0F0 0B0 0B0", "1F0 1B0"), 1, "0B0"),
            (parsed("0F0 0I0 0W0 0W0", "1F0 1B0"), 1, "0W0"),
            (parsed("0F0 0I0 0W0", "1F0 1I0 1I0 1W0"), 1, "1I0"),
            (parsed("0F0 0B0 0I0 0W0", "1F0 1B0"), 1, "0B0 0I0 0W0"),
            (parsed("0F0 0I0 0B0", "1F0 1B0"), 1, "0B0 0I0"),
            (parsed("0F0 0B0 0W0", "1F0 1B0"), 1, "0B0 0W0 0I0"),
            (schedule("1f1b", 2, 4), 3, "0F3 0B3 1F3 1B3"),
            (parsed("0F0 0B0 0F1", "1F0 1B0"), 1, "0F1"),
            (parsed("0F0 0B0 0F9", "1F0 1B0"), 1, "0F9"),
            (parsed("0F0 0B0", "1F0 1B0 1I7"), 1, "1I7"),
            ([[Action(0, kind, i) for kind in "FB" for i in (-1, 0)]], 1, "0F-1 0B-1"),
            (parsed("0F0 0B0 0F0 0B0 0F0"), 1, "0F0 0B0"),
            (parsed("0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"), 1, "0F1 0B1 1F1 1B1"),
        ]
        self.check(student, [(planned, m, [wrong.split()]) for planned, m, wrong in cases])

    def test_a_stage_on_two_ranks(self, student):
        cases = [
            (parsed("0F0 0B0 1F0", "1B0"), 1, "1F0 1B0"),
            (parsed("0F0 0B0 0F1 0B1 1B1", "1F0 1B0 1F1"), 2, "1B1 1F0 1B0 1F1"),
            (parsed("0F0 0B0", "0F1 0B1"), 2, "0F0 0B0 0F1 0B1"),
            (parsed("0F0 0B0", "1F0 1B0", "0F0 0B0"), 1, "0F0 0B0"),
        ]
        self.check(student, [(planned, m, [wrong.split()]) for planned, m, wrong in cases])

    def test_deadlocks(self, student):
        cases = [parsed("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"), parsed("0B0 0F0", "1F0 1B0")]
        cases += [parsed("0F0 0W0 0I0", "1F0 1I0 1W0"), parsed("1F0 1B0 0F0 0B0")]
        self.check(student, [(planned, 1 + (len(planned[0]) == 4 and len(planned) == 2),
                              [[action] for action in stuck_at(planned)]) for planned in cases])  # fmt: skip

    def test_every_swap(self, student):
        """All schedules that differ from a correct one by a swap of two neighbours; some of them deadlock."""
        cases = []
        for correct, m in (
            (schedule("1f1b", 3, 4), 4),
            (schedule("zb-h1", 3, 4), 4),
            (schedule("interleaved", 2, 4, 2), 4),
        ):
            for rank, actions in enumerate(correct):
                for place in range(len(actions) - 1):
                    swapped = [list(others) for others in correct]
                    swapped[rank][place : place + 2] = swapped[rank][place : place + 2][::-1]
                    cases.append((swapped, m, [[action] for action in stuck_at(swapped)]))
        assert 5 < sum(bool(groups) for *_, groups in cases) < len(cases) - 5
        self.check(student, cases)

    def test_before_training(self, student):
        for rank, seen in enumerate(student.on_ranks(2, check_by_training)):
            assert seen.value.get("check_schedule"), f"pp=2, rank {rank}: training did not call check_schedule"


# 7.5


@answers(f"{SCHEDULES}:one_f_one_b", f"{SCHEDULES}:zero_bubble_h1")
@pytest.mark.task(
    "7.5",
    points=4,
)
class TestOneFOneB:
    """one_f_one_b: forwards and backwards alternate"""

    def check(self, student, sizes) -> None:
        for (p, m), what, planned in proved(student, "one_f_one_b", sizes, "FB"):
            for rank, actions in enumerate(planned):
                most = schedule_check.in_flight(actions)
                assert most <= p - rank, (
                    f"{what}, rank {rank}: expected at most {counted(p - rank, 'micro-batch')} in flight, got {most}"
                    f"{as_text(planned)}"
                )
            check_bubble(what, planned, Fraction(p - 1, m + p - 1))

    def test_small(self, student):
        self.check(student, SMALL)

    def test_all_sizes(self, student):
        self.check(student, ALL_SIZES)


# 7.6


@answers(f"{CHECK}:in_flight")
@pytest.mark.task(
    "7.6",
    points=3,
    kind="worksheet",
)
class TestInFlight:
    """in_flight: how many micro-batches a rank holds, and how many bytes they take"""

    def test_of_any_schedule(self, student):
        lists = [a for name in ("naive", "gpipe", "1f1b", "zb-h1") for size in SMALL for a in schedule(name, *size)]
        lists += [a for size in ((2, 4, 2), (3, 3, 2)) for a in schedule("interleaved", *size)]
        lists += [a for seed in range(6) for a in any_order(seed, 2, 3, 4, seed % 2 == 0)]
        lists += [*parsed("0F0 0F1 0B1 0I0 0F2 0W0 0B2"), [], *parsed("0F0 0B0"), *schedule("1f1b", 9, 40)]
        for (actions,), found in found_for(student, "in_flight", [(actions,) for actions in lists]):
            right = schedule_check.in_flight(actions)
            assert number(found, "in_flight") == right, (
                f"in_flight: expected {right}, got {found}, for: {written(actions)}"
            )

    def test_formulas(self, student):
        for name, function in (("gpipe", "gpipe_in_flight"), ("1f1b", "one_f_one_b_in_flight")):
            sizes = [(rank, p, m) for p in (1, 2, 4, 8, 9) for m in (1, 3, 4, 8, 9, 40) for rank in range(p)]
            for (rank, p, m), found in found_for(student, function, sizes):
                right = schedule_check.in_flight(schedule(name, p, m)[rank])
                assert number(found, function) == right, (
                    f"{function}, rank {rank} of {size_of(p, m)}: expected {right} by counting, got {found}"
                )

    def test_bytes(self, student):
        layer = 34 * 8192 * 16384  # Llama 3 405B's: one sample of 8,192 tokens, without its attention's probabilities
        cases = [
            (1, 126, 14, layer),
            (14, 126, 14, layer),
            (3, 8, 4, 1000),
            (5, 6, 1, 7),
            (0, 8, 4, 1000),
            (2, 9, 9, 1),
        ]
        for (held, layers, p, each), found in found_for(student, "activation_bytes", cases):
            right = held * each * layers // p
            assert number(found, "activation_bytes") == right, (
                f"{counted(held, 'micro-batch')} in flight, {layers} layers on {counted(p, 'rank')}, {each} bytes "
                f"per layer: expected {right} bytes, got {found}"
            )

    def test_how_many_fit(self, student):
        cases = [(80_000, 8, 4, 1000), (79_999, 8, 4, 1000), (1_999, 8, 4, 1000), (2_000, 8, 4, 1000), (0, 4, 4, 9)]
        cases += [(640 << 30, 126, 14, 34 * 8192 * 16384)]
        cases += [((3 << 60) - 1, 8, 4, 1 << 59), (3 << 60, 8, 4, 1 << 59)]  # more digits than a float64 has
        for (memory, layers, p, each), found in found_for(student, "gpipe_micro_batches", cases):
            right = memory * p // (layers * each)
            assert number(found, "gpipe_micro_batches") == right, (
                f"{memory} bytes, {layers} layers on {p} ranks, {each} bytes per layer: expected {right} "
                f"micro-batches, got {found}"
            )


# 7.7


class Recorded:
    """A stage that logs its calls. All numbers are integers, so sums are exact in any order."""

    def __init__(self, number: int, width: int, log: list) -> None:
        self.number, self.log = number, log
        self.weight = weight_of(number, width)
        self.grad = np.zeros(self.weight.shape)
        self.forwards = 0

    def forward(self, x):
        y = np.maximum(x @ self.weight, 0)
        self.log.append((self.number, "F", self.forwards))
        self.forwards += 1
        return y, (x, y, self.forwards - 1)

    def backward_input(self, kept, grad_y):
        x, y, number = kept
        self.log.append((self.number, "I", number))
        grad = grad_y * (y > 0)
        return grad @ self.weight.T, (x, grad, number)

    def backward_weight(self, rest):
        x, grad, number = rest
        self.log.append((self.number, "W", number))
        self.grad += x.T @ grad


def weight_of(stage: int, width: int) -> np.ndarray:
    """Two ones in each row and each column, so that numbers stay small."""
    one = np.roll(np.eye(width), 1 + stage, axis=1)
    return (one + np.roll(np.eye(width), stage % 3, axis=0) * (-1.0) ** stage).astype(working_dtype())


def batches(seed: int, count: int, samples: int, width: int) -> list[np.ndarray]:
    """Micro-batches that all differ."""
    rng = generator(7, seed)
    return [rng.integers(-4, 5, (samples, width)).astype(working_dtype()) for _ in range(count)]


def inputs_and_targets(k: int, count: int, samples: int, width: int) -> tuple[list, list]:
    """Return inputs and targets of the k-th call."""
    return batches(2 * k, count, samples, width), batches(2 * k + 1, count, samples, width)


def loss_of(y, target):
    """The loss, with a fraction that float32 cannot hold beside it, and the gradient of the squared error."""
    errors = y - target
    return float(np.sum(errors**2)) + 2.0**-20, 2 * errors


def alone(k: int, stages: int, count: int, samples: int, width: int) -> tuple[float, list]:
    """The k-th call on one process, one micro-batch after the other: the loss, and each stage's weight gradient."""
    chain = [Recorded(number, width, []) for number in range(stages)]
    total = 0.0
    for x, target in zip(*inputs_and_targets(k, count, samples, width), strict=True):
        kept = []
        for stage in chain:
            x, activations = stage.forward(x)
            kept.append(activations)
        loss, gradient = loss_of(x, target)
        total += loss
        for stage in reversed(chain):
            gradient, rest = stage.backward_input(kept.pop(), gradient)
            stage.backward_weight(rest)
    return total, [stage.grad for stage in chain]


def run_pipelines(world, module, cases, measured=False):
    """Return for each case this rank's loss, gradients, log, sends in flight, and whether its data changed.

    Gradients are looked at when all calls are over. ``measured``: only the peak memory of each call.
    """
    module.squared_error = loss_of
    found = []
    for k, (planned, count, samples, width) in enumerate(cases):
        log: list = []
        stages = 1 + max(action.stage for actions in planned for action in actions)
        mine = {s: Recorded(s, width, log) for s in range(world.rank, stages, world.size)}
        data = inputs_and_targets(k, count, samples, width)
        arguments = planned[world.rank], mine, stages - 1, *data, world
        if measured:
            found.append(peak_bytes(lambda arguments=arguments: module.run_schedule(*arguments)))
            continue
        total = module.run_schedule(*arguments)
        in_flight = sum(map(len, world.transport.sends.values()))
        found.append((total, mine, log, in_flight, unchanged(k, data)))
    return found if measured else [(t, {s: one.grad for s, one in mine.items()}, *more) for t, mine, *more in found]


def unchanged(k: int, data: tuple[list, list]) -> bool:
    """Whether the inputs and targets of the k-th call are still the same."""
    again = inputs_and_targets(k, len(data[0]), *data[0][0].shape) if data[0] else ([], [])
    return all(np.array_equal(*pair) for some in zip(data, again, strict=True) for pair in zip(*some, strict=True))


def check_result(rank: int, size: int, what: str, total, grads: dict, right) -> None:
    """Compare one rank's loss and gradients with those of one process."""
    loss, those = right
    last = len(those) - 1
    expected = loss if rank == last % size else 0.0
    where = f"{what}, rank {rank}"
    assert number(total, where) == expected, f"{where}: the loss: {compared(expected, total)}"
    for s, grad in grads.items():
        wrong = np.argwhere(grad != those[s])
        assert not len(wrong), (
            f"{what}, rank {rank}, weight gradient of stage {s}, element {wrong[0]}: expected "
            f"{those[s][tuple(wrong[0])]:g}, got {grad[tuple(wrong[0])]:g} ({len(wrong)} of {grad.size} elements "
            "differ)"
        )


def check_messages(seen, sent: list[list[int]], size: int, what: str) -> None:
    """Check how many messages each rank sent to each other, and their bytes."""
    for rank, (one, right) in enumerate(zip(seen, sent, strict=True)):
        found = one.traffic.sent[:, 1].tolist()
        assert found == right, (
            f"{what}, messages from rank {rank} to ranks 0 to {len(seen) - 1}: expected {right}, got {found}"
        )
        found, expected = one.traffic.sent[:, 0].tolist(), [count * size for count in right]
        assert found == expected, f"{what}, bytes that rank {rank} sends: expected {expected}, got {found}"


def messages_of(planned) -> list[list[int]]:
    """(ranks, ranks): one message per micro-batch, stage boundary and direction."""
    size = len(planned)
    last = max(action.stage for actions in planned for action in actions)
    sent = [[0] * size for _ in range(size)]
    for rank, actions in enumerate(planned):
        for action in actions:
            if action.kind == "F" and action.stage < last:
                sent[rank][(rank + 1) % size] += 1
            if action.kind in "BI" and action.stage > 0:
                sent[rank][(rank - 1) % size] += 1
    return sent


def log_of(actions) -> list[tuple]:
    """The calls that the stages get, each forward of a stage numbered."""
    numbers: dict = {}
    log = []
    for action in actions:
        if action.kind == "F":
            numbers[action.stage, action.micro_batch] = sum(stage == action.stage for stage, _ in numbers)
        n = numbers[action.stage, action.micro_batch]
        log += [(action.stage, kind, n) for kind in ("IW" if action.kind == "B" else action.kind)]
    return log


SAMPLES, WIDTH = 2, 5
BIG = 128, 96  # 96 KiB of float64: a message is larger than a queue


@answers("minidist.parallel.pipeline")
@pytest.mark.task(
    "7.7",
    points=5,
    dtypes=DTYPES,
)
class TestRunSchedule:
    """run_schedule: any schedule, on real ranks"""

    def check(self, student, planned, what, count, samples=SAMPLES, width=WIDTH):
        return self.check_several(student, len(planned), [(planned, what, count)], samples, width)

    def check_several(self, student, size, cases, samples=SAMPLES, width=WIDTH):
        """Cases: a schedule for ``size`` ranks, its description, its micro-batches. Every other has more samples."""
        cases = list(cases)
        runs = [(planned, count, samples + k % 2, width) for k, (planned, _, count) in enumerate(cases)]
        seen = student.on_ranks(size, run_pipelines, runs)
        for k, (planned, what, count) in enumerate(cases):
            stages = 1 + max(action.stage for actions in planned for action in actions)
            right = alone(k, stages, count, samples + k % 2, width)
            for rank, one in enumerate(seen):
                total, grads, _, _, kept = one.value[k]
                where = what if working_dtype() == np.float64 else f"{what}, {working_dtype()}"
                check_result(rank, size, where, total, grads, right)
                assert kept, f"{where}, rank {rank}: inputs or targets were overwritten"
        return seen

    def test_one_rank(self, student):
        self.check(student, schedule("gpipe", 1, 1), "one rank, one micro-batch", 1)
        self.check(student, schedule("1f1b", 1, 3), "one rank, 3 micro-batches", 3)

    def test_two_ranks(self, student):
        for m in (1, 2):
            self.check(student, schedule("1f1b", 2, m), f"1f1b, {size_of(2, m)}", m)

    def test_gpipe_and_1f1b(self, student):
        for p in (2, 3):
            names = product(("naive", "gpipe", "1f1b"), (1, 2, 5))
            self.check_several(student, p, [(schedule(n, p, m), f"{n}, {size_of(p, m)}", m) for n, m in names])

    def test_halves(self, student):
        for p, m in ((1, 2), (2, 4), (3, 5)):
            self.check(student, schedule("zb-h1", p, m), f"zb-h1, {size_of(p, m)}", m)
        self.check(student, parsed("0F0 0F1 0I1 0B0 0W1", "1F1 1F0 1B1 1I0 1W0"), "both B, and I and W, 2 ranks", 2)

    def test_several_stages(self, student):
        for p, m, v in ((2, 2, 2), (2, 4, 3), (3, 3, 2)):
            self.check(student, schedule("interleaved", p, m, v), f"interleaved, {size_of(p, m, v)}", m)

    def test_any_order(self, student):
        """Each rank takes micro-batches and stages in its own order."""
        for p in (2, 3):
            cases = []
            for seed, (v, halves) in enumerate(product((1, 2), (False, True))):
                planned = any_order(seed, p, p * v, 4, halves)
                cases.append((planned, f"a random schedule, {size_of(p, 4, v)}{as_text(planned)}", 4))
            self.check_several(student, p, cases)

    @pytest.mark.one_dtype
    def test_order_of_the_schedule(self, student):
        for name, planned in (
            ("1f1b", schedule("1f1b", 3, 4)),
            ("zb-h1", schedule("zb-h1", 3, 4)),
            ("a random schedule", any_order(1, 2, 4, 3)),
        ):
            count = 1 + max(action.micro_batch for action in planned[0])
            for rank, one in enumerate(self.check(student, planned, name, count)):
                found, right = one.value[0][2], log_of(planned[rank])
                words = [" ".join(f"{s}{kind}{n}" for s, kind, n in log) for log in (found, right)]
                assert found == right, (
                    f"{name}, rank {rank}, calls of its stages (a B counts as I and W): expected {words[1]}, "
                    f"got {words[0]}"
                )

    def test_messages(self, student):
        for name, planned in (
            ("1f1b", schedule("1f1b", 3, 4)),
            ("zb-h1", schedule("zb-h1", 2, 3)),
            ("interleaved", schedule("interleaved", 3, 3, 2)),
        ):
            count = 1 + max(action.micro_batch for action in planned[0])
            seen = self.check(student, planned, name, count)
            check_messages(seen, messages_of(planned), nbytes(SAMPLES * WIDTH), name)

    @pytest.mark.one_dtype
    def test_larger_than_the_queues(self, student):
        for name, size in (("1f1b", (3, 4)), ("gpipe", (2, 3)), ("zb-h1", (2, 3)), ("interleaved", (2, 2, 2))):
            what = f"{name}, {size_of(*size)}, messages larger than a queue"
            self.check(student, schedule(name, *size), what, size[1], *BIG)

    @pytest.mark.one_dtype
    def test_all_messages_have_left(self, student):
        """A message of a dozen queues' size cannot leave by chance before the function returns."""
        seen = self.check(student, schedule("gpipe", 2, 1), "one micro-batch on 2 ranks", 1, 1024, 96)
        for rank, one in enumerate(seen):
            assert not one.value[0][3], f"rank {rank} returns with a message still in flight"

    @pytest.mark.one_dtype
    def test_memory(self, student):
        count, array = 24, 8 * BIG[0] * BIG[1]
        for name in ("1f1b", "zb-h1", "naive"):
            planned = schedule(name, 2, count)
            for rank, one in enumerate(student.on_ranks(2, run_pipelines, [(planned, count, *BIG)], True)):
                (peak,) = one.value
                held = schedule_check.in_flight(planned[rank])
                # x and y of each micro-batch, or x and a gradient; plus arrays in use and messages in flight
                limit = (2 * held + 10) * array
                assert peak <= limit, (
                    f"{name}, 2 ranks, {count} micro-batches, at most {held} in flight on rank {rank}, peak memory in "
                    f"messages: expected at most {limit // array}, got {peak / array:.1f}. Something is kept "
                    "longer than it is needed"
                )


# 7.8


def run_train(world, module, counts, samples, width):
    module.squared_error = loss_of
    found = []
    for k, count in enumerate(counts):
        stage, data = Recorded(world.rank, width, []), inputs_and_targets(k, count, samples, width)
        total = module.train_1f1b(stage, *data, world)
        found.append((total, stage, unchanged(k, data)))
    return [(total, stage.grad, kept) for total, stage, kept in found]


@pytest.mark.task(
    "7.8",
    points=3,
    dtypes=DTYPES,
    kind="debugging",
)
class TestTrain1F1B:
    """train_1f1b: correct until messages outgrow the queues, then it hangs. Find out why and fix it"""

    def check(self, student, size, counts, samples, width):
        """One run for each number of micro-batches, one after the other."""
        seen = student.on_ranks(size, run_train, counts, samples, width)
        for rank, one in enumerate(seen):
            for k, (count, (total, grad, kept)) in enumerate(zip(counts, one.value, strict=True)):
                what = f"{size_of(size, count)} of {samples} x {width}, {working_dtype()}"
                check_result(rank, size, what, total, {rank: grad}, alone(k, size, count, samples, width))
                assert kept, f"{what}, rank {rank}: inputs or targets were overwritten"
        what = f"{counted(size, 'rank')}, {' + '.join(map(str, counts))} micro-batches of {samples} x {width}"
        check_messages(seen, messages_of(schedule("1f1b", size, sum(counts))), nbytes(samples * width), what)

    def test_small_messages(self, student):
        for size in SIZES:
            self.check(student, size, (1, 2, 5, 0, 5), 3, 16)
        self.check(student, 6, (2, 9), 3, 16)

    def test_large_messages(self, student):
        for size in SIZES:
            self.check(student, size, (1, 2, 5), *BIG)


# 7.9


@answers(f"{SCHEDULES}:interleaved_1f1b")
@pytest.mark.task(
    "7.9",
    points=5,
)
class TestInterleaved:
    """interleaved_1f1b: several stages on a rank, a smaller bubble"""

    def check(self, student, sizes) -> None:
        for (p, m, v), what, planned in proved(student, "interleaved_1f1b", sizes, "FB"):
            for rank, actions in enumerate(planned):
                most, enough = schedule_check.in_flight(actions), 2 * (p - 1 - rank) + (v - 1) * p + 1
                assert most <= enough, f"{what}, rank {rank}: expected at most {enough} in flight, got {most}"
            check_bubble(what, planned, Fraction(p - 1, v * m + p - 1))
            if p * m < 20:  # also if a B takes as long as an F, or five times as long
                for duration in (lambda _: 1, lambda action: 1 + 4 * (action.kind == "B")):
                    found = schedule_check.bubble(schedule_check.timeline(planned, duration))
                    right = (p - 1) / (v * m + p - 1)
                    assert found == pytest.approx(right, abs=1e-12), (
                        f"{what}, all F equally long and all B: expected a bubble of {right:.6g}, got {found:.6g}"
                    )

    def test_one_stage(self, student):
        self.check(student, [(p, p * k, 1) for p in (1, 2, 3) for k in (1, 2)])

    def test_small(self, student):
        self.check(student, [(1, 1, 2), (1, 3, 2), (2, 2, 2), (2, 4, 2), (2, 4, 3), (3, 3, 2)])

    def test_incomplete_rounds(self, student):
        sizes = [(2, 3, 2), (4, 6, 1), (3, 16, 2), (9, 8, 2), (2, 1, 1)]
        for (p, m, v), found in zip(
            sizes, student.on_ranks(1, run_schedules, "interleaved_1f1b", sizes)[0].value, strict=True
        ):
            what = f"interleaved_1f1b, {size_of(p, m, v)}"
            assert isinstance(found, str), f"{what}: expected a ValueError, got none"
            assert {str(p), str(m)} <= set(re.findall(r"\d+", found)), (
                f"{what}: expected a message with {p} and {m}, got: {found}"
            )

    def test_all_sizes(self, student):
        self.check(student, [(p, m, v) for p, m in ALL_SIZES for v in (2, 3) if m % p == 0])
        self.check(student, [(2, 6, 5), (9, 18, 4), (5, 5, 7), (1, 4, 9)])


# 7.10


@answers(f"{SCHEDULES}:zero_bubble_h1")
@pytest.mark.task(
    "7.10",
    points=4,
)
class TestZeroBubble:
    """zero_bubble_h1: the weights' half of backward fills the bubble"""

    def check(self, student, sizes) -> None:
        for (p, m), what, planned in proved(student, "zero_bubble_h1", sizes, "FIW"):
            for rank, actions in enumerate(planned):
                most = schedule_check.in_flight(actions)
                assert most <= p, (
                    f"{what}, rank {rank}: expected at most {counted(p, 'micro-batch')} in flight, got {most}"
                    f"{as_text(planned)}"
                )
            if m >= p:
                check_bubble(what, planned, Fraction(p - 1, 3 * m + p - 1))
            else:
                span, _ = times(planned)
                limit = 3 * (m + p - 1)
                assert span <= limit, f"{what}: expected at most 1F1B's {limit} slots, got {span}{as_text(planned)}"

    def test_small(self, student):
        self.check(student, SMALL)

    def test_all_sizes(self, student):
        self.check(student, ALL_SIZES)
