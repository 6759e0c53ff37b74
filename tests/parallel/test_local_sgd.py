"""Local SGD: a plain loop's bits, and the outer step of torch."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from choosing import long
from parallel.plain import Plain

from minidist.nn.kernels import rounded
from minidist.parallel.data import share_of
from minidist.parallel.loosened.local import outer_step
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

# 7 micro-batches: some workers have fewer than others. Seven steps are no multiple of the local steps.
CONFIG = TrainConfig(
    layers=4, heads=2, width=8, context=12, global_batch=14, micro_batch=2, steps=7, warmup=2, lr=1e-2, clip=0.5,
    dropout=0.1,
)  # fmt: skip
LINEAR = replace(CONFIG, optimizer="sgd", lr=0.1, clip=inf, weight_decay=0.0)


@pytest.mark.long  # to import torch takes seconds
def test_the_outer_step_is_torchs_nesterov_sgd():
    torch = pytest.importorskip("torch")
    for momentum in (0.0, 0.9):
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


def textbook(config: TrainConfig, layout: Layout) -> tuple[dict, list[float]]:
    """Local SGD of several models in one process, one after the other: what they share in the end, and the losses."""
    workers = [Plain(config) for _ in range(layout.dp)]
    start = {name: parameter.data.copy() for name, parameter in workers[0].parameters.items()}
    momentum = {name: np.zeros_like(data) for name, data in start.items()}
    count, losses = config.micro_batches, []

    for step in range(config.steps):
        total = 0.0
        for place, worker in enumerate(workers):
            mine = share_of(place, layout.dp, count)
            total = sum(worker.compute(step, mine), start=total)
            worker.update(step, len(mine))
        losses.append(total / count)
        for name, weights in start.items():
            block = int(name.split(".")[1]) % layout.fragments if name.startswith("blocks.") else 0
            offset = block * layout.local_steps // layout.fragments
            if (step + 1 + offset) % layout.local_steps and step + 1 < config.steps:
                continue
            moved = np.zeros(weights.shape)
            for place, worker in enumerate(workers):
                mine = worker.parameters[name].data
                moved += len(share_of(place, layout.dp, count)) * (np.float64(weights) - mine)
            gradient = rounded(moved / count, np.float32)
            momentum[name] = np.float32(layout.outer_momentum) * momentum[name] + gradient
            weights -= layout.outer_lr * (gradient + layout.outer_momentum * momentum[name])
            for worker in workers:
                worker.parameters[name].data[...] = weights

    state = start | ({f"outer_momentum.{name}": buffer for name, buffer in momentum.items()})
    for key in workers[0].optimizer.state():
        of_workers = np.stack([worker.optimizer.state()[key] for worker in workers])
        state[key] = of_workers[0] if (of_workers == of_workers[0]).all() else of_workers
    return state, losses


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("dp=3,sync=local,local_steps=3,fragments=2,outer_momentum=0.5", {}),
        long("dp=3,sync=local,local_steps=5,fragments=3,outer_lr=1", {"optimizer": "sgd"}),
        long("dp=3,sync=local,local_steps=3", {}),
        long("dp=5,sync=local,local_steps=1", {"steps": 3}),
        long("dp=2,sync=local,local_steps=50", {"steps": 2}),
    ],
)
def test_it_is_the_textbook_s_run_bit_for_bit(ranks, text, settings):
    layout, config = Layout.parse(text), replace(CONFIG, **settings)
    arrays, losses = textbook(config, layout)
    result = run(ranks(layout.dp), config, layout, RunOptions(stop_after=config.steps - 1))
    assert result.losses == losses
    for rank in result.ranks:
        assert rank.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            assert rank.arrays[name].shape == array.shape, name
            assert rank.arrays[name].tobytes() == array.tobytes(), name


def test_a_round_of_linear_steps_is_the_mean_of_the_workers_weights(ranks):
    """Whether a worker adds up gradients or subtracts weights, an outer rate of 1 averages: to float32's precision."""
    layout = Layout.parse("dp=3,sync=local,local_steps=7,outer_lr=1,outer_momentum=0")
    by_sums, by_weights = (  # the second clips nothing
        run(ranks(3), replace(LINEAR, clip=clip), layout, RunOptions(stop_after=6)).ranks[0].arrays
        for clip in (inf, 1e9)
    )
    assert any((by_sums[name] != by_weights[name]).any() for name in by_sums)
    for name, array in by_sums.items():
        # seven inner steps and one outer one, each rounded to float32, of weights below 2
        np.testing.assert_allclose(array, by_weights[name], rtol=0, atol=9 * 2**-24 * 2, err_msg=name)
