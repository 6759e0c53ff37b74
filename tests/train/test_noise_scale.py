"""The gradient noise scale: unbiased where mean and covariance are known, and the gradients of real steps."""

import json
from functools import partial

import numpy as np
import pytest

from minidist.nn.data import load_corpus
from minidist.nn.gpt import GPT
from minidist.train.batches import batch_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring.noise_scale import NoiseScale, measure
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=1, heads=2, width=8, context=8, global_batch=12, micro_batch=3, steps=4, warmup=1)


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


def test_where_noise_drowns_the_gradient_it_is_infinite():
    drowned = NoiseScale(1, 2, small_square=4.0, large_square=2.0)
    assert drowned.samples == float("inf")
    assert json.dumps(drowned.as_dict(), allow_nan=False) == '{"gradient_square": 0.0, "noise": 4.0, "samples": null}'


def test_it_changes_nothing_of_the_run_and_a_replay_does_not_see_it(ranks):
    """Replays compare the gradients of the steps, and measure nothing: those measured in between are not a step's."""
    plain = run(ranks(1), CONFIG, Layout())
    measured = run(ranks(1), CONFIG, Layout(), RunOptions(noise_scale=2, check_replicas=2, check_by="replay"))
    assert measured.fingerprint == plain.fingerprint and not plain.ranks[0].noise
    assert [step for step, _ in measured.ranks[0].noise] == [0, 2]
    assert measured.as_dict()["noise_scale"][1].keys() == {"step", "gradient_square", "noise", "samples"}


def test_it_takes_the_full_batch_on_a_ramp(ranks):
    config = TrainConfig(**vars(CONFIG) | {"rampup_batch_size": "3,9,6"})
    found = run(ranks(1), config, Layout(), RunOptions(noise_scale=1)).ranks[0].noise
    assert config.batch_at(0) == 3 and {(noise.small, noise.large) for _, noise in found} == {(3, 12)}


def test_it_measures_the_gradients_of_the_micro_batches_and_of_the_step():
    corpus, model = load_corpus(None, CONFIG.context), GPT(CONFIG.model, dtype=np.float64)
    batch = partial(batch_of, corpus, CONFIG, 0)

    def zero() -> None:
        for parameter in model.parameters():
            parameter.grad = None

    found = measure(model, zero, batch, range(4), 3)

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
