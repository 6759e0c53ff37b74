"""What a run measures: the peak and its utilization; the gradient noise scale, unbiased where the truth is known."""

import itertools
import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from minidist.analysis.breakdown import KINDS as KINDS_OF_TIME
from minidist.cli.main import main
from minidist.cli.output import terminal_console
from minidist.cli.train.tables import RunUtilization, _memory_table
from minidist.ledger import KINDS
from minidist.nn.data import load_corpus
from minidist.nn.gpt import GPT
from minidist.train.checkpoint.commit import name_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring import evaluate
from minidist.train.measuring.evaluate import SIZES, measured_peak, share_of_cores
from minidist.train.measuring.noise_scale import NoiseScale, measure
from minidist.train.result import RankResult, RunOptions
from minidist.train.share import batch_of
from minidist.train.trainer import run

FLAGS = "--layers=1 --width=16 --heads=2 --context=8 --global-batch=8".split()  # noqa: SIM905


def test_the_fastest_size_counts(monkeypatch):
    """One round of 256, 512, 1024, which take 1, 2 and 1,000 seconds."""
    monkeypatch.setattr(evaluate, "barrier", lambda world: None)
    monkeypatch.setattr(evaluate, "cores", lambda: 2)
    looks = iter([0.0, 1.0, 1.0, 3.0, 3.0, 1003.0])  # before and after each product
    clock = SimpleNamespace(seconds=lambda: next(looks))
    world = SimpleNamespace(size=8, transport=SimpleNamespace(clock=clock))
    assert measured_peak(world, seconds=0.0) == SIZES[1] ** 3 * 2 / 2.0 * 2 / 8
    assert list(looks) == []
    monkeypatch.setattr(evaluate.time, "thread_time", itertools.count().__next__)  # each product computes for a second
    torn = SimpleNamespace(seconds=lambda: 0.0)  # each look has lost the core before it read the time
    world = SimpleNamespace(size=1, transport=SimpleNamespace(clock=torn))
    assert measured_peak(world, seconds=0.0) == SIZES[2] ** 3 * 2
    for ranks, cores, share in ((1, 2, 1), (2, 2, 1), (8, 2, 0.25), (3, 2, 2 / 3)):
        assert share_of_cores(ranks, cores) == share


def test_each_rank_brings_its_peak_back(ranks):
    config = TrainConfig(layers=1, heads=2, width=16, context=8, global_batch=4, steps=1)
    asked = run(ranks(2), config, Layout(dp=2), RunOptions(measure_peak=True))
    plain = run(ranks(2), config, Layout(dp=2))
    assert all(rank.peak_flops > 0 for rank in asked.ranks) and [rank.peak_flops for rank in plain.ranks] == [0, 0]
    assert asked.fingerprint == plain.fingerprint
    assert (asked.ranks[0].traffic.sent == plain.ranks[0].traffic.sent).all()  # its barrier is not the run's


@pytest.mark.long
def test_train_shows_and_writes_utilization(capsys, tmp_path):
    """A run that goes on counts its own steps."""

    def train(*flags) -> dict:
        assert main(["train", *flags, "--tables", f"--json={results}"]) == 0
        shown = capsys.readouterr().out
        assert "model FLOP/s, and their share of the measured peak" in shown
        assert "where the time of the last steps went" in shown
        return json.loads(results.read_text())["utilization"]

    folder, results = tmp_path / "saved", tmp_path / "results.json"
    for flags in (
        "--steps=3 --dp=2 --recompute=full", "--steps=2 --pp=2 --layers=3",
        "--steps=2 --dp=2 --ep=2 --experts=4 --expert-hidden=16",
        "--steps=2 --precision=fp16 --loss-scale=1099511627776", f"--steps=3 --save={folder} --save-every=1 --keep=0",
    ):  # fmt: skip
        used = train(*FLAGS, *flags.split())
        assert 0 < used["mfu"] <= used["hfu"] and used["peak_flops_per_second"] > 0
        assert used["model_flops"] == sum(rank["model_flops"] for rank in used["ranks"])
        assert (used["hfu"] > used["mfu"]) == ("--recompute=full" in flags)
        assert all(sum(rank["time"].values()) == pytest.approx(1) for rank in used["ranks"])
    assert train(f"--resume={folder / name_of(2)}")["model_flops"] * 3 == used["model_flops"]


