"""Graders of chapter 7: schedules are judged without running them, in exact slots; the executor on real ranks."""

import random
import re
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from minidist.course.authoring.assertions import number, peak_bytes
from minidist.parallel.tools import schedule_check, schedules
from minidist.parallel.tools.schedule_check import ScheduleError
from minidist.parallel.tools.schedules import Action, schedule, written

SCHEDULES, CHECK = "minidist.parallel.tools.schedules", "minidist.parallel.tools.schedule_check"


def answers(*closed):
    """While these tests run, these pieces of the library are closed."""
    return pytest.mark.answers("ch07_pipeline", closed=closed)


pytestmark = answers()

RANKS, MICRO_BATCHES = range(1, 9), range(1, 17)
SIZES = (1, 2, 3)  # numbers of real ranks


# In a rank


def lend(module, *mine: str) -> None:
    """The library's own functions in the place of the learner's that belong to other tasks: all but these."""
    for library in (schedules, schedule_check):
        for name in ("gpipe", "one_f_one_b", "interleaved_1f1b", "needs", "timeline", "bubble", "in_flight"):
            if name not in mine and hasattr(library, name):
                setattr(module, name, getattr(library, name))


def run_each(world, module, name, inputs):
    return [getattr(module, name)(*args) for args in inputs]


def run_schedules(world, module, name, sizes):
    """For each (ranks, micro-batches, ...) the actions of every rank in words, or what was raised."""
    lend(module, name)
    found = []
    for ranks, *more in sizes:
        try:
            lists = [getattr(module, name)(rank, ranks, *more) for rank in range(ranks)]
            found.append([one if one is None else [str(action) for action in one] for one in lists])
        except ValueError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# In the grader


def found_for(student, name: str, inputs) -> list[tuple]:
    """Each of these arguments, and what the function returns for them."""
    inputs = list(inputs)
    return list(zip(inputs, student.on_ranks(1, run_each, name, inputs)[0].value, strict=True))


def parsed(*ranks: str) -> list[list[Action]]:
    return [[Action.parse(text) for text in rank.split()] for rank in ranks]


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's' if not thing.endswith('h') else 'es'}"


def size_of(ranks: int, micro_batches: int, virtual: int = 1) -> str:
    stages = f", {virtual} stages on each" if virtual > 1 else ""
    return f"{counted(ranks, 'rank')}{stages}, {counted(micro_batches, 'micro-batch')}"


def told(planned) -> str:
    """A schedule in words, if it is not too long."""
    text = "; ".join(f"rank {rank}: {written(actions)}" for rank, actions in enumerate(planned))
    return f"\n{text}" if len(text) < 400 else ""


def times(planned) -> tuple[int, Fraction]:
    """How many slots a schedule takes, and the share of them in which ranks idle."""
    slots = [slot for rank in schedule_check.timeline(planned) for slot in rank]
    span = int(max(slot.end for slot in slots))
    return span, 1 - Fraction(int(sum(slot.end - slot.start for slot in slots)), len(planned) * span)


def proved(student, name, sizes, kinds: str) -> list[tuple]:
    """For each size the schedule that came, proved to do everything once, each stage where it belongs, and to end."""
    sizes = list(sizes)
    found = []
    for size, lists in zip(sizes, student.on_ranks(1, run_schedules, name, sizes)[0].value, strict=True):
        what = f"{name}, {size_of(*size)}"
        assert not isinstance(lists, str), f"{what}: {lists}"
        assert None not in lists, f"{what}: it returns None, where a list of actions is asked for"
        try:
            planned = parsed(*map(" ".join, lists))
        except ValueError as error:
            raise AssertionError(f"{what}: {error}") from None
        for rank, actions in enumerate(planned):
            for action in actions:
                assert action.stage % size[0] == rank, (
                    f"{what}: rank {rank} does {action}, but stage {action.stage} is not there"
                )
                assert action.kind in kinds, f"{what}: {action} on rank {rank}, where only {kinds} are asked for"
        stages = size[0] * (size[2] if len(size) > 2 else 1)
        there = {action.stage for actions in planned for action in actions}
        missing = sorted(set(range(stages)) - there)
        assert not missing, f"{what}: nothing is done for stage {missing[0]} on rank {missing[0] % size[0]}"
        try:
            schedule_check.check_schedule(planned, size[1])
        except ScheduleError as error:
            raise AssertionError(f"{what}: {error}{told(planned)}") from None
        found.append((size, what, planned))
    return found


def check_bubble(what: str, planned, right: Fraction) -> None:
    span, found = times(planned)
    assert found == right, f"{what}: {span} slots, a bubble of {found}, where {right} is right{told(planned)}"


ALL_SIZES = list(product(RANKS, MICRO_BATCHES))
SMALL = [(1, 1), (2, 1), (1, 3), (2, 2), (2, 4), (3, 4)]


# 7.1


