"""The demonstrations of loosened steps: staleness and waiting counted, what is sent and what stays add up."""

from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from recorded import fact, numbers, recorded
from stories import words

from minidist.nn.gpt import GPT
from minidist.parallel.compression.gathered import top_k
from minidist.parallel.compression.hook import read_method
from minidist.parallel.loosened import arrivals, server
from minidist.parallel.loosened.arrivals import NOISE, may_begin
from minidist.show.demos.compress import curves, factors, run
from minidist.show.demos.parameter_server import run as served
from minidist.show.demos.parameter_server import story as served_story
from minidist.show.demos.parameter_server.bug import counted_twice, with_copies
from minidist.show.demos.parameter_server.recorded import Recorded
from minidist.show.demos.shared.runs import WarmRanks
from minidist.train.result import Run

pytestmark = pytest.mark.long  # they record many training runs


# ── parameter servers: 3 workers, of which the last takes 4 times as long ────────────────────────────────────────────

N, SLOWER, BOUND = 3, 4, 2
CLOSE = 1e-9  # seconds: roundings of simulated times


def of_kind(kind: str) -> list[Run]:
    """The runs of all seeds."""
    layout = vars(served.layout_of(kind, N, SLOWER))
    wanted = {name: layout[name] for name in ("dp", "sync", "staleness", "arrivals")}
    return recorded("async").trained("train_watched", **wanted)


def recorded_runs() -> dict[str, Recorded]:
    """The first run of each kind, and those with the bug."""
    runs = {kind: Recorded.of(of_kind(kind)[0]) for kind in served.KINDS}
    with with_copies():
        broken = [Recorded.of(one) for one in recorded("async").trained("train_with_copies")]
    return runs | {f"broken {kind}": one for kind, one in zip(served.KINDS[1:], broken, strict=True)}


def test_a_step_takes_its_time_and_gradients_are_as_stale_as_counted():
    found, seconds = recorded_runs(), served.seconds_of(SLOWER)
    for worker in range(N):
        for kind in served.KINDS:
            mine = [landing for landing in found[kind].landings if landing.worker == worker]
            assert [landing.step for landing in mine] == list(range(len(mine)))
            assert all(before.end <= after.begin + CLOSE for before, after in pairwise(mine))
            takes = SLOWER if worker == N - 1 else 1
            assert all(takes - CLOSE <= x.end - x.begin <= takes * (1 + NOISE) + CLOSE for x in mine)
        for kind in served.KINDS[1:]:  # the bug: every gradient of the straggler lands twice
            mine = [x.again for x in found[f"broken {kind}"].landings if x.worker == worker]
            assert mine == [place % 2 == 1 and worker == N - 1 for place in range(len(mine))]
    fresh, stale, bounded = (found[kind].by(seconds) for kind in served.KINDS)
    assert {x.staleness for x in fresh} == {0} == {x.ahead for x in fresh}
    # An update makes the gradients of all N - 1 other workers older by one: those that landed, and those in flight.
    version, now = stale[-1].found + 1, stale[-1].end
    flying = [x for x in found["asynchronous"].landings if x.begin <= now < x.end]
    assert sum(x.staleness for x in stale) + sum(version - x.read for x in flying) == (N - 1) * version
    assert max(x.ahead for x in bounded) == BOUND < max(x.ahead for x in found["broken bounded"].by(seconds))
    with with_copies():
        assert arrivals.may_begin is server.may_begin is counted_twice
    assert arrivals.may_begin is server.may_begin is may_begin  # the bug ends with its block


@pytest.mark.parametrize("name", [*served.KINDS, "broken asynchronous", "broken bounded"])
def test_every_gradient_lands_with_the_versions_of_the_run(name):
    one, kind = recorded_runs()[name], name.removeprefix("broken ")
    story = recorded("async").animation.find(kind, broken=kind != name)
    axis = max(served_story.axis_of(each) for other, each in recorded_runs().items() if other.endswith(kind) and
               (other == kind or other == f"broken {kind}"))  # fmt: skip
    landed = one.by(axis)
    bars = {mark.thing for mark in story.marks if mark.thing.startswith("step ")}
    assert bars == {
        f"step {x.step} of worker {x.worker}, computed with version {x.read}, applied to version {x.found}"
        for x in landed if not x.again
    }  # fmt: skip
    dots = [mark for mark in story.marks if mark.thing.startswith("gradient")]
    assert [numbers(mark.thing)[0] for mark in dots] == [x.staleness for x in landed]
    assert ["wrong" in [values["fill"] for _, values in mark.keys] for mark in dots] == [x.again for x in landed]
    assert fact(story, "mean staleness") == [round(np.mean([x.staleness for x in landed]), 2)]
    assert fact(story, "oldest") == [max(x.staleness for x in landed)]


def test_the_evidence_is_the_losses_of_the_runs():
    runs = {kind: [Recorded.of(one) for one in of_kind(kind)] for kind in served.KINDS}
    times = {kind: np.mean([one.reaches(served_story.TARGET) for one in each]) for kind, each in runs.items()}
    fresh, stale, bounded = times.values()
    assert stale < bounded < fresh and fresh > 2 * stale  # without waiting it is faster
    story = recorded("async").animation.find("evidence")
    assert {f"{time:.0f} s" for time in times.values()} <= {*words(story, story.ends)}
    assert story.beats[0].asks.choices[story.beats[0].asks.answer] == "asynchronous"


