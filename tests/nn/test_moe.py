"""A mixture of experts in one process: choices, ties, drops, counts, and the gradients of its losses."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.memory.recompute import MODES, recompute_blocks
from minidist.nn.moe.balance import Balance, add_balance_loss, add_z_loss, balance_loss_gradient, moved_bias
from minidist.nn.moe.config import MoEConfig
from minidist.nn.moe.experts import Experts, GroupedLinear
from minidist.nn.moe.permutation import Route, combine, dispatch, sort_by_expert
from minidist.nn.moe.router import GateWeights, Router, Scores, top_k_experts, within_nodes
from minidist.nn.precision.policy import POLICIES, autocast
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor, no_grad

MIXTURE = MoEConfig(8, 2, expert_hidden=16, aux_loss=0.01, bias_rate=0.0)
TINY = GPTConfig(vocab=64, context=8, layers=3, heads=2, width=8, moe=MIXTURE)


def numbers(*shape: int, seed: int = 0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def batch(config: GPTConfig, samples: int = 3):
    return np.random.default_rng(1).integers(0, config.vocab, (2, samples, config.context)).astype(np.uint8)


# Choices


def test_the_highest_come_first_and_ties_go_to_the_lower_index():
    scores = np.float32([[0.1, 0.4, 0.4, 0.1], [0.25, 0.25, 0.25, 0.25], [0.0, 0.1, 0.2, 0.7]])
    assert top_k_experts(scores, 3).tolist() == [[1, 2, 0], [0, 1, 2], [3, 2, 1]]
    assert top_k_experts(np.zeros((5, 64), np.float32), 7).tolist() == [list(range(7))] * 5


def test_a_token_visits_as_many_nodes_as_it_may():
    scores = numbers(200, 12)
    limited = within_nodes(scores, 4, 2, 3)
    allowed = np.isfinite(limited).reshape(200, 4, 3)
    assert (allowed.all(axis=2) == allowed.any(axis=2)).all() and (allowed.any(axis=2).sum(axis=1) == 2).all()
    worth = np.sort(scores.reshape(200, 4, 3), axis=2)[:, :, -2:].sum(axis=2)  # the 2 = ceil(3 / 2) best of each
    assert (np.sort(np.argsort(-worth, axis=1)[:, :2]) == np.argwhere(allowed.any(axis=2))[:, 1].reshape(200, 2)).all()
    assert (limited[np.isfinite(limited)] == scores[np.isfinite(limited)]).all()
    assert within_nodes(scores[:0], 4, 2, 3).shape == (0, 12)


def test_a_bias_changes_the_choice_and_not_the_weights():
    balance = Balance(replace(MIXTURE, bias_rate=1.0), 1)
    router = Router(MIXTURE, 8, 1.0, 0, balance)
    router.init_parameters(0)
    x = Tensor(numbers(40, 8))
    _, before = router(x)
    balance.bias[0, 3] = 10
    weights, chosen = router(x)
    assert (chosen[:, 0] == 3).all() and not (before[:, 0] == 3).all()
    scores = np.exp(x.data @ router.weight.data)
    expected = np.take_along_axis(scores, chosen, 1)
    assert np.allclose(weights.data, expected / expected.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_a_single_choice_keeps_its_score_so_that_the_router_learns(gate):
    logits = Tensor(numbers(20, 4), requires_grad=True)
    for normalize in (False, True):
        logits.grad = None
        scores = Scores.apply(logits, gate)
        weights = GateWeights.apply(scores, top_k_experts(scores.data, 1), normalize)
        weights.backward(numbers(20, 1, seed=1))
        if normalize:
            assert np.abs(logits.grad).max() < 1e-7  # a weight of 1, whatever the logits are
        else:
            assert np.array_equal(weights.data[:, 0], scores.data.max(axis=1)) and np.abs(logits.grad).max() > 1e-3


# Permutation


@pytest.mark.parametrize("capacity", [None, 1, 3, 1000])
@pytest.mark.parametrize(("tokens", "k", "experts"), [(0, 2, 4), (1, 1, 1), (7, 3, 5), (50, 2, 64)])
def test_rows_are_sorted_by_expert_and_then_by_token(tokens, k, experts, capacity):
    chosen = top_k_experts(numbers(tokens, experts), k)
    order, counts = sort_by_expert(chosen, experts, capacity)
    expected = [
        [token * k + j for token in range(tokens) for j in range(k) if chosen[token, j] == expert][:capacity]
        for expert in range(experts)
    ]
    assert order.tolist() == [choice for some in expected for choice in some]
    assert counts.tolist() == [len(some) for some in expected]
    route = Route(chosen, experts, capacity)
    kept = route.rows >= 0
    assert kept.sum() == len(order) and (route.order[route.rows[kept]] == np.flatnonzero(kept)).all()
    assert route.counts == counts.tolist() and all(type(count) is int for count in route.counts)


@pytest.mark.parametrize("capacity", [None, 2])
def test_what_goes_out_and_comes_back(capacity):
    """Against the definition, token by token, in float64."""
    x, weights = Tensor(numbers(9, 5), requires_grad=True), Tensor(numbers(9, 2, seed=1), requires_grad=True)
    x.grad_dtype = weights.grad_dtype = np.float64
    chosen = top_k_experts(numbers(9, 4, seed=2), 2)
    route, gain = Route(chosen, 4, capacity), numbers(4, seed=3).astype(np.float64)
    expert_of_row = np.repeat(np.arange(4), route.counts)
    rows = dispatch(x, route) * gain[expert_of_row][:, None].astype(np.float32)
    y = combine(rows, weights, route)
    kept = route.rows >= 0
    assert kept.all() == (capacity is None)
    factors = (weights.data * gain[chosen] * kept).sum(axis=1, keepdims=True)
    assert np.allclose(y.data, factors * x.data, atol=1e-5)
    gradient = numbers(9, 5, seed=4)
    y.backward(gradient)
    assert np.allclose(x.grad, factors * gradient, atol=1e-5)
    assert np.allclose(weights.grad, (gradient * x.data).sum(axis=1, keepdims=True) * gain[chosen] * kept, atol=1e-5)


# Experts


@pytest.mark.parametrize("precision", POLICIES)
@pytest.mark.parametrize("counts", [[3, 0, 2, 4], [0, 0, 0, 9], [0, 0, 0, 0], [1, 1, 1, 1]])
def test_each_expert_computes_its_own_rows_by_itself(precision, counts):
    """An expert's rows have the bits that they have in an MLP of that expert alone."""
    with autocast(precision):
        experts = Experts(2, 4, 8, 12, 1.0, 1.0)
        experts.init_parameters(0)
        x = Tensor(numbers(sum(counts), 8), requires_grad=True)
        y = experts(x, [counts])
        y.backward(numbers(*y.shape, seed=1))
        ends = np.cumsum([0, *counts])
        for expert, (first, last) in enumerate(pairwise(ends)):
            alone = Experts(2, 1, 8, 12, 1.0, 1.0)
            for one, all_of_them in ((alone.fc, experts.fc), (alone.proj, experts.proj)):
                one.data = all_of_them.data[:, [expert]].copy()
            part = Tensor(x.data[first:last], requires_grad=True)
            own = alone(part, [[last - first]])
            own.backward(numbers(*y.shape, seed=1)[first:last])
            assert np.array_equal(own.data, y.data[first:last]) and np.array_equal(part.grad, x.grad[first:last])
            assert np.array_equal(alone.fc.grad, experts.fc.grad[:, [expert]])
            assert np.array_equal(alone.proj.grad, experts.proj.grad[:, [expert]])