@pytest.mark.task(
    "7.1",
    points=3,
    kind="worksheet",
    hint="Count in micro-batches: the first rank works for m of them, and waits for p - 1 more, while the last one's "
    "work comes back to it. With v stages on each rank, those p - 1 are shorter: 1/v. For the bytes, go through a "
    "rank's stages: which of them have a stage behind them, which one before them?",
)
class TestBubble:
    """The bubble, how many micro-batches make it small, and how little a pipeline sends"""

    def check_share(self, student, sizes) -> None:
        for (p, m, v), found in found_for(student, "bubble_share", sizes):
            right = Fraction(p - 1, v * m + p - 1)
            assert number(found, "bubble_share") == pytest.approx(float(right), rel=1e-12), (  # two float operations
                f"{size_of(p, m, v)}: a bubble of {found:.6g}, where {right} = {float(right):.6g} is right"
            )

    def test_of_textbooks(self, student):
        self.check_share(student, [(4, 4, 1), (8, 32, 1), (16, 64, 1), (1, 5, 1)])

    def test_like_simulated_ones(self, student):
        """GPipe's, and 1F1B's, and the interleaved one's, slot by slot."""
        for name, sizes in (
            ("gpipe", [(p, m, 1) for p in (1, 2, 5) for m in (1, 3, 8)]),
            ("1f1b", [(p, m, 1) for p in (1, 2, 5) for m in (1, 3, 8)]),
            ("interleaved", [(p, m * p, v) for p in (1, 2, 4) for m in (1, 3) for v in (1, 2, 3)]),
        ):
            for size, found in found_for(student, "bubble_share", sizes):
                _, right = times(schedule(name, *size))
                assert number(found, "bubble_share") == pytest.approx(float(right), rel=1e-12), (
                    f"{name}, {size_of(*size)}: {found:.6g}, but slot by slot it is {right} = {float(right):.6g}"
                )

    def test_fewest_micro_batches(self, student):
        sizes = [(p, v, percent) for p in (1, 2, 4, 7, 8, 16) for v in (1, 2, 3) for percent in (1, 5, 10, 20, 50, 99)]
        for (p, v, percent), found in found_for(student, "fewest_micro_batches", sizes):
            step = p if v > 1 else 1
            right = step
            while 100 * (p - 1) > percent * (v * right + p - 1):
                right += step
            rounds = f", in multiples of {p}" if v > 1 else ""
            assert number(found, "fewest_micro_batches") == right, (
                f"{counted(p, 'rank')}, {counted(v, 'stage')} on each{rounds}, a bubble of {percent} per cent at the "
                f"most: {found} micro-batches, where {right} is right"
            )

    def test_pipeline_bytes(self, student):
        sizes = [(r, p, v, m, 96) for p in (1, 2, 3, 8) for r in range(p) for v in (1, 2, 4) for m in (1, 16)]
        sizes = [size for size in sizes if size[1] > 1 or size[2] == 1]
        for (r, p, v, m, nbytes), found in found_for(student, "pipeline_bytes", sizes):
            stages = range(r, p * v, p)
            borders = [side for stage in stages for side in (stage > 0, stage + 1 < p * v)]
            right = m * sum(borders) * nbytes
            assert number(found, "pipeline_bytes") == right, (
                f"rank {r} of {size_of(p, m, v)}, messages of {nbytes} bytes: it sends {found} bytes, where {right} is "
                f"right; it has stage {', '.join(map(str, stages))} of {p * v}"
            )

    def test_tensor_to_pipeline(self, student):
        for (layers, p), found in found_for(student, "tensor_to_pipeline", [(126, 8), (126, 16), (32, 4), (6, 3)]):
            ring = Fraction(2 * (p - 1), p)
            right = float(4 * layers * ring / 2)  # to the left and to the right
            assert number(found, "tensor_to_pipeline") == pytest.approx(right, rel=1e-12), (
                f"{layers} layers, {p} ranks: {found:g} times as many bytes, where {right:g} is right: {4 * layers} "
                f"all-reduces of {ring} times the activations, beside twice the activations"
            )


# 7.2


@answers(f"{SCHEDULES}:gpipe")
@pytest.mark.task(
    "7.2",
    points=2,
    hint="All F, and then all B, of the stage that has the rank's number: the order is the same on every rank.",
)
class TestGPipe:
    """gpipe: all forwards, then all backwards"""

    def check(self, student, sizes) -> None:
        for (p, m), what, planned in proved(student, "gpipe", sizes, "FB"):
            for rank, actions in enumerate(planned):
                kinds = "".join(action.kind for action in actions)
                assert kinds == "F" * m + "B" * m, (
                    f"{what}, rank {rank}: {written(actions)[:300]}, where all F come first, and then all B"
                )
            check_bubble(what, planned, Fraction(p - 1, m + p - 1))

    def test_small(self, student):
        self.check(student, SMALL)

    def test_all_sizes(self, student):
        self.check(student, ALL_SIZES)