def test_no_figure_is_cut_in_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    memory = dict.fromkeys([*KINDS, "peak", "experts"], 234_567_890)
    rank = RankResult([], "", 1.0, None, memory=memory)
    terminal_console().print(_memory_table(SimpleNamespace(config=SimpleNamespace(experts=2), ranks=[rank])))
    time = dict.fromkeys(KINDS_OF_TIME, 1 / len(KINDS_OF_TIME))
    terminal_console().print(RunUtilization(None, [], [time]).time_table())
    shown = capsys.readouterr().out
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    assert all(word in shown for word in ("ducts", "mizer", "for ranks", "12.5"))


# The gradient noise scale

NOISY = TrainConfig(layers=1, heads=2, width=8, context=8, global_batch=12, micro_batch=3, steps=4, warmup=1)


def test_both_terms_are_without_bias():
    """Samples' gradients with mean G and a diagonal covariance: 4,000 steps of 6 micro-batches of 5 samples."""
    random = np.random.default_rng(0)
    mean, deviations = np.array([0.3, -0.2, 0.1]), np.array([1.0, 2.0, 0.5])
    found = []
    for _ in range(4000):
        parts = (mean + deviations * random.standard_normal((6, 5, 3))).mean(1)
        small = (parts**2).sum(1).mean()
        found.append(NoiseScale(5, 30, small, (parts.mean(0) ** 2).sum()))
    total = sum(found[1:], found[0])
    assert total.steps == 4000
    # the standard error of the mean of 4,000 estimates, three times
    for name, exact in (("gradient_square", (mean**2).sum()), ("noise", (deviations**2).sum())):
        error = np.std([getattr(one, name) for one in found]) / np.sqrt(4000)
        assert abs(getattr(total, name) - exact) < 3 * error, name
    assert total.samples == pytest.approx((deviations**2).sum() / (mean**2).sum(), rel=0.1)
    drowned = NoiseScale(1, 2, small_square=4.0, large_square=2.0)  # in noise
    assert drowned.samples == float("inf")
    assert json.dumps(drowned.as_dict(), allow_nan=False) == '{"gradient_square": 0.0, "noise": 4.0, "samples": null}'


def test_it_changes_nothing_of_the_run_and_a_replay_does_not_see_it(ranks):
    """Replays compare the gradients of the steps, and measure nothing: those measured in between are not a step's."""
    plain = run(ranks(1), NOISY, Layout())
    measured = run(ranks(1), NOISY, Layout(), RunOptions(noise_scale=2, check_replicas=2, check_by="replay"))
    assert measured.fingerprint == plain.fingerprint and not plain.ranks[0].noise
    assert [step for step, _ in measured.ranks[0].noise] == [0, 2]
    assert measured.as_dict()["noise_scale"][1].keys() == {"step", "gradient_square", "noise", "samples"}
    ramp = TrainConfig(**vars(NOISY) | {"rampup_batch_size": "3,9,6"})  # it takes the full batch
    found = run(ranks(1), ramp, Layout(), RunOptions(noise_scale=1)).ranks[0].noise
    assert ramp.batch_at(0) == 3 and {(noise.small, noise.large) for _, noise in found} == {(3, 12)}


def test_it_measures_the_gradients_of_the_micro_batches_and_of_the_step():
    corpus, model = load_corpus(None, NOISY.context), GPT(NOISY.model, dtype=np.float64)
    batch = partial(batch_of, corpus, NOISY, 0)

    def zero() -> None:
        for parameter in model.parameters():
            parameter.grad = None

    found = measure(model, zero, [batch(number) for number in range(4)], 3)

    def gradient(tokens, targets) -> np.ndarray:
        zero()
        model(tokens, targets).backward()
        return np.concatenate([np.ravel(parameter.grad) for parameter in model.parameters()])

    parts = [batch(index)[:2] for index in range(4)]
    small = np.mean([(gradient(*part) ** 2).sum() for part in parts])
    large = (gradient(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))) ** 2).sum()  # one batch of 12
    # float64 throughout; the batch of 12 adds in another order
    assert (found.small, found.large) == (3, 12)
    assert found.small_square == pytest.approx(small, rel=1e-10)
    assert found.large_square == pytest.approx(large, rel=1e-10)
