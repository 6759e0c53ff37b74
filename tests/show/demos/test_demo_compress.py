"""The demonstration of compression: what is drawn is what was sent, nothing is lost, and without feedback it is."""

from dataclasses import replace
from fractions import Fraction
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from frames import boxes, check_inside, labels, told

from minidist.nn.gpt import GPT
from minidist.parallel.compression.methods import read_method
from minidist.parallel.compression.top_k import top_k
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.compress import curves, curves_scene, factors, lecture, ledger, picture, run, scene, verdict
from minidist.show.demos.compress.bug import train_forgetting
from minidist.show.demos.compress.curves import Curves
from minidist.show.demos.compress.kinds import SHARE
from minidist.show.demos.compress.run import DRAWN, STEPS, config_of, record
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.player.scene import Label
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run as train

pytestmark = pytest.mark.long  # it records several training runs

RANKS, SIZE, SEED = 3, 12, 1
SPARSE, COUNT = f"topk:{SHARE}", 2  # how many of 12 numbers that is
SCENES = ("top-k", "ledger", "1 bit", "low rank", "loss")


def made_up_curves(warm=None, seed: int = 0) -> Curves:
    """Losses that need no training: with feedback 0.1 above full gradients, without 0.2, but for one run."""
    full = np.linspace(5, 3, curves.STEPS) + np.arange(curves.SEEDS)[:, None] / 10  # (seeds, steps)
    without = {name: full + 0.2 for name in curves.METHODS}
    without["1 bit"] = without["1 bit"] - np.array([0.15, 0, 0])[:, None]
    shares = dict.fromkeys(curves.METHODS, 0.01)
    return Curves(full, {name: full + 0.1 for name in curves.METHODS}, without, shares)


@pytest.fixture(scope="module")
def warm():
    with warm_ranks() as found:
        yield found


@pytest.fixture(scope="module")
def runs(warm):
    """The same training by top-k, by top-k without feedback, and by 1 bit."""
    config = config_of(RANKS, SIZE, SEED)
    return SimpleNamespace(
        sparse=record(warm, config, RANKS, SPARSE),
        broken=record(warm, config, RANKS, SPARSE, train_forgetting),
        signs=record(warm, config, RANKS, "onebit"),
    )


@pytest.fixture(scope="module")
def animation():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "curves_of", made_up_curves)
        return DEMONSTRATIONS["compress"](ranks=RANKS, size=SIZE, seed=SEED)


@pytest.fixture(scope="module")
def low(warm, runs):
    matrices = factors.gradients_of(runs.sparse)
    return SimpleNamespace(
        matrices=matrices,
        right=factors.approximate(warm, matrices, SEED, False),
        broken=factors.approximate(warm, matrices, SEED, True),
    )


def messages(recorded):
    """Every message, and the one that the same rank sent for the same parameter in the step before; None at first."""
    for ranks in recorded.messages.values():
        for rank in ranks:
            yield from zip(rank, [None, *rank], strict=False)


@pytest.mark.parametrize("name", ["sparse", "signs"])
def test_a_residual_is_what_the_step_before_left(runs, name):
    grids = []
    for message, before in messages(getattr(runs, name)):
        if before is None:
            assert not message.before.any()
        else:  # 1 bit puts both on the step's own grid: see feedback.py
            grids.append(np.abs(message.before - before.after).max() / max(np.abs(message.corrected).max(), 1e-300))
        assert (message.sent + message.after == message.gradient + message.before).all()
    assert max(grids) == 0 if name == "sparse" else max(grids) < 2.0**-40


def test_without_feedback_every_residual_is_lost(runs):
    assert not any(message.before.any() for message, _ in messages(runs.broken))
    assert any(message.after.any() for message, _ in messages(runs.broken))


def test_messages_are_those_of_the_method(runs):
    for message in runs.sparse.drawn:
        indices, values = top_k(message.corrected, COUNT)
        assert np.array_equal(np.flatnonzero(message.sent), indices)
        assert message.sent[indices].tobytes() == values.tobytes()
    for message in runs.signs.drawn:
        (scale,) = set(np.abs(message.sent))
        assert scale == pytest.approx(np.abs(message.corrected).mean())
        assert np.array_equal(message.sent < 0, message.corrected < 0)