# 7.3


@answers(f"{SCHEDULES}:one_f_one_b", f"{SCHEDULES}:zero_bubble_h1")
@pytest.mark.task(
    "7.3",
    points=4,
    hint="Three phases. First as many F as there are ranks behind this one, or all, if there are fewer micro-batches. "
    "Then one F and one B by turns until there is no F left, and in the end the B that are left.",
)
class TestOneFOneB:
    """one_f_one_b: forward and backward take turns"""

    def check(self, student, sizes) -> None:
        for (p, m), what, planned in proved(student, "one_f_one_b", sizes, "FB"):
            for rank, actions in enumerate(planned):
                most = schedule_check.in_flight(actions)
                assert most <= p - rank, (
                    f"{what}: rank {rank} has {most} micro-batches in flight, where it may have {p - rank}"
                    f"{told(planned)}"
                )
            check_bubble(what, planned, Fraction(p - 1, m + p - 1))

    def test_small(self, student):
        self.check(student, SMALL)

    def test_all_sizes(self, student):
        self.check(student, ALL_SIZES)


# 7.4


def uneven(action: Action) -> int:
    """A duration that depends on everything."""
    return 1 + (3 * action.stage + 5 * action.micro_batch + 7 * "FBIW".index(action.kind)) % 6


def run_needs(world, module, cases):
    return [[[str(one) for one in some] for some in module.needs(*case)] for case in cases]


def run_timeline(world, module, planned, how: str):
    """Each rank's slots, what was raised, and whether the schedule was left alone."""
    kept = [list(actions) for actions in planned]
    try:
        found = module.timeline(planned, uneven) if how == "uneven" else module.timeline(planned)
    except ScheduleError as error:
        return str(error), planned == kept
    return [[(str(slot.action), slot.start, slot.end) for slot in slots] for slots in found], planned == kept


def run_timelines(world, module, cases):
    lend(module, "needs", "timeline", "bubble")
    return [run_timeline(world, module, *case) for case in cases]


def run_bubbles(world, module, cases):
    lend(module, "bubble")
    return [module.bubble(slots) for slots in cases]


def any_order(seed: int, ranks: int, stages: int, micro_batches: int, halves: bool = False) -> list[list[Action]]:
    """A schedule that can run, in an order that nobody would choose."""
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
    """The action at which each rank waits for ever, found by doing one after the other."""
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
        assert re.search(rf"\b{action}\b", message), f"{what}: the message has to name {action}, but is: {message}"


@answers(f"{CHECK}:needs", f"{CHECK}:timeline", f"{CHECK}:bubble")
@pytest.mark.task(
    "7.4",
    points=4,
    hint="Keep a dict from each action that has been placed to its end. Go round the ranks: a rank's next action can "
    "be placed once all that it needs has been, and starts at the latest of those ends and the end of the action "
    "before it. Stop when a whole round places nothing; if actions are left then, they never can be.",
)
class TestTimeline:
    """needs, timeline, bubble: when everything happens, from the schedule alone"""

    def test_needs(self, student):
        cases = [(Action(s, kind, i), n) for n in (1, 2, 4) for s in range(n) for kind in "FBIW" for i in (0, 3)]
        for (action, stages), found in zip(cases, student.on_ranks(1, run_needs, cases)[0].value, strict=True):
            right = sorted(sorted(map(str, some)) for some in schedule_check.needs(action, stages))
            words = " and ".join(" or ".join(some) for some in right) or "nothing"
            assert sorted(map(sorted, found)) == right, (
                f"{action} of {counted(stages, 'stage')} waits for {words}: {right}, but needs returns {found}"
            )

    def check(self, student, cases) -> None:
        cases = list(cases)
        for (planned, how), (found, kept) in zip(
            cases, student.on_ranks(1, run_timelines, cases)[0].value, strict=True
        ):
            assert not isinstance(found, str), f"it raises ScheduleError: {found}, but this can run{told(planned)}"
            assert kept, f"the schedule is changed{told(planned)}"
            right = schedule_check.timeline(planned, *([uneven] if how == "uneven" else []))
            assert len(found) == len(right), f"{len(found)} lists for {counted(len(right), 'rank')}"
            durations = " (actions take other times than usual)" if how == "uneven" else ""
            for rank, (mine, those) in enumerate(zip(found, right, strict=True)):
                for one, slot in zip(mine, those, strict=False):
                    assert one == (str(slot.action), slot.start, slot.end), (
                        f"rank {rank}: {one[0]} from {one[1]:g} to {one[2]:g}, where {slot.action} from {slot.start:g} "
                        f"to {slot.end:g} is right{durations}{told(planned)}"
                    )
                assert len(mine) == len(those), f"rank {rank} has {len(mine)} slots for {len(those)} actions"

    def test_of_schedules(self, student):
        self.check(student, [(parsed("0F0 0B0"), ""), (parsed("0F0 0B0", "1F0 1B0"), "")])
        sizes = [(1, 3), (2, 3), (3, 4), (4, 8)]
        self.check(student, [(schedule(name, *size), "") for name in ("gpipe", "1f1b", "zb-h1") for size in sizes])

    def test_any_durations(self, student):
        self.check(student, [(schedule("1f1b", 4, 5), "uneven"), (schedule("zb-h1", 3, 5), "uneven")])

    def test_any_schedule(self, student):
        cases = [(schedule("interleaved", 2, 4, 3), "uneven"), (schedule("interleaved", 4, 8, 2), "")]
        cases += [(any_order(seed, 1 + seed % 4, 1 + seed % 6, 4, seed % 2 == 0), "uneven") for seed in range(12)]
        self.check(student, [*cases, (parsed("0F0 1F0 1B0 0B0"), "")])

    def test_for_ever(self, student):
        cases = [
            parsed("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"),
            parsed("0B0 0F0", "1F0 1B0"),
            parsed("0F0 0W0 0I0", "1F0 1B0"),
            parsed("0F0 0F1", "1F0 1F1 1F2"),
        ]
        found = student.on_ranks(1, run_timelines, [(planned, "") for planned in cases])[0].value
        for planned, (message, _) in zip(cases, found, strict=True):
            assert isinstance(message, str), f"it raises no ScheduleError, but this can never end{told(planned)}"
            check_names(message, stuck_at(planned), f"a schedule that can never end{told(planned)}")

    def test_bubble(self, student):
        later = [[schedule_check.Slot(Action(0, "F", 0), 7, 9)], [schedule_check.Slot(Action(1, "F", 0), 9, 11)]]
        cases = [schedule_check.timeline(schedule(name, *size)) for name in ("gpipe", "1f1b") for size in SMALL]
        cases += [schedule_check.timeline(schedule("zb-h1", 3, 4), uneven), later]
        for slots, found in zip(cases, student.on_ranks(1, run_bubbles, cases)[0].value, strict=True):
            right = schedule_check.bubble(slots)
            assert number(found, "bubble") == pytest.approx(right, abs=1e-12), (  # a few float operations
                f"the bubble is {found:g}, where {right:g} is right{told([[s.action for s in row] for row in slots])}"
            )