# ── compressed gradients ─────────────────────────────────────────────────────────────────────────────────────────────

SIZE, RANKS, COUNT = 16, 4, 2  # the numbers that are drawn, and how many of them top-k sends


def compressed() -> list[run.Recorded]:
    """Return runs by top-k, and without feedback; in one bit, and without feedback."""
    return recorded("compress").results["of"]


@pytest.mark.parametrize("place", [0, 2], ids=["top-k", "1 bit"])
def test_nothing_is_lost_and_messages_are_those_of_the_method(place):
    right, broken = compressed()[place : place + 2]
    for each in right.messages.values():
        for message, before in ((m, b) for rank in each for m, b in zip(rank, [None, *rank], strict=False)):
            assert (message.sent + message.after == message.gradient + message.before).all()
            kept = np.zeros(1) if before is None else before.after
            # 1 bit puts both on the step's own grid: see feedback.py
            assert np.abs(message.before - kept).max() <= (2.0**-40 if place else 0) * np.abs(message.corrected).max()
    for message in right.drawn:
        if not place:
            indices, values = top_k(message.corrected, COUNT)
            assert np.array_equal(np.flatnonzero(message.sent), indices) and (message.sent[indices] == values).all()
    assert not any(m.before.any() for each in broken.messages.values() for rank in each for m in rank)
    method, sizes = read_method(right.method), [p.size for p in GPT(right.run.config.model).parameters()]
    for rank in right.run.ranks:
        (gathered,) = [row for row in rank.collectives if row["name"] == "all_gather_into_tensor"]
        assert gathered["bytes_sent"] == (RANKS - 1) * sum(method.message_bytes(size, 8) for size in sizes)
    each = SIZE // 8 + 8 if place else COUNT * 12
    for bad, one in enumerate((right, broken)):
        story = recorded("compress").animation.find("1 bit" if place else "top-k", bool(bad))
        total = sum(message.sent.size for rows in one.messages.values() for rank in rows for message in rank)
        assert fact(story, "bytes") == [each, 8 * SIZE]
        assert fact(story, f"sent + {'lost' if bad else 'waits'}") == [total, total]
        assert fact(story, "never sent") == [SIZE - one.moved(), SIZE]


def test_what_waits_above_the_line_is_all_gradients_less_all_that_was_sent():
    """Exactly, in fractions; without feedback it is lost."""
    right, forgetful, *_ = compressed()
    for number in range(SIZE):
        came = sent = Fraction(0)
        for message in right.drawn:
            came, sent = came + Fraction(message.gradient[number]), sent + Fraction(message.sent[number])
            assert came - sent == Fraction(message.after[number])
    lost = [number for number in range(SIZE) if not any(message.sent[number] for message in forgetful.drawn)]
    story, bad = (recorded("compress").animation.find("top-k", broken) for broken in (False, True))
    heights = [
        {number: mark.at(one.ends)["h"] for number in range(SIZE) for mark in one.marks
         if mark.thing.startswith(f"number {number}:")}
        for one in (story, bad)
    ]  # fmt: skip
    assert lost and all(heights[1][number] == 0 for number in range(SIZE))
    after = [abs(value) for value in right.drawn[-1].after]
    assert np.argsort([heights[0][number] for number in range(SIZE)]).tolist() == np.argsort(after).tolist()


def test_low_rank_rounds_are_the_power_method_of_numpy():
    found = recorded("compress")
    right, broken = found.results["approximate"]
    matrix = sum(factors.gradients_of(compressed()[0]))
    for one, error in zip(right.rounds, right.errors, strict=True):
        np.testing.assert_allclose(one.p @ (one.p.T @ (matrix @ one.start)), matrix @ one.start, atol=1e-12)
        np.testing.assert_allclose(one.q, matrix.T @ one.p, atol=1e-12)
        assert error == pytest.approx(np.linalg.norm(matrix - one.p @ one.q.T) / np.linalg.norm(matrix))
    for bad, one in enumerate((right, broken)):
        assert f"{one.errors[-1]:.0%}" in found.animation.find("low rank", bool(bad)).beats[-1].says


def test_losses_are_means_above_full_gradients_and_those_of_short_runs_are_real(ranks, monkeypatch):
    shown = [recorded("compress").animation.find("loss", broken).beats[-1].says for broken in (False, True)]
    assert [numbers(says)[-1] for says in shown] == [0.1, 0.2]  # of the made-up curves
    monkeypatch.setattr(curves, "STEPS", 3)
    monkeypatch.setattr(curves, "SEEDS", 1)
    real = curves.curves_of(WarmRanks(ranks), 5)
    shapes = [parameter.shape for parameter in GPT(curves.config_of(0).model).parameters()]
    full = 8 * sum(map(prod, shapes)) * 2 * (curves.RANKS - 1) / curves.RANKS
    for name, method in curves.METHODS.items():
        assert real.compressed[name][0, 0] == real.forgetful[name][0, 0] == real.full[0, 0]
        assert real.compressed[name][0, 2] not in (real.full[0, 2], real.forgetful[name][0, 2])
        formula = read_method(method).bytes_sent(shapes, curves.RANKS, 8)
        assert real.shares[name] == pytest.approx((formula + 8) / (full + 8))  # and the loss