def test_grains_leave_terms_of_their_own():
    """Rows of two micro-batches have the bits, and leave the gradients, of two passes."""
    experts = Experts(2, 3, 8, 12, 1.0, 1.0)
    experts.init_parameters(0)
    counts = [[2, 0, 5], [1, 4, 0]]
    x = Tensor(numbers(12, 8), requires_grad=True)
    y = experts(x, counts)
    y.backward(numbers(12, 8, seed=1))
    together = [parameter.grad for parameter in experts.parameters()]
    for parameter in experts.parameters():
        parameter.grad = None
    for place, some in zip((slice(0, 7), slice(7, 12)), counts, strict=True):
        part = Tensor(x.data[place], requires_grad=True)
        own = experts(part, [some])
        own.backward(numbers(12, 8, seed=1)[place])
        assert np.array_equal(own.data, y.data[place]) and np.array_equal(part.grad, x.grad[place])
    assert all(np.array_equal(one, p.grad) for one, p in zip(together, experts.parameters(), strict=True))


def test_a_product_of_the_first_rows_has_other_bits_than_the_first_rows_of_a_product():
    """Why an expert's product is taken for each micro-batch by itself."""
    x, weight = numbers(64, 64), numbers(64, 128, seed=1)
    whole = x @ weight
    assert sum(not np.array_equal(x[:rows] @ weight, whole[:rows]) for rows in range(1, 64)) > 0