# 7.5


def run_checks(world, module, cases):
    """For each case: the error's type, its message, and whether the schedule was left alone."""
    lend(module)
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
    """The library's training asks the learner's checker before it begins."""
    from minidist import overrides
    from minidist.train.config import TrainConfig
    from minidist.train.layout import Layout
    from minidist.train.trainer import RunOptions, train_rank

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
    "7.5",
    points=4,
    hint="First what is there: count the actions with a Counter, and note for each stage the rank on which you saw it. "
    "Then, for each stage and micro-batch, which of F, B, I and W there are. Whether it ends is what "
    "timeline of task 7.4 finds out.",
)
class TestCheckSchedule:
    """check_schedule: refuse what is not complete, or can never end"""

    def check(self, student, cases) -> None:
        """Cases: a schedule, its micro-batches, and groups of actions of each of which the message names one; none
        where the schedule is right."""
        cases = list(cases)
        found = student.on_ranks(1, run_checks, [case[:2] for case in cases])[0].value
        for (planned, micro_batches, groups), (kind, message, kept) in zip(cases, found, strict=True):
            what = f"{counted(micro_batches, 'micro-batch')}{told(planned)}"
            if groups:
                assert kind, f"it accepts a schedule that is wrong at {', '.join(map(str, groups[0]))}: {what}"
                assert kind == "ScheduleError", f"it raises {kind}: {message}; ScheduleError is right: {what}"
                for some in groups:
                    assert any(re.search(rf"\b{one}\b", message) for one in some), (
                        f"the message has to name {' or '.join(map(str, some))}, but is: {message}\n{what}"
                    )
            else:
                assert not kind, f"it raises {kind}: {message}, but this schedule is right: {what}"
            assert kept, f"it changes the schedule that it is given: {what}"

    def test_right_ones(self, student):
        cases = [(schedule(name, p, m), m) for name in ("gpipe", "1f1b", "zb-h1") for p in (1, 2, 5) for m in (1, 7)]
        cases += [(schedule("interleaved", p, 2 * p, v), 2 * p) for p, v in ((1, 3), (2, 2), (3, 3))]
        cases += [(any_order(seed, 1 + seed % 3, 1 + seed % 6, 3, seed % 2 == 0), 3) for seed in range(6)]
        cases += [(parsed("0F0 0I0 0W0", "1F0 1B0"), 1), (tuple(map(tuple, schedule("1f1b", 3, 3))), 3)]
        cases += [(parsed("0F0 1F0 1B0 0B0", "2F0 2B0"), 1), (parsed("1F0 1B0", "0F0 0B0"), 1)]  # another placement
        self.check(student, [(planned, m, []) for planned, m in cases])

    def test_missing(self, student):
        cases = [(parsed("0F0 0B0", "1B0"), 1, ["1F0"]), (parsed("0F0 0B0", "1F0"), 1, ["1B0 1I0 1W0"])]
        cases += [
            (parsed("0F0 0I0", "1F0 1B0"), 1, ["0W0 0B0 0I0"]),
            (parsed("0F0 0W0", "1F0 1B0"), 1, ["0I0 0B0 0W0"]),
        ]
        cases += [(parsed("0F0 0B0", "2F0 2B0"), 1, ["1F0 1B0 1I0 1W0"])]
        cases += [(schedule("1f1b", 2, 3), 4, ["0F3 1F3 0B3 1B3 0I3 1I3 0W3 1W3"])]
        whole = schedule("gpipe", 3, 3)
        for rank, place in product(range(3), range(6)):
            fewer = [list(actions) for actions in whole]
            gone = fewer[rank].pop(place)
            alike = [str(gone)] if gone.kind == "F" else [f"{gone.stage}{kind}{gone.micro_batch}" for kind in "BIW"]
            cases.append((fewer, 3, [" ".join(alike)]))
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

    def test_for_ever(self, student):
        cases = [parsed("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"), parsed("0B0 0F0", "1F0 1B0")]
        cases += [parsed("0F0 0W0 0I0", "1F0 1I0 1W0"), parsed("1F0 1B0 0F0 0B0")]
        self.check(student, [(planned, 1 + (len(planned[0]) == 4 and len(planned) == 2),
                              [[action] for action in stuck_at(planned)]) for planned in cases])  # fmt: skip

    def test_every_swap(self, student):
        """Of all schedules that differ from good ones by a swap of two neighbours, those that can never end."""
        cases = []
        for whole, m in (
            (schedule("1f1b", 3, 4), 4),
            (schedule("zb-h1", 3, 4), 4),
            (schedule("interleaved", 2, 4, 2), 4),
        ):
            for rank, actions in enumerate(whole):
                for place in range(len(actions) - 1):
                    swapped = [list(others) for others in whole]
                    swapped[rank][place : place + 2] = swapped[rank][place : place + 2][::-1]
                    cases.append((swapped, m, [[action] for action in stuck_at(swapped)]))
        assert 5 < sum(bool(groups) for *_, groups in cases) < len(cases) - 5
        self.check(student, cases)

    def test_before_training(self, student):
        for rank, seen in enumerate(student.on_ranks(2, check_by_training)):
            assert seen.value.get("check_schedule"), f"pp=2, rank {rank}: training did not call it"


