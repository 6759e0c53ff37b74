"""Local SGD: data parallelism's bits in its trivial setting, a plain loop's in every other, and the bytes it saves."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf

import numpy as np
import pytest

from minidist.nn.data import load_corpus
from minidist.nn.gpt import GPT
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import SGD, AdamW, average_gradients, warmup_cosine
from minidist.nn.rounding import rounded
from minidist.parallel.data import share_of
from minidist.parallel.loosened.local import due, fragment_of, outer_step
from minidist.train.batches import batch_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank

# 7 micro-batches: some workers have fewer than others. Seven steps are no multiple of the local steps.
CONFIG = TrainConfig(
    layers=4, heads=2, width=8, context=12, global_batch=14, micro_batch=2, steps=7, warmup=2, lr=1e-2, clip=0.5,
    dropout=0.1,
)  # fmt: skip
LINEAR = replace(CONFIG, steps=3, optimizer="sgd", lr=0.1, clip=inf, weight_decay=0.0)
TRIVIAL = "sync=local,local_steps=1,outer_lr=1,outer_momentum=0"
HERE = "sync=local,local_steps=3"


# The outer step


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_outer_step_is_torchs_nesterov_sgd(momentum):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    ours, buffer = random.standard_normal(1001), np.zeros(1001) if momentum else None
    theirs = torch.tensor(ours.copy(), requires_grad=True)
    optimizer = torch.optim.SGD([theirs], lr=0.7, momentum=momentum, nesterov=bool(momentum))
    for _ in range(5):
        gradient = random.standard_normal(1001)
        outer_step(ours, gradient, buffer, 0.7, momentum)
        theirs.grad = torch.from_numpy(gradient)
        optimizer.step()
    # torch may fuse a product with a sum: in each of five steps a few roundings of numbers below 30
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=0, atol=5 * 4 * 30 * 2**-53)


def test_the_outer_step_changes_start_and_momentum_in_place():
    data, buffer = np.array([1.0], np.float32), np.array([2.0], np.float32)
    outer_step(data, np.array([0.5], np.float32), buffer, 1.0, 0.5)
    assert buffer == [1.5] and data == [1 - (0.5 + 0.75)] and data.dtype == np.float32


@pytest.mark.parametrize(("local_steps", "fragments"), [(1, 1), (3, 1), (3, 2), (5, 5), (8, 4), (7, 3)])
def test_each_fragment_is_due_once_in_a_round(local_steps, fragments):
    steps = {f: [s for s in range(1, 5 * local_steps + 1) if f in due(s, local_steps, fragments)] for f in range(9)}
    assert not any(steps[f] for f in range(fragments, 9))
    assert steps[0] == [local_steps * k for k in range(1, 6)]
    for found in (steps[f] for f in range(fragments)):
        assert {b - a for a, b in pairwise(found)} == {local_steps} and found[0] <= local_steps
    if local_steps % fragments == 0:  # evenly apart: as many at once as possible are one
        assert max(len(due(s, local_steps, fragments)) for s in range(1, local_steps + 1)) == 1


def test_blocks_take_turns_in_fragments():
    names = ["embeddings.token.weight", *(f"blocks.{n}.mlp.fc.weight" for n in (0, 1, 2, 11)), "head.norm.bias"]
    assert [fragment_of(name, 3) for name in names] == [0, 0, 1, 2, 2, 0]
    assert {fragment_of(name, 1) for name in names} == {0}


# The trivial setting


@pytest.fixture(scope="module")
def one_process(ranks):
    """``one_process(config)`` is the run on one process, the same one in every test."""
    return cache(lambda config: run(ranks(1), config, Layout()))


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ("dp=1", {}),
        pytest.param("dp=2", {}, marks=pytest.mark.long),
        ("dp=3", {}),
        pytest.param("dp=5", {}, marks=pytest.mark.long),
        pytest.param("dp=7", {"precision": "bf16"}, marks=pytest.mark.long),
        pytest.param("dp=2,recompute=full", {}, marks=pytest.mark.long),
        ("dp=3,algorithm=ring", {}),
        ("dp=2,tp=2", {"precision": "bf16"}),
        ("dp=3,tp=2,sp=1", {}),
        ("dp=2,cp=2", {"sequence_chunks": 2}),
        pytest.param("dp=2,cp=2,cp_kind=zigzag,tp=2", {"sequence_chunks": 4}, marks=pytest.mark.long),
        ("dp=2,pp=2,schedule=1f1b", {}),
        *(
            pytest.param(f"dp=2,pp=2,schedule={name}", {}, marks=pytest.mark.long)
            for name in ("naive", "gpipe", "zb-h1")
        ),
        ("dp=2,pp=2,virtual=2", {"global_batch": 8}),
        pytest.param("dp=2,pp=2,tp=2,sp=1", {"precision": "bf16"}, marks=pytest.mark.long),
        pytest.param("dp=3,pp=3,recompute=full", {"global_batch": 18}, marks=pytest.mark.long),
        pytest.param("dp=5,tp=2,sp=1", {"precision": "bf16"}, marks=pytest.mark.long),
        pytest.param("dp=2,cp=2,pp=2", {"sequence_chunks": 2}, marks=pytest.mark.long),
    ],
)
def test_one_local_step_of_sgd_is_data_parallelism(ranks, one_process, layout, settings):
    layout, config = Layout.parse(f"{layout},{TRIVIAL}"), replace(LINEAR, **settings)
    result = run(ranks(layout.world_size), config, layout)
    assert result.fingerprint == one_process(config).fingerprint
    assert {rank.fingerprint for rank in result.ranks} == {result.fingerprint}


@pytest.mark.long
@pytest.mark.parametrize("setting", [{"optimizer": "adamw"}, {"clip": 0.01}, {"weight_decay": 0.1}])
def test_without_linear_steps_it_is_another_run(ranks, one_process, setting):
    config = replace(LINEAR, **setting)
    assert run(ranks(2), config, Layout.parse(f"dp=2,{TRIVIAL}")).fingerprint != one_process(config).fingerprint


# All other settings


def textbook(config: TrainConfig, layout: Layout) -> tuple[dict, list[float]]:
    """Local SGD of several models in one process, one after the other: what they share in the end, and the losses."""
    corpus = load_corpus(config.text, config.context)
    modules = [GPT(config.model, seed=config.seed) for _ in range(layout.dp)]
    models = [dict(module.named_parameters()) for module in modules]
    kind = {"adamw": AdamW, "sgd": SGD}[config.optimizer]
    inner = [kind(module.parameters(), config.lr, weight_decay=config.weight_decay) for module in modules]
    start = {name: parameter.data.copy() for name, parameter in models[0].items()}
    momentum = {name: np.zeros_like(data) for name, data in start.items()}
    count, losses = config.micro_batches, []

    for step in range(config.steps):
        total = 0.0
        for worker, module in enumerate(modules):
            mine = share_of(worker, layout.dp, count)
            module.zero_grad()
            for index in mine:
                loss = module(*batch_of(corpus, config, step, index))
                loss.backward()
                total += float(loss.data)
            average_gradients(module.parameters(), len(mine))
            clip_grad_norm(module.parameters(), config.clip)
            inner[worker].lr = warmup_cosine(step, config.steps, config.lr, config.warmup, config.lr / 10)
            inner[worker].step()
        losses.append(total / count)
        for name, weights in start.items():
            block = int(name.split(".")[1]) % layout.fragments if name.startswith("blocks.") else 0
            offset = block * layout.local_steps // layout.fragments
            if (step + 1 + offset) % layout.local_steps and step + 1 < config.steps:
                continue
            moved = np.zeros(weights.shape)
            for worker, model in enumerate(models):
                moved += len(share_of(worker, layout.dp, count)) * (np.float64(weights) - model[name].data)
            gradient = rounded(moved / count, np.float32)
            momentum[name] = np.float32(layout.outer_momentum) * momentum[name] + gradient
            weights -= layout.outer_lr * (gradient + layout.outer_momentum * momentum[name])
            for model in models:
                model[name].data[...] = weights

    state = start | ({f"outer_momentum.{name}": buffer for name, buffer in momentum.items()})
    for key in inner[0].state():
        of_workers = np.stack([optimizer.state()[key] for optimizer in inner])
        state[key] = of_workers[0] if (of_workers == of_workers[0]).all() else of_workers
    return state, losses


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        (f"dp=3,{HERE}", {}),
        (f"dp=2,{HERE},fragments=2,outer_momentum=0.5", {}),
        ("dp=3,sync=local,local_steps=5,fragments=3,outer_lr=1", {"optimizer": "sgd"}),
        ("dp=5,sync=local,local_steps=1", {"steps": 3}),
        ("dp=2,sync=local,local_steps=50", {"steps": 2}),
    ],
)
def test_it_is_the_textbook_s_run_bit_for_bit(ranks, layout, settings):
    layout, config = Layout.parse(layout), replace(CONFIG, **settings)
    arrays, losses = textbook(config, layout)
    result = run(ranks(layout.dp), config, layout, RunOptions(stop_after=config.steps - 1))
    assert result.losses == losses
    for rank in result.ranks:
        assert rank.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            assert rank.arrays[name].shape == array.shape, name
            assert rank.arrays[name].tobytes() == array.tobytes(), name


@pytest.mark.long
def test_workers_end_with_one_model_and_optimizer_states_of_their_own(ranks):
    result = run(ranks(3), CONFIG, Layout.parse(f"dp=3,{HERE}"), RunOptions(stop_after=CONFIG.steps - 1))
    shapes = {name: parameter.shape for name, parameter in GPT(CONFIG.model).named_parameters()}
    arrays = result.ranks[0].arrays
    for name, shape in shapes.items():
        assert arrays[name].shape == arrays[f"outer_momentum.{name}"].shape == shape
    assert arrays["exp_avg.blocks.0.mlp.fc.weight"].shape == (3, *shapes["blocks.0.mlp.fc.weight"])


def test_within_a_round_the_workers_weights_differ(ranks):
    result = run(ranks(2), CONFIG, Layout.parse(f"dp=2,{HERE}"), RunOptions(stop_after=1))
    assert result.ranks[0].arrays["head.norm.bias"].shape == (2, CONFIG.width)


WORKERS = "dp=2,sync=local,local_steps=3,fragments=2"


@pytest.fixture(scope="module")
def of_single_ranks(ranks):
    """``of_single_ranks(config)`` is the fingerprint with workers of one rank each."""
    return cache(lambda config: run(ranks(2), config, Layout.parse(WORKERS)).fingerprint)


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ("tp=2", {}),
        pytest.param("tp=2,sp=1", {}, marks=pytest.mark.long),
        ("pp=2", {}),
        pytest.param("pp=2,virtual=2,recompute=full", {}, marks=pytest.mark.long),
        pytest.param("pp=4,schedule=gpipe", {}, marks=pytest.mark.long),
        pytest.param("pp=2,schedule=zb-h1,tp=2", {"precision": "bf16"}, marks=pytest.mark.long),
        pytest.param("cp=2", {"sequence_chunks": 2}, marks=pytest.mark.long),
        pytest.param("cp=2,tp=2", {"sequence_chunks": 2, "precision": "bf16"}, marks=pytest.mark.long),
        pytest.param("tp=2", {"optimizer": "lamb"}, marks=pytest.mark.long),
        ("pp=2", {"optimizer": "sgd", "clip": inf, "weight_decay": 0.0, "lr": 0.1}),
    ],
)
def test_layouts_within_a_worker_keep_the_bits(ranks, of_single_ranks, layout, settings):
    config = replace(CONFIG, steps=5, global_batch=16, **settings)
    inside = Layout.parse(f"{WORKERS},{layout}")
    assert run(ranks(inside.world_size), config, inside).fingerprint == of_single_ranks(config)


def test_a_run_repeats_to_the_bit(ranks):
    layout = Layout.parse(f"dp=3,{HERE},fragments=2")
    assert run(ranks(3), CONFIG, layout).fingerprint == run(ranks(3), CONFIG, layout).fingerprint


@pytest.mark.long
def test_a_round_of_linear_steps_is_the_mean_of_the_workers_weights(ranks):
    """Whether a worker adds up gradients or subtracts weights, an outer rate of 1 averages: to float32's precision."""
    layout = Layout.parse("dp=3,sync=local,local_steps=7,outer_lr=1,outer_momentum=0")
    options = RunOptions(stop_after=LINEAR.steps + 3)
    config = replace(LINEAR, steps=7)
    by_sums = run(ranks(3), config, layout, options).ranks[0].arrays
    by_weights = run(ranks(3), replace(config, clip=1e9), layout, options).ranks[0].arrays  # clips nothing
    assert any((by_sums[name] != by_weights[name]).any() for name in by_sums)
    for name, array in by_sums.items():
        # seven inner steps and one outer one, each rounded to float32, of weights below 2
        np.testing.assert_allclose(array, by_weights[name], rtol=0, atol=9 * 2**-24 * 2, err_msg=name)