def test_flops_are_those_of_the_rows():
    x = Tensor(numbers(2, 6, 4), requires_grad=True)
    weight = Tensor(numbers(2, 3, 4, 5), requires_grad=True)
    assert GroupedLinear.flops(GroupedLinear.apply(x, weight, [1, 0, 5], False).data, x.data) == 2 * 2 * 6 * 4 * 5


# Balance


def losses_of(logits, gate: str, config: MoEConfig, counts) -> float:
    """The balance loss and the z-loss, from their definitions, in float64."""
    scores = 1 / (1 + np.exp(-logits)) if gate == "sigmoid" else np.exp(logits)
    mean = (scores / scores.sum(axis=1, keepdims=True)).mean(axis=0)
    shares = counts / counts.sum()
    z = np.log(np.exp(logits).sum(axis=1))
    return config.aux_loss * config.experts * (shares * mean).sum() + config.z_loss * (z * z).mean()


@pytest.mark.parametrize("scope", ["micro_batch", "global_batch"])
@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_the_gradients_of_both_losses(gate, scope):
    config = MoEConfig(5, 2, gate=gate, aux_loss=0.3, aux_scope=scope, z_loss=0.2)
    balance = Balance(config, 2)
    balance.loss_scale = 4.0
    balance.last[1, :5] = [5, 0, 1, 2, 2]
    data = numbers(7, 5, dtype=np.float64)
    logits = Tensor(data, requires_grad=True)
    scores = Scores.apply(add_z_loss(logits, balance), gate)
    chosen = top_k_experts(scores.data, 2)
    add_balance_loss(scores, chosen, 1, balance).backward(np.zeros((7, 5)))
    counts = np.bincount(chosen.ravel(), minlength=5) if scope == "micro_batch" else balance.last[1, :5]
    step = 1e-6
    for place in np.ndindex(7, 5):
        ends = []
        for sign in (1, -1):
            moved = data.copy()
            moved[place] += sign * step
            ends.append(losses_of(moved, gate, config, counts))
        assert logits.grad[place] == pytest.approx(4 * (ends[0] - ends[1]) / (2 * step), abs=1e-7)
    assert balance.tally[1, :5].tolist() == np.bincount(chosen.ravel(), minlength=5).tolist()
    assert not balance.tally[0].any()


def test_even_scores_and_even_counts_have_no_gradient():
    scores = np.full((6, 4), 0.25, np.float32)
    for normalized in (True, False):
        gradient = balance_loss_gradient(scores, np.full(4, 0.25), 1.0, normalized)
        assert np.ptp(gradient) == 0  # the same for all: softmax takes the mean away
    empty = balance_loss_gradient(scores[:0], np.zeros(4), 1.0, True)
    assert empty.shape == (0, 4)


def test_a_bias_moves_against_the_excess_however_large_the_counts_are():
    counts = np.array([[40_840, 41_000, 41_216, 40_000], [7, 7, 7, 7]])
    moved = moved_bias(np.zeros((2, 4), np.float32), counts, 0.5)
    assert moved.tolist() == [[-0.5, -0.5, -0.5, 0.5], [0, 0, 0, 0]] and moved.dtype == np.float32
    near = np.array([[40_850, 40_900]])  # in bfloat16 both are 40,960, and neither bias would move
    assert moved_bias(np.zeros((1, 2), np.float32), near, 0.5).tolist() == [[0.5, -0.5]]
    large = np.array([[2**40, 2**40 + 1, 2**40 + 2]])  # one more than the mean, beyond what float32 tells apart
    assert np.sign(moved_bias(np.zeros((1, 3), np.float32), large, 1.0)).tolist() == [[1, 0, -1]]


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_counted_once(mode):
    """Also where backward runs forward again, and not at all where no gradient is asked for."""
    model = GPT(replace(TINY, dropout=0.1))
    recompute_blocks(model, mode)
    tokens, targets = batch(TINY)
    model.balance.begin()
    for micro_batch in range(2):
        model(tokens, targets, DropoutRNG(0, 0, micro_batch)).backward()
    with no_grad():
        model(tokens, targets)
    assert (model.balance.tally[:, :8].sum(axis=1) == 2 * tokens.size * 2).all()
    model.balance.end()
    assert (model.balance.last == model.balance.tally).all() and not model.balance.bias.any()
    model.balance.begin()
    assert not model.balance.tally.any() and model.balance.last.any()


def test_drops_and_visits_are_counted():
    config = replace(TINY, moe=replace(MIXTURE, capacity=0.5, expert_nodes=4, route_nodes=1))
    model = GPT(config)
    tokens, targets = batch(config)
    model(tokens, targets).backward()
    tally = model.balance.tally
    most = config.moe.rows_at_most(tokens.size)
    assert most == 3  # half of 2 x 24 / 8
    assert (tally[:, 8] == np.maximum(tally[:, :8] - most, 0).sum(axis=1)).all() and tally[:, 8].all()
    assert (tally[:, 9] == tokens.size).all()  # one node for each token