# 7.6


@answers(f"{SCHEDULES}:interleaved_1f1b")
@pytest.mark.task(
    "7.6",
    points=5,
    hint="Number a rank's forwards: the first p are micro-batches 0 to p-1 through its first stage, the next p the "
    "same through its second; after v stages come micro-batches p to 2p-1. Its backwards are the same with the "
    "stages from the last to the first. Then it is 1F1B over these numbers: first 2 (p - 1 - rank) + (v - 1) p "
    "forwards, then by turns.",
)
class TestInterleaved:
    """interleaved_1f1b: several stages on a rank, a smaller bubble"""

    def check(self, student, sizes) -> None:
        for (p, m, v), what, planned in proved(student, "interleaved_1f1b", sizes, "FB"):
            for rank, actions in enumerate(planned):
                most, enough = schedule_check.in_flight(actions), 2 * (p - 1 - rank) + (v - 1) * p + 1
                assert most <= enough, f"{what}: rank {rank} has {most} in flight, where it may have {enough}"
            check_bubble(what, planned, Fraction(p - 1, v * m + p - 1))

    def test_one_stage(self, student):
        self.check(student, [(p, p * k, 1) for p in (1, 2, 3) for k in (1, 2)])

    def test_small(self, student):
        self.check(student, [(1, 1, 2), (1, 3, 2), (2, 2, 2), (2, 4, 2), (2, 4, 3), (3, 3, 2)])

    def test_no_whole_rounds(self, student):
        sizes = [(2, 3, 2), (4, 6, 1), (3, 16, 2)]
        for (p, m, v), found in zip(
            sizes, student.on_ranks(1, run_schedules, "interleaved_1f1b", sizes)[0].value, strict=True
        ):
            what = f"interleaved_1f1b, {size_of(p, m, v)}"
            assert isinstance(found, str), f"{what}: it raises nothing, where ValueError is right"
            assert {str(p), str(m)} <= set(re.findall(r"\d+", found)), (
                f"{what}: the message has to have {p} and {m}, but is: {found}"
            )

    def test_all_sizes(self, student):
        self.check(student, [(p, m, v) for p, m in ALL_SIZES for v in (2, 3) if m % p == 0])


# 7.7