def test_what_is_never_sent_does_not_move(runs, warm):
    """Against the weights themselves: the bias begins at 0."""
    config = config_of(RANKS, SIZE, SEED)
    for recorded, rank_function in ((runs.sparse, run.train_recording), (runs.broken, train_forgetting)):
        layout = Layout(dp=RANKS, sync="bucketed", compress=SPARSE)
        with warm(RANKS) as cluster:
            found = train(cluster, config, layout, RunOptions(stop_after=STEPS - 1), rank_function=rank_function)
        weights = found.ranks[0].arrays[DRAWN]
        assert found.fingerprint == recorded.run.fingerprint
        assert np.count_nonzero(weights) == recorded.moved()
    assert runs.broken.moved() < SIZE


def test_the_bug_is_training_without_error_feedback(runs, warm):
    layout = Layout(dp=RANKS, sync="bucketed", compress=SPARSE, error_feedback=0)
    without = warm.train(config_of(RANKS, SIZE, SEED), layout, digests=False)
    assert without.fingerprint == runs.broken.run.fingerprint != runs.sparse.run.fingerprint


def test_books_that_do_not_add_up_are_an_error(runs):
    total = sum(message.sent.size for message, _ in messages(runs.sparse))
    assert runs.sparse.balances() == (total, total)
    wrong = replace(runs.sparse.drawn[3], after=runs.sparse.drawn[3].after + 1e-12)
    rank = [*runs.sparse.drawn[:3], wrong, *runs.sparse.drawn[4:]]
    others = runs.sparse.messages[DRAWN][1:]
    with pytest.raises(RuntimeError, match=rf"of {total} numbers do not add up: this is a bug in minidist"):
        verdict.books(replace(runs.sparse, messages=runs.sparse.messages | {DRAWN: [rank, *others]}))


def test_a_method_that_is_not_asked_for_every_parameter_is_an_error(runs):
    ranks = [replace(rank, log=rank.log[:-1]) for rank in runs.sparse.run.ranks]
    with pytest.raises(RuntimeError, match="was not asked for each parameter in each step"):
        run.Recorded.of(SPARSE, replace(runs.sparse.run, ranks=ranks))


def test_the_number_that_is_followed_waits_and_is_lost_without_feedback(runs):
    number = scene.followed(runs.sparse, runs.broken)
    assert not any(message.sent[number] for message in runs.broken.drawn)
    step = lecture.first_sent(runs.sparse, number)
    assert step > 1
    gradients = sum(message.gradient[number] for message in runs.sparse.drawn[:step])
    assert runs.sparse.drawn[step - 1].sent[number] == pytest.approx(gradients, rel=1e-12)
    with pytest.raises(RuntimeError, match="choose another size or seed"):
        scene.followed(runs.sparse, runs.sparse)


def test_every_scene_has_a_twin_and_fits(animation):
    assert tuple(one.name for one in animation.scenes) == SCENES == animation.breakable()
    assert tuple(one.twin for one in animation.all_broken) == SCENES
    for one in animation.all_scenes:
        check_inside(one)
        assert one.questions and one.cues and one.verdict and one.details
        assert len(one.verdict) <= 110 and len(one.title) <= 110
    for right, broken in zip(animation.scenes, animation.all_broken, strict=True):
        assert [frame.at for frame in right.frames] == [frame.at for frame in broken.frames]
        assert right.first_wrong is None and broken.first_wrong > 0
        assert not any(is_wrong(frame) for frame in right.frames)
        wrong = [number for number, frame in enumerate(broken.frames) if is_wrong(frame)]
        assert wrong[0] == broken.first_wrong
    assert "#49418" in animation.bug_of(animation.broken) and "#50283" in animation.bug_of(animation.all_broken[3])
    assert len(animation.html()) < 400_000


def is_wrong(frame) -> bool:
    return any(getattr(shape, "fill", getattr(shape, "colour", "")) == "wrong" for shape in frame.shapes)


@pytest.mark.parametrize("size", [8, 24])
def test_the_smallest_and_the_largest_gradient_fit(size, monkeypatch):
    monkeypatch.setattr(curves, "curves_of", made_up_curves)
    for one in DEMONSTRATIONS["compress"](ranks=2, size=size, seed=0).all_scenes:
        check_inside(one)


