"""The demonstrations of loosened steps: staleness and waiting counted, what is sent and what stays add up."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from every_scene import EveryScene
from frames import boxes, labels, last, numbers, told
from recorded import made_up_curves, recorded

from minidist.nn.gpt import GPT
from minidist.nn.optim.optimizers import warmup_cosine
from minidist.parallel.compression.methods import read_method
from minidist.parallel.compression.top_k import top_k
from minidist.parallel.loosened import arrivals, server, staleness
from minidist.parallel.loosened.arrivals import NOISE
from minidist.show.demos.compress import curves, curves_scene, factors, lecture, ledger, run, scene, verdict
from minidist.show.demos.compress import picture as bars
from minidist.show.demos.compress.bug import train_forgetting
from minidist.show.demos.parameter_server import evidence, picture
from minidist.show.demos.parameter_server import run as served
from minidist.show.demos.parameter_server import verdict as of_servers
from minidist.show.demos.parameter_server.bug import counted_twice, with_copies
from minidist.show.demos.parameter_server.recorded import Recorded, check_versions
from minidist.show.demos.parameter_server.watched import constant
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.player.scene import Curve
from minidist.train.layout import Layout
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run as train

pytestmark = pytest.mark.long  # they record many training runs


@pytest.fixture(params=["async", "compress"])
def shown(request):
    return recorded(request.param)


class TestScenes(EveryScene):
    pass


# ── parameter servers: 3 workers, of which the last takes 4 times as long ────────────────────────────────────────────

N, SLOWER, BOUND = 3, 4, 2
CLOSE = 1e-9  # seconds: roundings of simulated times


def recorded_runs() -> dict[str, Recorded]:
    """The first run of each kind, and those with the bug."""
    runs = {kind: Recorded.of(of_kind(kind)[0]) for kind in served.KINDS}
    with with_copies():
        broken = [Recorded.of(one) for one in recorded("async").trained("train_with_copies")]
    return runs | {f"broken {kind}": one for kind, one in zip(served.KINDS[1:], broken, strict=True)}


def of_kind(kind: str) -> list[Run]:
    """The runs of all seeds."""
    return recorded("async").trained("train_watched", **vars_of(served.layout_of(kind, N, SLOWER)))


def vars_of(layout: Layout) -> dict:
    return {name: getattr(layout, name) for name in ("dp", "sync", "staleness", "arrivals")}


def test_a_step_takes_its_time_and_gradients_are_as_stale_as_counted():
    found, seconds = recorded_runs(), served.seconds_of(SLOWER)
    for kind in served.KINDS:
        one = found[kind]
        assert [*one.made] == sorted(one.made) and one.made[0] == 0
        for worker in range(N):
            mine = [landing for landing in one.landings if landing.worker == worker]
            assert [landing.step for landing in mine] == list(range(len(mine)))
            assert all(before.end <= after.begin + CLOSE for before, after in pairwise(mine))
            takes = SLOWER if worker == N - 1 else 1
            assert all(takes - CLOSE <= x.end - x.begin <= takes * (1 + NOISE) + CLOSE for x in mine)
    fresh, stale, bounded = (found[kind].by(seconds) for kind in served.KINDS)
    assert {x.staleness for x in fresh} == {0} == {x.ahead for x in fresh}
    # An update makes the gradients of all N - 1 other workers older by one: those that landed, and those in flight.
    version, now = stale[-1].found + 1, stale[-1].end
    flying = [x for x in found["asynchronous"].landings if x.begin <= now < x.end]
    assert sum(x.staleness for x in stale) + sum(version - x.read for x in flying) == (N - 1) * version
    assert max(x.ahead for x in bounded) == BOUND < max(x.ahead for x in stale)
    assert max(x.staleness for x in bounded) <= (2 * BOUND + 1) * (N - 1)


@pytest.mark.parametrize("name", [*served.KINDS, "broken asynchronous", "broken bounded"])
def test_every_gradient_is_a_frame_with_its_versions(name):
    shown, one = recorded("async").scene(name), recorded_runs()[name]
    landed = one.by(shown.frames[-1].at)
    assert [frame.at for frame in shown.frames[1:-1]] == [x.end for x in landed]
    for number, (frame, x) in enumerate(zip(shown.frames[1:-1], landed, strict=True), 1):
        so_far, begun = landed[:number], [y for y in one.landings if y.begin <= frame.at]
        assert last_of(frame, "gradients") == number
        assert last_of(frame, "the highest") == max(y.staleness for y in so_far)
        assert frame.facts["staleness, mean"] == f"{np.mean([y.staleness for y in so_far]):.1f}"
        if not shown.twin:
            assert last_of(frame, "steps ahead") == max(y.ahead for y in begun)
            assert f"orker {x.worker}'s gradient" in frame.note
        if name == "asynchronous":
            assert f"of version {x.read} meets version {x.found}: staleness {x.staleness}." in frame.note
        assert ("sends it again" in frame.note) == x.again
    end = shown.frames[-1].at
    idle = picture.Lanes(one, end).idle(end)
    assert shown.frames[-1].facts["waiting"] == f"{idle:.0%}"
    if name == "asynchronous":
        stale = next(y for y in one.landings if y.worker == N - 1)
        assert abs(idle) < CLOSE and shown.questions[0].choices[shown.questions[0].answer] == str(stale.staleness)


def last_of(frame, fact: str) -> float:
    return numbers(next(text for name, text in frame.facts.items() if name.startswith(fact)))[0]


def test_the_bug_applies_every_gradient_of_the_straggler_twice_and_breaks_the_bound():
    found = recorded_runs()
    for kind in served.KINDS[1:]:
        one = found[f"broken {kind}"]
        for worker in range(N):
            mine, times = [x for x in one.landings if x.worker == worker], 1 + (worker == N - 1)
            assert [x.again for x in mine] == [place % times == 1 for place in range(len(mine))]
        assert one.fingerprint != found[kind].fingerprint
        with pytest.raises(RuntimeError, match="applied twice change no bit"):
            of_servers.of_bug(kind, found[kind], found[kind], served.seconds_of(SLOWER))
    ahead = max(x.ahead for x in found["broken bounded"].by(served.seconds_of(SLOWER)))
    broken = recorded("async").animation.broken
    assert ahead > BOUND and f"a worker began a step {ahead} ahead" in broken.verdict
    assert "sends it again" in broken.frames[broken.first_wrong].note
    with with_copies():
        assert arrivals.may_begin is server.may_begin is counted_twice
    assert arrivals.may_begin is server.may_begin is staleness.may_begin  # the bug ends with its block


def test_a_worker_with_other_weights_than_the_log_says_is_found_and_recordings_repeat(ranks):
    found = recorded("async").trained("train_watched", sync="async")[0]
    weights = [rank.arrays["weights"].copy() for rank in found.ranks]
    assert len({*weights[-1].tolist()}) == len(weights[-1])  # versions are different weights
    weights[1][3] += np.uint64(1)
    with pytest.raises(RuntimeError, match="worker 1 took its step 3 with other weights than version 5: this is a bug"):
        check_versions(Recorded.of(found).landings, weights)
    again = served.train(WarmRanks(ranks), "asynchronous", N, SLOWER, 0)
    assert Recorded.of(again) == Recorded.of(found)


def test_the_evidence_is_the_losses_of_the_runs_and_two_servers_share_the_parameters():
    found, runs = recorded("async"), recorded_runs()
    times = [runs[kind].reaches(evidence.TARGET) for kind in served.KINDS]
    assert times[1] < times[2] < times[0] and times[0] > 2 * times[1]  # without waiting it is faster
    one = runs["asynchronous"]
    place = next(i for i, loss in enumerate(one.losses) if loss <= evidence.TARGET)
    assert one.times[place - 1] < times[1] <= one.times[place] and one.times[2] == one.landings[2 * N - 1].end
    shown = found.scene("evidence")
    for kind in served.KINDS:
        (gradients, loss), end = last(shown, kind), shown.frames[-1].at
        every = [Recorded.of(run) for run in of_kind(kind)]
        assert gradients == round(np.mean([len(one.by(end)) for one in every]))
        assert loss == round(np.mean([np.interp(end, one.times, one.losses) for one in every]), 2)
    ends = {kind: max(Recorded.of(run).reaches(evidence.TARGET) for run in of_kind(kind)) for kind in served.KINDS}
    for frame in shown.frames[1:]:  # the note names the kinds of which all runs have reached the target
        done = [kind for kind in served.KINDS if ends[kind] <= frame.at]
        assert len(done) == len(ends) or all((f" {kind} " in frame.note) == (kind in done) for kind in ends)
    two = found.scene("two servers")
    elements = [last(two, f"server {number}")[0] for number in (0, 1)]
    every = GPT(found.trained(servers=2)[0].config.model).parameters()
    assert sum(elements) == sum(parameter.size for parameter in every) and max(elements) < 0.52 * sum(elements)
    pushes = [numbers(box.text)[0] for box in boxes(two.frames[-1]) if box.text.endswith(" B")]
    assert pushes == [] or {*pushes} == {4 * count for count in elements}  # float32
    assert found.trained(servers=1)[-1].fingerprint == found.trained(servers=2)[0].fingerprint
    rates = [constant(step, 9, 1.0, 4, 0.1) for step in range(9)]
    assert rates[:5] == [warmup_cosine(step, 9, 1.0, 4, 0.1) for step in range(5)] and rates[4:] == [1.0] * 5


# ── compressed gradients ─────────────────────────────────────────────────────────────────────────────────────────────

SIZE, RANKS, COUNT = 16, 4, 2  # the numbers that are drawn, and how many of them top-k sends


def compressed() -> list[run.Recorded]:
    """By top-k, and without feedback; in one bit, and without feedback."""
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
        if place:
            (scale,) = {*np.abs(message.sent)}
            assert scale == pytest.approx(np.abs(message.corrected).mean())
            assert np.array_equal(message.sent < 0, message.corrected < 0)
        else:
            indices, values = top_k(message.corrected, COUNT)
            assert np.array_equal(np.flatnonzero(message.sent), indices) and (message.sent[indices] == values).all()
    assert not any(m.before.any() for each in broken.messages.values() for rank in each for m in rank)
    method, sizes = read_method(right.method), [p.size for p in GPT(right.run.config.model).parameters()]
    for rank in right.run.ranks:
        (gathered,) = [row for row in rank.collectives if row["name"] == "all_gather_into_tensor"]
        assert gathered["bytes_sent"] == (RANKS - 1) * sum(method.message_bytes(size, 8) for size in sizes)
    shown, each = recorded("compress").scene("1 bit" if place else "top-k"), SIZE // 8 + 8 if place else COUNT * 12
    assert method.message_bytes(SIZE, 8) == each and shown.verdict.startswith(f"{each} bytes for {8 * SIZE}")
    assert last(shown, "bytes sent") == [each * run.STEPS, 8 * SIZE * run.STEPS]
    frame, message = shown.frames[1], right.drawn[0]
    assert place or {f"{message.sent[i]:+.4f}" for i in np.flatnonzero(message.sent)} <= {*labels(frame)}
    total = sum(message.sent.size for each in right.messages.values() for rank in each for message in rank)
    assert f"in all {total:,} numbers" in told(shown)
    wrong = replace(right.drawn[3], after=right.drawn[3].after + 1e-12)
    rank = [*right.drawn[:3], wrong, *right.drawn[4:]]
    with pytest.raises(RuntimeError, match=f"of {total} numbers do not add up: this is a bug in minidist"):
        verdict.books(replace(right, messages=right.messages | {run.DRAWN: [rank, *right.messages[run.DRAWN][1:]]}))


def heights(frame, number: int) -> np.ndarray:
    """Of a number's bars, downwards ones negative: in the rows of what came in, what is sent and what stays."""
    rows, left, pitch = bars.BASES, bars.LEFT, (2 * bars.WIDE // SIZE) / 2
    found = np.zeros(3)
    for box in boxes(frame):
        if box.id and left + pitch * number <= box.x < left + pitch * (number + 1) - 0.5:
            row = int(np.argmin([abs(box.y + box.h / 2 - base) for base in rows]))
            found[row] += box.h if box.y < rows[row] - 1e-9 else -box.h
    return found


def test_in_every_column_what_comes_in_is_as_high_as_what_becomes_of_it():
    for name in ("top-k", "1 bit", "broken top-k"):
        for frame in recorded("compress").scene(name).frames[1::2]:
            for number in range(SIZE):
                came, sent, stays = heights(frame, number)
                assert came == pytest.approx(sent + stays, abs=1e-9)


def test_the_number_that_is_followed_waits_and_without_feedback_is_lost(ranks):
    found, (right, broken, *_) = recorded("compress"), compressed()
    number = scene.followed(right, broken)
    step = lecture.first_sent(right, number)
    assert step > 1 and not any(message.sent[number] for message in broken.drawn)
    came = sum(message.gradient[number] for message in right.drawn[:step])
    assert right.drawn[step - 1].sent[number] == pytest.approx(came, rel=1e-12)  # all that had waited
    when, still = found.scene("top-k").questions[1], found.animation.broken.questions[0]
    assert when.choices[when.answer] == f"in step {step}"
    config = broken.run.config
    layout = Layout(dp=RANKS, sync="bucketed", compress=right.method)
    for one, function in ((right, run.train_recording), (broken, train_forgetting)):
        again = train(ranks(RANKS), config, layout, RunOptions(stop_after=run.STEPS - 1), rank_function=function)
        assert again.fingerprint == one.run.fingerprint  # the bias begins at 0, and what is never sent does not move
        assert np.count_nonzero(again.ranks[0].arrays[run.DRAWN]) == one.moved()
    assert still.choices[still.answer] == str(SIZE - broken.moved()) and broken.moved() < SIZE
    without = train(ranks(RANKS), config, replace(layout, error_feedback=0))
    assert without.fingerprint == broken.run.fingerprint != right.run.fingerprint
    with pytest.raises(RuntimeError, match="choose another size or seed"):
        scene.followed(right, right)


def test_the_ledger_adds_up_in_every_step():
    found, (right, broken, *_) = recorded("compress"), compressed()
    number = scene.followed(right, broken)
    for name, one in (("ledger", right), ("broken ledger", broken)):
        came = sent = Fraction(0)
        for message, frame in zip(one.drawn, found.scene(name).frames[1:], strict=True):
            came, sent = came + Fraction(message.gradient[number]), sent + Fraction(message.sent[number])
            assert frame.facts["gradients so far"] == f"{float(came):+.6f}"
            assert frame.facts["missing"] == ("0, exactly" if one is right else f"{float(came - sent):+.6f}")
            assert one is broken or came - sent == Fraction(message.after[number])
            bits = [text for text in labels(frame) if len(text) == 16 and " " not in text]
            assert bits == 2 * [ledger.bits(message.gradient[number] + message.before[number])]
    wrong = ledger.Account(replace(right.drawn[1], after=right.drawn[1].after + 2.0**-40), 0)
    assert "other bits" in [getattr(shape, "text", "") for shape in ledger._equation(wrong, False)]


def test_low_rank_rounds_are_the_power_method_of_numpy():
    found = recorded("compress")
    right, broken = found.results["approximate"]
    matrix = sum(factors.gradients_of(compressed()[0]))
    values = np.linalg.svd(matrix, compute_uv=False)
    best = np.sqrt((values[factors.RANK :] ** 2).sum() / (values**2).sum())
    start = None
    for one, error in zip(right.rounds, right.errors, strict=True):
        np.testing.assert_allclose(one.products, matrix @ one.start, atol=1e-12)
        np.testing.assert_allclose(one.p.T @ one.p, np.eye(factors.RANK), atol=1e-12)
        np.testing.assert_allclose(one.q, matrix.T @ one.p, atol=1e-12)
        assert start is None or start.tobytes() == one.start.tobytes()  # a warm start
        assert error == pytest.approx(np.linalg.norm(matrix - one.p @ one.q.T) / np.linalg.norm(matrix))
        start = one.q
    assert (np.diff(right.errors) < 1e-12).all() and right.errors[-1] > best - 1e-12
    assert broken.errors[0] == right.errors[0] and broken.later > right.later
    for name, errors in (("low rank", right.errors), ("broken low rank", broken.errors)):
        assert last(found.scene(name), "error") == [round(100 * errors[-1], 1)]
        bars = [box.h for box in boxes(found.scene(name).frames[-1]) if box.id.startswith("error")]
        np.testing.assert_allclose(np.array(bars) / bars[0] * errors[0], errors, atol=1e-9)
    assert f"{best:.1%}" in found.scene("low rank").verdict
    with pytest.raises(RuntimeError, match="choose another size or seed"):
        factors.check_harm(right, right)


def test_losses_are_means_above_full_gradients_and_those_of_short_runs_are_real(ranks, monkeypatch):
    found, made_up = recorded("compress"), made_up_curves(None, 0)
    assert curves.windows(np.arange(20.0)).tolist() == [4.5, 14.5]
    np.testing.assert_allclose(curves_scene.above(made_up.compressed["1 bit"], made_up.full), 0.1)
    assert "0.10 to 0.10 above" in found.scene("loss").verdict
    assert "in 8 of 9 runs" in found.scene("broken loss").verdict
    drawn = [shape for shape in found.scene("broken loss").frames[-1].shapes if isinstance(shape, Curve)]
    assert sum(curve.colour == "wrong" for curve in drawn) == 3 * curves.SEEDS
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