class Recorded:
    """A stage that keeps what it is asked to do. Whole numbers all through: sums are exact in any order."""

    def __init__(self, number: int, width: int, log: list) -> None:
        self.number, self.log = number, log
        self.weight = weight_of(number, width)
        self.grad = np.zeros_like(self.weight)
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
    """Two ones in each row and in each column: numbers stay small."""
    one = np.roll(np.eye(width), 1 + stage, axis=1)
    return one + np.roll(np.eye(width), stage % 3, axis=0) * (-1.0) ** stage


def batches(seed: int, count: int, samples: int, width: int) -> list[np.ndarray]:
    """Each micro-batch another one."""
    rng = np.random.default_rng([7, seed])
    return [rng.integers(-4, 5, (samples, width)).astype(np.float64) for _ in range(count)]


def loss_of(y, target):
    errors = y - target
    return float(np.sum(errors**2)), 2 * errors


def alone(stages: int, count: int, samples: int, width: int) -> tuple[float, list]:
    """One process, micro-batch after micro-batch: the loss, and the gradient of each stage's weight."""
    chain = [Recorded(number, width, []) for number in range(stages)]
    total = 0.0
    for x, target in zip(batches(0, count, samples, width), batches(1, count, samples, width), strict=True):
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


def run_pipeline(world, module, planned, count, samples, width, measured=False):
    """This rank's loss, gradients and log, and how many sends are under way; or the peak of its memory, if wanted."""
    module.squared_error = loss_of
    log: list = []
    stages = 1 + max(action.stage for actions in planned for action in actions)
    mine = {s: Recorded(s, width, log) for s in range(world.rank, stages, world.size)}
    inputs, targets = batches(0, count, samples, width), batches(1, count, samples, width)

    def call():
        return module.run_schedule(planned[world.rank], mine, stages - 1, inputs, targets, world)

    if measured:
        return peak_bytes(call)
    total = call()
    under_way = sum(map(len, world.transport.sends.values()))
    return total, {s: stage.grad for s, stage in mine.items()}, log, under_way


def run_pipelines(world, module, cases):
    return [run_pipeline(world, module, *case) for case in cases]


def check_result(rank: int, size: int, what: str, total, grads: dict, right) -> None:
    """One rank's loss and gradients, beside those of one process."""
    loss, those = right
    last = len(those) - 1
    expected = loss if rank == last % size else 0.0
    assert number(total, f"{what}, rank {rank}") == expected, (
        f"{what}, rank {rank}: it returns {total}, where {expected} is right"
    )
    for s, grad in grads.items():
        wrong = np.argwhere(grad != those[s])
        assert not len(wrong), (
            f"{what}, rank {rank}: the weight's gradient of stage {s} is {grad[tuple(wrong[0])]:g} at {wrong[0]}, "
            f"where one process has {those[s][tuple(wrong[0])]:g} ({len(wrong)} of {grad.size} elements differ)"
        )


def check_messages(seen, sent: list[list[int]], nbytes: int, what: str) -> None:
    """How many messages each rank sent to each, and their bytes."""
    for rank, (one, right) in enumerate(zip(seen, sent, strict=True)):
        found = one.traffic.sent[:, 1].tolist()
        assert found == right, (
            f"{what}: rank {rank} sends {found} messages to ranks 0 to {len(seen) - 1}, where {right} is right"
        )
        found, expected = one.traffic.sent[:, 0].tolist(), [count * nbytes for count in right]
        assert found == expected, f"{what}: rank {rank} sends {found} bytes, where {expected} is right"