def test_the_mean_over_workers_does_not_show_the_order_of_the_sum(ranks):
    """A sum halfway between two float32 numbers: what one order of adding keeps, 2^-50, must not decide."""

    def main(world):
        from minidist.nn.layers import Parameter
        from minidist.parallel.loosened.local import Fragment

        parameter = Parameter((2,))
        parameter.name = "p"
        terms = {"p": 3 * np.array([1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-50])}
        return Fragment([parameter], np.float64).mean(terms, 3, world, "auto")["p"].tolist()

    assert ranks(1).run(main) == [[1.0, 1.0]]


# What is sent


def sent_in_steps(world, config, layout):
    """Bytes and messages that this rank sends in each step."""
    from minidist.train.share import Share

    take_step, sent = Share.take_step, []

    def counted(self, *arguments):
        before = world.traffic
        loss = take_step(self, *arguments)
        sent.append((world.traffic - before).sent.sum(0))
        return loss

    Share.take_step = counted
    try:
        train_rank(world, config, layout, RunOptions())
    finally:
        Share.take_step = take_step
    return sent


def parameters(config: TrainConfig, fragment: int = 0, fragments: int = 1) -> int:
    """How many a fragment has."""
    named = GPT(config.model).named_parameters()
    return sum(p.size for name, p in named if fragment_of(name, fragments) == fragment)