def height(frame, number: int, row: int) -> float:
    """The sum of the bars of a number in a row, downwards ones negative."""
    pitch = (2 * picture.WIDE // SIZE) / 2
    left, base = picture.LEFT + pitch * number, picture.BASES[row]
    bars = [box for box in boxes(frame) if box.id and left <= box.x < left + pitch - 0.5]
    bars = [box for box in bars if base - picture.HALF - 1e-9 <= box.y and box.y + box.h <= base + picture.HALF + 1e-9]
    return sum(box.h if box.y < base - 1e-9 else -box.h for box in bars)


def test_in_every_column_what_comes_in_is_as_high_as_what_becomes_of_it(animation, runs):
    for shown in (animation.scenes[0], animation.scenes[2], animation.broken):
        for frame in shown.frames[1::2]:
            for number in range(SIZE):
                rows = [height(frame, number, row) for row in range(3)]
                assert rows[0] == pytest.approx(rows[1] + rows[2], abs=1e-9)
    frame, message = animation.scenes[0].frames[5], runs.sparse.drawn[2]
    unit = max(abs(height(frame, number, 1)) for number in range(SIZE)) / np.abs(message.sent).max()
    heights = [height(frame, number, 2) for number in range(SIZE)]
    np.testing.assert_allclose(heights, unit * message.after, atol=1e-9)


def test_what_stays_below_is_above_in_the_next_step(animation):
    """Bars with one name move: the player lets them fly."""
    for shown in (animation.scenes[0], animation.scenes[2]):
        for before, after in zip(shown.frames[1:-1:2], shown.frames[2::2], strict=True):
            left, met = ({box.id: box.h for box in boxes(frame) if box.id.startswith("residual")}
                         for frame in (before, after))  # fmt: skip
            below = {name: h for name, h in left.items() if name in met}
            assert len(below) >= SIZE - COUNT and all(h == pytest.approx(met[name]) for name, h in below.items())


def test_the_panel_has_the_message_and_its_bytes(animation, runs):
    frame, message = animation.scenes[0].frames[1], runs.sparse.drawn[0]
    for index in np.flatnonzero(message.sent):
        assert f"{index}" in labels(frame) and f"{message.sent[index]:+.4f}" in labels(frame)
    assert "24 bytes" in labels(frame) and "full: 96" in labels(frame)
    frame, message = animation.scenes[2].frames[1], runs.signs.drawn[0]
    signs = "".join("−" if value < 0 else "+" for value in message.corrected)
    assert signs[:8] in labels(frame) and signs[8:] in labels(frame) and "10 bytes" in labels(frame)


@pytest.mark.parametrize(("name", "each"), [("sparse", 24), ("signs", 10)])
def test_bytes_are_those_that_the_ranks_counted(runs, name, each):
    recorded = getattr(runs, name)
    method = read_method(recorded.method)
    assert method.message_bytes(SIZE, 8) == each
    sizes = [parameter.size for parameter in GPT(recorded.run.config.model).parameters()]
    for rank in recorded.run.ranks:
        (gathered,) = [row for row in rank.collectives if row["name"] == "all_gather_into_tensor"]
        assert gathered["bytes_sent"] == (RANKS - 1) * sum(method.message_bytes(size, 8) for size in sizes)


def test_the_ledger_adds_up_in_every_step(animation, runs):
    number = scene.followed(runs.sparse, runs.broken)
    for shown, recorded, keeps in (
        (animation.scenes[1], runs.sparse, True),
        (animation.also_broken[0], runs.broken, False),
    ):
        assert f"number {number}" in shown.title and len(shown.frames) == STEPS + 1
        came = sent = Fraction(0)
        for message, frame in zip(recorded.drawn, shown.frames[1:], strict=True):
            came, sent = came + Fraction(message.gradient[number]), sent + Fraction(message.sent[number])
            held = Fraction(message.after[number]) if keeps else 0
            assert frame.facts["gradients so far"] == f"{float(came):+.6f}"
            assert frame.facts["missing"] == ("0, exactly" if keeps else f"{float(came - sent):+.6f}")
            assert came - sent == held or not keeps
            bits = [text for text in labels(frame) if len(text) == 16 and " " not in text]
            assert bits == 2 * [ledger.bits(message.gradient[number] + message.before[number])]
            assert "the same bits" in labels(frame)
    assert ledger.bits(-2.0) == "C000000000000000"


def test_the_ledger_tells_a_sum_that_is_not_the_same(runs):
    message = replace(runs.sparse.drawn[1], after=runs.sparse.drawn[1].after + 2.0**-40)
    account = ledger.Account(message, 0)
    texts = [shape.text for shape in ledger._equation(account, False) if isinstance(shape, Label)]
    assert "other bits" in texts


def test_rounds_are_the_power_method_on_the_sum(low):
    matrix = sum(low.matrices)
    assert low.right.matrix.shape == (SIZE, SIZE) and len(low.right.rounds) == factors.ROUNDS
    values = np.linalg.svd(matrix, compute_uv=False)
    assert low.right.best == pytest.approx(np.sqrt((values[factors.RANK :] ** 2).sum() / (values**2).sum()))
    start = None
    for one, error in zip(low.right.rounds, low.right.errors, strict=True):
        np.testing.assert_allclose(one.products, matrix @ one.start, atol=1e-12)
        np.testing.assert_allclose(one.p.T @ one.p, np.eye(factors.RANK), atol=1e-12)
        np.testing.assert_allclose(one.q, matrix.T @ one.p, atol=1e-12)
        assert start is None or start.tobytes() == one.start.tobytes()
        assert error == pytest.approx(np.linalg.norm(matrix - one.product) / np.linalg.norm(matrix))
        assert error > low.right.best - 1e-12
        start = one.q
    assert (np.diff(low.right.errors) < 1e-12).all()  # each round is no worse than the one before


def test_refilled_rounds_begin_at_random(low):
    assert low.broken.errors[0] == low.right.errors[0] and low.broken.later > low.right.later
    starts = {one.start.tobytes() for one in low.broken.rounds}
    assert len(starts) == factors.ROUNDS and not starts & {one.q.tobytes() for one in low.broken.rounds}
    with pytest.raises(RuntimeError, match="choose another size or seed"):
        factors.check_harm(low.right, low.right)


def test_the_heights_of_the_errors(animation, low):
    for shown, approximation in ((animation.scenes[3], low.right), (animation.all_broken[3], low.broken)):
        bars = [box for box in boxes(shown.frames[-1]) if box.id.startswith("error")]
        np.testing.assert_allclose([bar.h / 8 for bar in bars], approximation.errors, atol=1e-12)
        red = [bar.fill == "wrong" for bar in bars]
        worse = [error > other for error, other in zip(approximation.errors, low.right.errors, strict=True)]
        assert red == worse
    assert f"{low.right.errors[-1]:.1%}" in told(animation.scenes[3])


def test_losses_of_short_runs(warm, monkeypatch):
    monkeypatch.setattr(curves, "STEPS", 10)
    monkeypatch.setattr(curves, "SEEDS", 2)
    found = curves.curves_of(warm, 5)
    assert found.full.shape == (2, 10) and list(found.compressed) == list(found.forgetful) == list(curves.METHODS)
    for name, losses in found.compressed.items():
        assert (losses[:, 0] == found.full[:, 0]).all() and (found.forgetful[name][:, 0] == found.full[:, 0]).all()
        assert (losses[:, 9] != found.full[:, 9]).all() and (losses[:, 9] != found.forgetful[name][:, 9]).all()
    shapes = [parameter.shape for parameter in GPT(curves.config_of(0).model).parameters()]
    full = 8 * sum(map(prod, shapes)) * 2 * (curves.RANKS - 1) / curves.RANKS
    for name, method in curves.METHODS.items():
        formula = read_method(method).bytes_sent(shapes, curves.RANKS, 8)
        assert found.shares[name] == pytest.approx((formula + 8) / (full + 8))  # and the loss


def test_a_point_is_a_mean_and_runs_that_end_higher_are_counted(animation):
    shown = made_up_curves()
    assert curves.windows(np.arange(20.0)).tolist() == [4.5, 14.5]
    np.testing.assert_allclose(curves_scene.above(shown.compressed["1 bit"], shown.full), 0.1)
    assert curves_scene.worse(shown) == 8  # of 9
    assert "in 8 of 9 runs" in animation.all_broken[4].verdict
    assert "0.10 to 0.10 above" in animation.scenes[4].verdict


def test_answers_are_those_of_the_run(animation, runs):
    number = scene.followed(runs.sparse, runs.broken)
    step = lecture.first_sent(runs.sparse, number)
    _, when = animation.scenes[0].questions
    assert when.choices[when.answer] == f"in step {step}"
    assert f"number {number} is among the {COUNT} largest at last" in animation.scenes[0].frames[when.frame].note
    (still,) = animation.broken.questions
    assert still.choices[still.answer] == str(SIZE - runs.broken.moved())
    (how_many,) = animation.all_broken[4].questions
    assert how_many.choices[how_many.answer] == "some"


def test_sizes():
    with pytest.raises(ValueError, match="size, the numbers that are drawn, must be from 8 to 24, got 7"):
        DEMONSTRATIONS["compress"](size=7)
    with pytest.raises(ValueError, match="size, the numbers that are drawn, must be from 1 to 24, got 25"):
        DEMONSTRATIONS["compress"](size=25)