def messages_of(planned) -> list[list[int]]:
    """(ranks, ranks): a message for each micro-batch, border and way."""
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
    """What the stages are asked to do, each forward of a stage numbered."""
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
    hint="Dicts by (stage, micro-batch): what forward kept until I or B, the rest until W or B. Another tag for "
    "each border, micro-batch and way. Begin sends with isend, keep them in a list, throw out what is_completed() "
    "after every action, and wait for the others at the end. A receive may wait at once.",
)
class TestRunSchedule:
    """run_schedule: any schedule, on real ranks"""

    def check(self, student, planned, what, count, samples=SAMPLES, width=WIDTH):
        size, stages = len(planned), 1 + max(action.stage for actions in planned for action in actions)
        right = alone(stages, count, samples, width)
        seen = student.on_ranks(size, run_pipeline, planned, count, samples, width)
        for rank, one in enumerate(seen):
            total, grads, *_ = one.value
            check_result(rank, size, what, total, grads, right)
        return seen

    def test_one_rank(self, student):
        self.check(student, schedule("gpipe", 1, 1), "one rank, one micro-batch", 1)
        self.check(student, schedule("1f1b", 1, 3), "one rank, 3 micro-batches", 3)

    def check_several(self, student, size, cases) -> None:
        """Cases: a schedule for so many ranks, what it is, and its micro-batches."""
        cases = list(cases)
        runs = [(planned, count, SAMPLES, WIDTH) for planned, _, count in cases]
        for rank, one in enumerate(student.on_ranks(size, run_pipelines, runs)):
            for (planned, what, count), (total, grads, *_) in zip(cases, one.value, strict=True):
                stages = 1 + max(action.stage for actions in planned for action in actions)
                check_result(rank, size, what, total, grads, alone(stages, count, SAMPLES, WIDTH))

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
        """Ranks take micro-batches, and stages, in orders of their own."""
        for p in (2, 3):
            cases = []
            for seed, (v, halves) in enumerate(product((1, 2), (False, True))):
                planned = any_order(seed, p, p * v, 4, halves)
                cases.append((planned, f"a schedule in an odd order, {size_of(p, 4, v)}{told(planned)}", 4))
            self.check_several(student, p, cases)

    def test_order_of_the_schedule(self, student):
        for name, planned in (
            ("1f1b", schedule("1f1b", 3, 4)),
            ("zb-h1", schedule("zb-h1", 3, 4)),
            ("an odd order", any_order(1, 2, 4, 3)),
        ):
            count = 1 + max(action.micro_batch for action in planned[0])
            for rank, one in enumerate(self.check(student, planned, name, count)):
                found, right = one.value[2], log_of(planned[rank])
                words = [" ".join(f"{s}{kind}{n}" for s, kind, n in log) for log in (found, right)]
                assert found == right, (
                    f"{name}, rank {rank}: its stages do {words[0]}, where {words[1]} is right (a B counts as I and W)"
                )

    def test_messages(self, student):
        for name, planned in (
            ("1f1b", schedule("1f1b", 3, 4)),
            ("zb-h1", schedule("zb-h1", 2, 3)),
            ("interleaved", schedule("interleaved", 3, 3, 2)),
        ):
            count = 1 + max(action.micro_batch for action in planned[0])
            seen = self.check(student, planned, name, count)
            check_messages(seen, messages_of(planned), 8 * SAMPLES * WIDTH, name)

    def test_larger_than_the_queues(self, student):
        for name, size in (("1f1b", (3, 4)), ("gpipe", (2, 3)), ("zb-h1", (2, 3)), ("interleaved", (2, 2, 2))):
            what = f"{name}, {size_of(*size)}, messages larger than a queue"
            self.check(student, schedule(name, *size), what, size[1], *BIG)

    def test_all_has_left(self, student):
        """A dozen queues full: what nobody waits for cannot have left by chance."""
        seen = self.check(student, schedule("gpipe", 2, 1), "one micro-batch on 2 ranks", 1, 1024, 96)
        for rank, one in enumerate(seen):
            assert not one.value[3], f"rank {rank} returns while a message of its is still on its way"

    def test_memory(self, student):
        count, array = 24, 8 * BIG[0] * BIG[1]
        for name in ("1f1b", "zb-h1", "naive"):
            planned = schedule(name, 2, count)
            for rank, one in enumerate(student.on_ranks(2, run_pipeline, planned, count, *BIG, True)):
                held = schedule_check.in_flight(planned[rank])
                # x and y of each, or x and a gradient, and what is in hand or on its way
                limit = (2 * held + 10) * array
                assert one.value <= limit, (
                    f"{name}, 2 ranks, {count} micro-batches, of which rank {rank} has {held} in flight at most: it "
                    f"holds {one.value / array:.1f} times the size of a message at once, where {limit // array} are "
                    "enough. Something is kept longer than it is needed"
                )


# 7.8