@pytest.mark.parametrize(
    ("capacity", "k", "experts", "tokens", "rows"),
    [
        (1.0, 2, 8, 24, 6),
        (1.1, 2, 4, 100, 55),
        (1.25, 2, 8, 25, 8),
        (1e-9, 1, 8, 100, 1),
        (1e300, 2, 8, 10, 10),
        (2, 1, 8, 0, 0),
    ],
)
def test_capacity_is_rounded_up_from_the_number_as_it_is_written(capacity, k, experts, tokens, rows):
    assert MoEConfig(experts, k, capacity=capacity).rows_at_most(tokens) == rows


def test_the_losses_of_sequence_chunks_weigh_as_much_as_those_of_one():
    """Each chunk adds a mean over its own tokens: a share of the micro-batch's."""
    gradients = []
    for chunks in (1, 2, 4):
        config = replace(TINY, sequence_chunks=chunks, moe=replace(MIXTURE, aux_loss=0.0, z_loss=100.0))
        model = GPT(config, dtype=np.float64)
        model(*batch(config)).backward()
        gradients.append(model.blocks[0].mlp.router.weight.grad)
    assert np.allclose(gradients[0], gradients[1], rtol=1e-9) and np.allclose(gradients[0], gradients[2], rtol=1e-9)


def test_a_capacity_that_drops_everything_but_a_few_still_trains():
    config = replace(TINY, moe=replace(MIXTURE, capacity=1e-9))
    model = GPT(config)
    model(*batch(config)).backward()
    assert config.moe.rows_at_most(24) == 1 and all(np.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("precision", POLICIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("changes", [{}, {"attention": "tiled", "attention_tile": 3}, {"sequence_chunks": 4}], ids=str)
def test_a_batch_without_samples_leaves_zeros(precision, mode, changes):
    """What a rank computes that has run out of micro-batches, while the others need its experts."""
    config = replace(
        TINY, dropout=0.1, moe=replace(MIXTURE, shared_expert=4, z_loss=0.1, expert_nodes=4, route_nodes=2), **changes
    )
    with autocast(precision):
        model = GPT(config)
        recompute_blocks(model, mode)
        nothing = np.empty((0, config.context), np.uint8)
        loss = model(nothing, nothing)
        loss.backward()
    assert loss.item() == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 9}, "top_k 9 is more than the number of experts, 8: choose top_k from 1 to 8"),
        ({"top_k": 0}, "top_k must be a whole number from 1 to 2,147,483,647, not 0"),
        ({"expert_hidden": 8.5}, "expert_hidden must be a whole number from 0 to"),
        (
            {"capacity": 0.0},
            "capacity must be finite and above 0, not 0: .* Choose 1.25, say, or leave it out to drop none",
        ),
        ({"capacity": -1.0}, "capacity must be finite and above 0, not -1"),
        ({"capacity": float("inf")}, "capacity must be finite and above 0, not inf"),
        ({"aux_loss": float("nan")}, "aux_loss must be a finite number of at least 0"),
        ({"gate": "relu"}, "gate must be one of softmax, sigmoid, not 'relu'"),
        ({"expert_nodes": 3}, "expert_nodes 3 does not divide the 8 experts: choose from 1, 2, 4, 8"),
        (
            {"expert_nodes": 2, "route_nodes": 3},
            "route_nodes 3 is more than expert_nodes 2, .* set expert_nodes to 3 or more",
        ),
        (
            {"expert_nodes": 8, "route_nodes": 1},
            "leaves a token 1 of the 8 experts, fewer than top_k 2: set route_nodes to 2",
        ),
    ],
)
def test_settings_that_no_mixture_can_have(settings, message):
    with pytest.raises(ValueError, match=message):
        MoEConfig(8, **settings)


def test_sizes_that_do_not_fit_the_model():
    with pytest.raises(ValueError, match="expert_hidden 15 must be a multiple of the 2 heads"):
        replace(TINY, moe=replace(MIXTURE, expert_hidden=15))
    with pytest.raises(
        ValueError, match="moe_every 4 leaves no layer with experts in a model of 3 layers: choose from 1 to 3"
    ):
        replace(TINY, moe=replace(MIXTURE, moe_every=4))
    assert replace(TINY, layers=5, moe=replace(MIXTURE, moe_every=2)).sparse_layers == [1, 3]