@pytest.mark.long
@pytest.mark.parametrize("dp", [2, 3, 5])
@pytest.mark.parametrize("fragments", [1, 2])
def test_workers_send_nothing_but_the_sums_that_are_due(ranks, dp, fragments):
    """Of a fragment's float64 numbers a ring sends 2 (N - 1) / N from each rank. In inner steps nothing is sent."""
    layout = Layout.parse(f"dp={dp},sync=local,local_steps=4,algorithm=ring,fragments={fragments}")
    config = replace(CONFIG, steps=9)
    sent = np.array(ranks(dp).run(sent_in_steps, config, layout))  # (ranks, steps, 2): bytes and messages
    for step in range(1, config.steps + 1):
        joined = range(fragments) if step == config.steps else due(step, 4, fragments)
        expected = sum(2 * (dp - 1) * 8 * parameters(config, f, fragments) for f in joined)
        assert sent[:, step - 1, 0].sum() == expected
        if not joined:
            assert not sent[:, step - 1].any()


@pytest.mark.long
def test_it_sends_one_over_local_steps_of_data_parallelism_s_bytes(ranks):
    config = replace(CONFIG, steps=8)
    sent = {}
    for text in ("dp=3,algorithm=ring,bucket_mb=100", "dp=3,algorithm=ring,sync=local,local_steps=4"):
        result = run(ranks(3), config, Layout.parse(text))
        sent[text] = sum(rank.traffic.as_dict()["bytes_sent"] for rank in result.ranks)
    every_step, local = sent.values()
    losses = 2 * (3 - 1) * 8  # an all-reduce of one loss
    assert (every_step - 8 * losses) == 4 * local  # joining the losses comes after what is measured