@answers(f"{CHECK}:in_flight")
@pytest.mark.task(
    "7.8",
    points=3,
    kind="worksheet",
    hint="Go through the actions with a counter: F is one more, what ends a backward one less. GPipe's first B comes "
    "after all its F. In 1F1B a rank's first B comes after as many F as there are ranks behind it, and one more, if "
    "there are so many micro-batches.",
)
class TestInFlight:
    """in_flight: how many micro-batches a rank holds, and what they weigh"""

    def test_of_any_schedule(self, student):
        lists = [a for name in ("naive", "gpipe", "1f1b", "zb-h1") for size in SMALL for a in schedule(name, *size)]
        lists += [a for size in ((2, 4, 2), (3, 3, 2)) for a in schedule("interleaved", *size)]
        lists += [a for seed in range(6) for a in any_order(seed, 2, 3, 4, seed % 2 == 0)]
        lists += [*parsed("0F0 0F1 0B1 0I0 0F2 0W0 0B2"), []]
        for (actions,), found in found_for(student, "in_flight", [(actions,) for actions in lists]):
            right = schedule_check.in_flight(actions)
            assert number(found, "in_flight") == right, (
                f"in_flight is {found}, where {right} is right, of: {written(actions)}"
            )

    def test_formulas(self, student):
        for name, function in (("gpipe", "gpipe_in_flight"), ("1f1b", "one_f_one_b_in_flight")):
            sizes = [(rank, p, m) for p in (1, 2, 4, 8) for m in (1, 3, 4, 16) for rank in range(p)]
            for (rank, p, m), found in found_for(student, function, sizes):
                right = schedule_check.in_flight(schedule(name, p, m)[rank])
                assert number(found, function) == right, (
                    f"{function}: rank {rank} of {size_of(p, m)}: {found}, but it is {right} if one counts"
                )

    def test_bytes(self, student):
        layer = 34 * 8192 * 16384  # Llama 3 405B's: one sample of 8,192 tokens, without its attention's probabilities
        cases = [(1, 126, 14, layer), (14, 126, 14, layer), (3, 8, 4, 1000), (5, 6, 1, 7), (0, 8, 4, 1000)]
        for (held, layers, p, nbytes), found in found_for(student, "activation_bytes", cases):
            right = held * nbytes * layers // p
            assert number(found, "activation_bytes") == right, (
                f"{counted(held, 'micro-batch')} in flight, {layers} layers on {counted(p, 'rank')}, {nbytes} bytes a "
                f"layer: {found} bytes, where {right} is right"
            )

    def test_that_fit(self, student):
        cases = [(80_000, 8, 4, 1000), (79_999, 8, 4, 1000), (1_999, 8, 4, 1000), (2_000, 8, 4, 1000), (0, 4, 4, 9)]
        cases += [(640 << 30, 126, 14, 34 * 8192 * 16384)]
        for (memory, layers, p, nbytes), found in found_for(student, "gpipe_micro_batches", cases):
            right = memory * p // (layers * nbytes)
            assert number(found, "gpipe_micro_batches") == right, (
                f"{memory} bytes, {layers} layers on {p} ranks, {nbytes} bytes a layer: {found} micro-batches, where "
                f"{right} is right"
            )


# 7.9


def run_train(world, module, counts, samples, width):
    module.squared_error = loss_of
    found = []
    for count in counts:
        stage = Recorded(world.rank, width, [])
        inputs, targets = batches(0, count, samples, width), batches(1, count, samples, width)
        found.append((module.train_1f1b(stage, inputs, targets, world), stage.grad))
    return found


@pytest.mark.task(
    "7.9",
    points=3,
    kind="debugging",
    hint="Take two ranks and queues that hold nothing. Rank 0 has sent its first output and is in the loop, rank 1 has "
    "done its first backward: in which call is each of them? A call of chapter 2 sends and receives at the same time.",
)
class TestTrain1F1B:
    """train_1f1b: right until messages outgrow the queues, then all stand still. Find out why and mend it"""

    def check(self, student, size, counts, samples, width):
        """One after the other, with so many micro-batches."""
        seen = student.on_ranks(size, run_train, counts, samples, width)
        for rank, one in enumerate(seen):
            for count, (total, grad) in zip(counts, one.value, strict=True):
                what = f"{size_of(size, count)} of {samples} x {width}"
                check_result(rank, size, what, total, {rank: grad}, alone(size, count, samples, width))
        what = f"{counted(size, 'rank')}, {' + '.join(map(str, counts))} micro-batches of {samples} x {width}"
        check_messages(seen, messages_of(schedule("1f1b", size, sum(counts))), 8 * samples * width, what)

    def test_small_messages(self, student):
        for size in SIZES:
            self.check(student, size, (1, 2, 5), 3, 16)

    def test_large_messages(self, student):
        for size in SIZES:
            self.check(student, size, (1, 2, 5), *BIG)


# 7.10


@answers(f"{SCHEDULES}:zero_bubble_h1")
@pytest.mark.task(
    "7.10",
    points=4,
    hint="Begin with 1F1B and put an I where it has a B: that is what the rank before waits for. A rank r idles for r "
    "slots at the end, and would at every other place, so it may put its W off by r micro-batches: after I of i comes "
    "W of i - r. In the end come the W that are left. And no rank holds more than rank 0.",
)
class TestZeroBubble:
    """zero_bubble_h1: what can wait fills the bubble"""

    def check(self, student, sizes) -> None:
        for (p, m), what, planned in proved(student, "zero_bubble_h1", sizes, "FIW"):
            for rank, actions in enumerate(planned):
                most = schedule_check.in_flight(actions)
                assert most <= p, (
                    f"{what}: rank {rank} has {most} micro-batches in flight, where it may have {p}{told(planned)}"
                )
            if m >= p:
                check_bubble(what, planned, Fraction(p - 1, 3 * m + p - 1))
            else:
                span, _ = times(planned)
                limit = 3 * (m + p - 1)
                assert span <= limit, f"{what}: it takes {span} slots, and 1F1B only {limit}{told(planned)}"

    def test_small(self, student):
        self.check(student, SMALL)

    def test_all_sizes(self, student):
        self.check(student, ALL_SIZES)
