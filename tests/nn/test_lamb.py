"""LAMB against a textbook in float64, and its norms against every way to cut a matrix."""

import numpy as np
import pytest

from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.layers import Parameter
from minidist.nn.optim.clip import NotFinite
from minidist.nn.optim.lamb import LAMB, norms, trust_ratios
from minidist.nn.optim.optimizers import AdamW

BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1


def made(name: str, values, decay: bool = True) -> Parameter:
    parameter = Parameter(np.shape(values), decay=decay)
    parameter.name = name
    parameter.data[...] = values
    return parameter


def textbook(weight, gradients, lr: float, decay: float, adapt: bool):
    """Algorithm 2 of the paper, in float64, phi the identity."""
    w, m, v = weight.astype(np.float64), 0.0, 0.0
    for step, g in enumerate(gradients, 1):
        m = BETAS[0] * m + (1 - BETAS[0]) * g
        v = BETAS[1] * v + (1 - BETAS[1]) * g**2
        r = (m / (1 - BETAS[0] ** step)) / (np.sqrt(v / (1 - BETAS[1] ** step)) + EPS)
        update = r + decay * w
        ratio = np.linalg.norm(w) / np.linalg.norm(update) if adapt else 1.0
        w = w - lr * ratio * update
    return w


def test_it_is_algorithm_2():
    random = np.random.default_rng(0)
    start = {"matrix": 0.02 * random.standard_normal((7, 5)), "bias": random.standard_normal(11)}
    parameters = [made(name, values, decay=name == "matrix") for name, values in start.items()]
    gradients = [{name: random.standard_normal(np.shape(values)) for name, values in start.items()} for _ in range(6)]
    sizes = {parameter.name: parameter.size for parameter in parameters}
    optimizer = LAMB(parameters, 0.03, sizes, betas=BETAS, eps=EPS, weight_decay=DECAY)
    for step in gradients:
        for parameter in parameters:
            parameter.grad = step[parameter.name].astype(np.float32)
        optimizer.step()
    for parameter in parameters:
        adapt = parameter.name == "matrix"
        exact = textbook(start[parameter.name], [g[parameter.name] for g in gradients], 0.03, DECAY * adapt, adapt)
        # float32 weights and means over six steps: a few times 2^-24 of the largest weight
        np.testing.assert_allclose(parameter.data, exact, atol=8 * 2**-24 * np.abs(exact).max())


def test_a_step_is_the_learning_rate_long_beside_the_matrix():
    """What the ratio is for: |change of w| / |w| = lr, whatever the size of weights and gradients."""
    random = np.random.default_rng(1)
    for scale in (1e-4, 1.0, 300.0):
        weight = made("w", scale * random.standard_normal((9, 4)))
        before = weight.data.astype(np.float64)
        weight.grad = (random.standard_normal((9, 4)) / scale).astype(np.float32)
        LAMB([weight], 0.01, {"w": weight.size}).step()
        change = np.linalg.norm(weight.data - before) / np.linalg.norm(before)
        assert change == pytest.approx(0.01, rel=1e-4)  # float32 weights that change in their 14 last bits


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 60])
def test_norms_do_not_depend_on_the_shards(parts):
    random = np.random.default_rng(2)
    arrays = {
        name: (random.standard_normal(size) * 10 ** random.uniform(-6, 0, size)).astype(np.float32)
        for name, size in (("a", 50_021), ("b", 3), ("c", 1))
    }
    sizes = {name: array.size for name, array in arrays.items()} | {"elsewhere": 5}
    shards = [{name: np.array_split(array, parts)[part] for name, array in arrays.items()} for part in range(parts)]
    whole = norms(arrays, sizes)

    def joined(mine: dict) -> dict[str, float]:
        """The norms that one of several processes finds: what the others hold comes by the two joins."""
        return norms(mine, sizes, lambda _: _largest(shards, sizes), lambda _: _totals(shards, sizes))

    assert joined(shards[0]) == whole and whole["elsewhere"] == 0
    for name, array in arrays.items():
        assert whole[name] == pytest.approx(np.linalg.norm(array.astype(np.float64)), rel=1e-9)


def _largest(shards: list[dict], sizes: dict) -> np.ndarray:
    found = []
    for mine in shards:
        norms(mine, sizes, lambda vector: found.append(vector) or np.maximum(vector, 1.0))
    return np.max(found, axis=0)


def _totals(shards: list[dict], sizes: dict) -> np.ndarray:
    largest, found = _largest(shards, sizes), []
    for mine in shards:
        norms(mine, sizes, lambda _: largest, lambda vector: found.append(vector) or vector)
    return np.sum(found, axis=0)


def test_a_matrix_or_an_update_of_zeros_has_ratio_one():
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    sizes = {"a": 4, "b": 4, "c": 4}
    weights, updates = {"a": zeros, "b": ones, "c": ones}, {"a": ones, "b": zeros, "c": 2 * ones}
    assert trust_ratios(weights, updates, sizes) == {"a": 1.0, "b": 1.0, "c": 0.5}


def test_what_is_not_finite_is_named():
    with pytest.raises(NotFinite, match="LAMB: b, or its update, is not finite"):
        norms({"a": np.ones(2, np.float32), "b": np.array([1, np.inf], np.float32)}, {"a": 2, "b": 2})


def test_its_states_have_adamw_s_names():
    model = GPT(GPTConfig(layers=1, heads=2, width=8, context=4, vocab=16))
    sizes = {parameter.name: parameter.size for parameter in model.parameters()}
    assert LAMB(model.parameters(), 0.1, sizes).state().keys() == AdamW(model.parameters(), 0.1).state().keys()