@pytest.mark.long
def test_what_it_holds(ranks):
    """Beside AdamW's two moments: start weights and momentum. With linear steps: the sums, and no moments."""
    P = 4 * parameters(CONFIG)
    memory = run(ranks(2), CONFIG, Layout.parse(f"dp=2,{HERE}")).ranks[0].memory
    assert memory["optimizer"] == 4 * P
    plain = run(ranks(2), LINEAR, Layout.parse("dp=2,sync=bucketed")).ranks[0].memory
    linear = run(ranks(2), LINEAR, Layout.parse("dp=2,sync=local,local_steps=3,outer_momentum=0")).ranks[0].memory
    assert (plain["optimizer"], linear["optimizer"]) == (0, P)
    assert linear["gradients"] >= plain["gradients"] + 2 * P


# What cannot be


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sync=local,local_steps=0", "at least 1 step alone"),
        ("sync=local,outer_lr=0", "outer_lr=0 must be larger than 0"),
        ("sync=local,outer_lr=inf", "outer_lr=inf must be"),
        ("sync=local,outer_momentum=1", "from 0 to below 1"),
        ("sync=local,fragments=9", "choose from 1 to 8"),
        ("sync=local,zero=1", "zero=1 shards over data-parallel ranks"),
        ("local_steps=4", "local_steps=4 is for sync=local"),
    ],
)
def test_local_settings_that_cannot_be(text, message):
    with pytest.raises(ValueError, match=message):
        Layout.parse(f"dp=2,{text}")


def test_there_are_no_more_fragments_than_layers():
    CONFIG.check(Layout.parse("dp=2,sync=local,fragments=4"))
    with pytest.raises(ValueError, match="the model has layers=4: choose at most 4"):
        CONFIG.check(Layout.parse("dp=2,sync=local,fragments=5"))
