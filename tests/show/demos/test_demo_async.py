"""The demonstration of parameter servers: versions in colours, staleness counted, and what waiting costs."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from frames import boxes, check_inside, told

from minidist.nn.optim.optimizers import warmup_cosine
from minidist.parallel.loosened import arrivals, server, staleness
from minidist.parallel.loosened.arrivals import NOISE
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.parameter_server import evidence, picture, run, shards, verdict
from minidist.show.demos.parameter_server.bug import counted_twice, train_with_copies, with_copies
from minidist.show.demos.parameter_server.recorded import Recorded, check_versions
from minidist.show.demos.parameter_server.watched import constant
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.palette import MEANINGS, of_version
from minidist.show.player.scene import Arrow, Box, Curve
from minidist.train.served import ServersShare

pytestmark = pytest.mark.long  # it records several training runs

WORKERS, SLOWER = 3, 4  # the default, which lectures show
STRAGGLER = WORKERS - 1
SECONDS = run.seconds_of(SLOWER)
CLOSE = 1e-9  # seconds


@pytest.fixture(scope="module")
def animation():
    return DEMONSTRATIONS["async"](ranks=WORKERS + 1, size=SLOWER, seed=0)


@pytest.fixture(scope="module")
def found():
    """A run of each kind, those with the bug, and the asynchronous one once more."""
    with warm_ranks() as warm:
        runs = {kind: run.train(warm, kind, WORKERS, SLOWER, 0) for kind in run.KINDS}
        bad = {kind: run.train(warm, kind, WORKERS, SLOWER, 0, train_with_copies) for kind in run.KINDS[1:]}
        again = run.train(warm, "asynchronous", WORKERS, SLOWER, 0)
        with pytest.raises(RuntimeError, match="does not match the single-process run: this is a bug in minidist"):
            run.prove(warm, runs["bounded"])
    right = {kind: Recorded.of(one) for kind, one in runs.items()}
    with with_copies():
        broken = {kind: Recorded.of(one) for kind, one in bad.items()}
    return SimpleNamespace(runs=runs, right=right, broken=broken, again=Recorded.of(again))


def scene(animation, name: str):
    return next(one for one in animation.all_scenes if one.name == name)


# ── what is recorded ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_recordings_are_the_same(found):
    assert found.again == found.right["asynchronous"]


@pytest.mark.parametrize("kind", run.KINDS)
def test_a_step_takes_its_time_and_a_worker_has_one_at_a_time(found, kind):
    shown = found.right[kind]
    assert [*shown.made] == sorted(shown.made) and shown.made[0] == 0
    for worker in range(WORKERS):
        mine = [one for one in shown.landings if one.worker == worker]
        assert [one.step for one in mine] == list(range(len(mine)))
        assert all(before.end <= after.begin + CLOSE for before, after in pairwise(mine))
        seconds = SLOWER if worker == STRAGGLER else 1
        assert all(seconds - CLOSE <= one.end - one.begin <= seconds * (1 + NOISE) + CLOSE for one in mine)


def test_how_stale_gradients_are(found):
    fresh, stale, bounded = (found.right[kind].by(SECONDS) for kind in run.KINDS)
    assert {one.staleness for one in fresh} == {0} and {one.ahead for one in fresh} == {0}
    # An update makes the gradients of all N - 1 other workers older by one: those that landed, and those in flight.
    version, now = stale[-1].found + 1, stale[-1].end
    flying = [one for one in found.right["asynchronous"].landings if one.begin <= now < one.end]
    assert len(flying) == WORKERS  # the last one has just begun
    ages = sum(one.staleness for one in stale) + sum(version - one.read for one in flying)
    assert ages == (WORKERS - 1) * version
    assert max(one.ahead for one in bounded) == run.STALENESS < max(one.ahead for one in stale)
    most = (2 * run.STALENESS + 1) * (WORKERS - 1)  # in a step the others go from so far behind to so far ahead
    assert max(one.staleness for one in bounded) <= most


def test_a_worker_with_other_weights_than_the_log_says_is_found(found):
    one = found.runs["asynchronous"]
    weights = [rank.arrays["weights"].copy() for rank in one.ranks]
    check_versions(found.right["asynchronous"].landings, weights)
    weights[1][3] += np.uint64(1)
    with pytest.raises(RuntimeError, match="worker 1 took its step 3 with other weights than version 5: this is a bug"):
        check_versions(found.right["asynchronous"].landings, weights)


def test_versions_are_different_weights(found):
    for kind, one in found.runs.items():
        *workers, versions = (rank.arrays["weights"] for rank in one.ranks)
        assert len({*versions.tolist()}) == len(versions) == len(found.right[kind].made)
        assert all(mine[0] == versions[0] for mine in workers)


def test_the_learning_rate_is_constant_after_the_warm_up():
    rates = [constant(step, 9, 1.0, 4, 0.1) for step in range(9)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1])
    assert rates[:5] == [warmup_cosine(step, 9, 1.0, 4, 0.1) for step in range(5)]


def test_losses_are_on_the_clock(found):
    shown = found.right["asynchronous"]
    assert len(shown.losses) == len(shown.times) == found.runs["asynchronous"].config.steps + 1
    assert shown.times[0] == 0 and shown.times[2] == shown.landings[2 * WORKERS - 1].end
    place = next(i for i, loss in enumerate(shown.losses) if loss <= 4)
    assert shown.times[place - 1] < shown.reaches(4.0) <= shown.times[place]
    assert evidence.loss_at(shown, shown.reaches(4.0)) == pytest.approx(4)
    assert shown.reaches(99) == 0 and shown.reaches(0) == float("inf")


# ── the lanes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", run.KINDS)
def test_a_frame_for_each_gradient(animation, found, kind):
    shown = scene(animation, kind)
    landings = [one for one in found.right[kind].landings if one.end <= shown.frames[-1].at]
    assert [frame.at for frame in shown.frames[1:-1]] == [one.end for one in landings]
    assert [frame.facts["gradients"] for frame in shown.frames[:-1]] == [str(n) for n in range(len(landings) + 1)]
    for frame, one in zip(shown.frames[1:], landings, strict=False):
        assert f"orker {one.worker}'s gradient" in frame.note
        stale = f"gradient of version {one.read} meets version {one.found}: staleness {one.staleness}."
        assert kind == "synchronous" or stale in frame.note
        arrow = next(shape for shape in frame.shapes if isinstance(shape, Arrow))
        assert arrow.label == f"worker {one.worker} → server"


def test_a_bar_has_the_colour_that_was_pulled_and_the_one_that_was_met(animation, found):
    lanes = picture.Lanes(found.right["asynchronous"], scene(animation, "asynchronous").frames[-1].at)
    number = next(i for i, one in enumerate(lanes.landings, 1) if one.worker == STRAGGLER)
    landing, frame = lanes.landings[number - 1], scene(animation, "asynchronous").frames[number]
    assert landing.read == 0 and landing.staleness == landing.found >= 5
    bar, met, following = sorted(
        (box for box in boxes(frame, y=lanes.y(STRAGGLER)) if box.h == picture.HIGH), key=lambda box: box.x
    )
    assert (bar.x, met.x + picture.MET) == pytest.approx((picture.LEFT, lanes.x(landing.end)))
    assert (bar.fill, met.fill) == (of_version(0, lanes.last), of_version(landing.found, lanes.last))
    assert following.fill == of_version(landing.found + 1, lanes.last) != met.fill
    below = [shape for shape in frame.shapes if getattr(shape, "text", "") == str(landing.staleness)]
    assert any(shape.y == lanes.y(STRAGGLER) + picture.HIGH + 0.5 for shape in below if not isinstance(shape, Box))
    counts = [shape for shape in frame.shapes if getattr(shape, "y", 0) == picture.SERVER - 0.5]
    assert counts[0].text == str(landing.staleness)
    for count in counts:  # each above the version that it counts
        made = lanes.run.made[landing.read + int(count.text)], lanes.run.made[landing.read + int(count.text) + 1]
        assert lanes.x(made[0]) <= count.x <= lanes.x(made[1])


def test_the_servers_lane_has_all_versions(animation, found):
    lanes = picture.Lanes(found.right["asynchronous"], scene(animation, "asynchronous").frames[-1].at)
    for count, frame in enumerate(scene(animation, "asynchronous").frames[:-1]):
        lane = [box for box in boxes(frame, y=picture.SERVER) if box.fill != "ink"]
        assert [box.fill for box in lane] == [of_version(number, lanes.last) for number in range(count + 1)]
        assert [box.x for box in lane] == [lanes.x(time) for time in lanes.run.made[: count + 1]]


def test_waiting_is_grey_and_counted(animation, found):
    """The share of the time that a straggler's colleagues wait: by the picture, the facts and the arrivals."""
    for kind in run.KINDS:
        shown = scene(animation, kind)
        frame, end = shown.frames[-1], shown.frames[-1].at
        lanes = picture.Lanes(found.right[kind], end)
        grey = sum(box.w for box in boxes(frame, fill=MEANINGS["idle"]) if box.h == picture.HIGH)
        share = grey / (lanes.x(end) - picture.LEFT) / WORKERS
        assert share == pytest.approx(lanes.idle(end), abs=0.005)
        assert frame.facts["waiting"] == f"{lanes.idle(end):.0%}"
    assert lanes.idle(0.0) == 0.0 and "Nobody waited" in scene(animation, "asynchronous").frames[-1].note
    assert picture.Lanes(found.right["synchronous"], SECONDS).idle(SECONDS) > 0.4


# ── the bug ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", run.KINDS[1:])
def test_every_gradient_of_the_straggler_is_applied_twice(found, kind):
    shown = found.broken[kind]
    for worker in range(WORKERS):
        mine = [one for one in shown.landings if one.worker == worker]
        times = 2 if worker == STRAGGLER else 1
        assert [one.step for one in mine] == [step for step in range(len(mine) // times) for _ in range(times)]
        assert [one.again for one in mine] == [place % times == 1 for place in range(len(mine))]
    for one, after in pairwise(shown.landings):
        assert after.found == one.found + 1 and (not after.again or (after.read, after.end) == (one.read, one.end))
    assert found.right[kind].fingerprint != shown.fingerprint


def test_it_breaks_the_bound(animation, found):
    broken, right = scene(animation, "broken bounded"), scene(animation, "bounded")
    assert broken is animation.broken and broken.twin == right.name
    assert animation.breakable() == ("asynchronous", "bounded")
    assert max(one.ahead for one in found.broken["bounded"].by(SECONDS)) > run.STALENESS
    assert not [box for frame in right.frames for box in boxes(frame) if "wrong" in (box.fill, box.outline)]
    *before, first = broken.frames[: broken.first_wrong + 1]
    assert "sends it again" in first.note and boxes(first, text="×2", fill="wrong")
    assert not [box for frame in before for box in boxes(frame) if "wrong" in (box.fill, box.outline)]
    outlined = boxes(broken.frames[-1], outline="wrong")
    lanes = picture.Lanes(found.broken["bounded"], broken.frames[-1].at, run.STALENESS)
    late = [one for one in lanes.run.landings if one.begin < lanes.end and one.ahead > run.STALENESS and not one.again]
    assert len(outlined) == len(late) > 0
    assert int(broken.frames[-1].facts["steps ahead, at most"]) > run.STALENESS
    assert "steps ahead" in broken.frames[broken.first_wrong + 1].note or "meets" in broken.frames[-2].note
    ahead = max(one.ahead for one in found.broken["bounded"].by(SECONDS))
    assert f"a worker began a step {ahead} ahead" in told(broken) and "The loss tells nobody" in told(broken)


def test_a_bug_that_does_no_harm_is_an_error(found):
    for kind in run.KINDS[1:]:
        with pytest.raises(RuntimeError, match="applied twice change no bit"):
            verdict.of_bug(kind, found.right[kind], found.right[kind], SECONDS)


def test_the_bug_ends_with_its_block():
    with with_copies():
        assert arrivals.may_begin is server.may_begin is counted_twice
        assert ServersShare.take_step.__name__ == "take_step_and_copies"
    assert arrivals.may_begin is server.may_begin is staleness.may_begin
    assert ServersShare.take_step.__name__ == "take_step"


# ── the evidence, and two servers ────────────────────────────────────────────────────────────────────────────────────


def test_the_idea_is_clear_of_the_noise(animation, found):
    shown = scene(animation, "evidence")
    spans = {}
    for kind in run.KINDS:
        lines = [shape for shape in shown.frames[-1].shapes if isinstance(shape, Curve)]
        curves = [line for line in lines if line.colour == MEANINGS[kind] and len(line.points) > 2]
        assert len(curves) == run.SEEDS
        (target,) = {y for line in lines if line.colour == "ink" for _, y in line.points}
        places = [np.interp(target, *zip(*((y, x) for x, y in one.points), strict=True)) for one in curves]
        spans[kind] = min(places), max(places)
    assert spans["asynchronous"][1] < spans["bounded"][0] < spans["bounded"][1] < spans["synchronous"][0]
    times = [found.right[kind].reaches(evidence.TARGET) for kind in run.KINDS]
    assert times[0] > 2 * times[1]  # without waiting it is more than twice as fast
    assert all(f"{kind} after" in told(shown) for kind in run.KINDS)


def test_histograms_hold_every_gradient(animation):
    for frame in scene(animation, "evidence").frames[1:]:
        bars = [box for box in boxes(frame) if box.x < evidence.SHARES[1] and box.fill != "faint"]
        for row, kind in enumerate(run.KINDS):
            base = evidence.TOP + evidence.EACH * row + evidence.HIGH
            mine = [box for box in bars if base - evidence.HIGH - CLOSE <= box.y < base]
            assert sum(box.h for box in mine) == pytest.approx(evidence.HIGH)
            assert {box.fill for box in mine} <= {MEANINGS[kind], "ink"}
            slow = sum(box.h for box in mine if box.fill == "ink") / evidence.HIGH
            steps = {"synchronous": 1, "asynchronous": 1 / SLOWER, "bounded": 1}[kind]  # of the straggler, per other's
            if frame is scene(animation, "evidence").frames[-1]:
                assert slow == pytest.approx(steps / (steps + WORKERS - 1), abs=0.04)


def test_parameters_are_dealt_to_the_server_that_has_least(animation):
    shown = scene(animation, "two servers")
    last = shown.frames[-1]
    sizes = {}
    for number, frame in enumerate(shown.frames[:-1]):
        dealt = [box for box in boxes(frame) if box.y == shards.HELD]
        waiting = [box for box in boxes(frame) if box.y == shards.ROW]
        assert len({box.id for box in dealt + waiting}) == 16 and (number == 0) == (not dealt)
        sizes |= {box.id: box.w for box in waiting}
    held = [[box for box in boxes(last, y=shards.HELD, mark=str(one))] for one in range(shards.SERVERS)]
    assert {box.id for one in held for box in one} == sizes.keys()
    assert all(box.w == sizes[box.id] for one in held for box in one)
    for one in held:  # side by side
        assert all(-0.02 < after.x - (before.x + before.w) < 0.21 for before, after in pairwise(one))
    pushes = [int(box.text.split()[0].replace(",", "")) for box in boxes(last, y=shards.PUSH)]
    elements = [int(last.facts[f"server {one}"].split()[0].replace(",", "")) for one in range(shards.SERVERS)]
    assert pushes == [4 * count for count in elements] and max(elements) < 0.52 * sum(elements)  # float32
    assert "ends on the bits of one server" in told(shown)


def test_servers_that_end_on_other_bits_are_found(found):
    one, two = found.runs["bounded"], found.runs["asynchronous"]
    shown = shards.Shards({"a.weight": 3, "b.weight": 2}, [["a.weight"], ["b.weight"]], 3, [12, 8])
    with pytest.raises(RuntimeError, match="two servers end on other bits than one: this is a bug in minidist"):
        verdict.of_shards(shown, one, two)


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_questions_have_the_answers_of_the_runs(animation, found):
    asked = {one.name: one.questions[0] for one in animation.all_scenes}
    landing = next(one for one in found.right["asynchronous"].landings if one.worker == STRAGGLER)
    stale = asked["asynchronous"]
    assert stale.choices[stale.answer] == str(landing.staleness)
    bounded = asked["bounded"]
    assert "The worker has to wait." in scene(animation, "bounded").frames[bounded.frame].note
    assert f"{run.STALENESS + 1} steps ahead" in bounded.text
    assert asked["evidence"].choices[asked["evidence"].answer] == "asynchronous"
    third = asked["two servers"]
    assert f"goes to {third.choices[third.answer]}:" in scene(animation, "two servers").frames[third.frame].note


def test_verdicts(animation, found):
    assert found.right["synchronous"].fingerprint[:8] in told(scene(animation, "synchronous"))
    assert "Nobody waited; the mean staleness is 1.9" in told(scene(animation, "asynchronous"))
    assert "none was more than 2 steps ahead" in told(scene(animation, "bounded"))


def test_everything_is_in_the_picture(animation):
    for one in animation.all_scenes:
        check_inside(one, note=110)


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "size"), [(3, 2), (6, 6)])
def test_other_sizes(ranks, size):
    for one in DEMONSTRATIONS["async"](ranks=ranks, size=size).all_scenes:
        check_inside(one, note=110)


def test_sizes():
    with pytest.raises(ValueError, match="the last worker is, must be from 2 to 6, got 1: none lags"):
        DEMONSTRATIONS["async"](size=1)
    with pytest.raises(ValueError, match="the demonstration async shows 3 to 6 ranks, not 2"):
        DEMONSTRATIONS["async"](ranks=2)
