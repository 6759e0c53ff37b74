"""Delayed updates: the bits of a plain loop whose gradients come one step late, and when they travel."""

from dataclasses import replace

import numpy as np
from parallel.plain import Plain

from minidist.parallel.loosened.delayed import DelayedDataParallel
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(
    layers=2, heads=2, width=8, context=12, global_batch=14, micro_batch=2, steps=4, warmup=2, lr=1e-2, clip=0.5,
    dropout=0.1,
)  # fmt: skip


def textbook(config: TrainConfig) -> tuple[dict, list[float]]:
    """One process whose optimizer gets each step's gradients after the next step's backward."""
    one, losses, late = Plain(config), [], {}
    for parameter in one.parameters.values():
        parameter.grad_dtype = np.dtype(config.reduce_dtype)
    for step in range(config.steps):
        losses.append(sum(one.compute(step, range(config.micro_batches))) / config.micro_batches)
        computed = {name: parameter.grad for name, parameter in one.parameters.items()}
        for name, gradient in late.items():
            one.parameters[name].grad = gradient
        if late:
            one.update(step, config.micro_batches)
        late = computed
    return {name: parameter.data for name, parameter in one.parameters.items()} | one.optimizer.state(), losses


def test_it_is_the_textbook_s_run_bit_for_bit(ranks):
    """A run of one step changes nothing."""
    for dp, steps, dtype in ((1, 4, "float64"), (3, 4, "float64"), (2, 1, "float64"), (1, 4, "float32")):
        config = replace(CONFIG, steps=steps, reduce_dtype=dtype)
        arrays, losses = textbook(config)
        result = run(ranks(dp), config, Layout(dp=dp, sync="delayed"), RunOptions(stop_after=steps - 1))
        assert result.losses == losses
        for rank in result.ranks:
            assert rank.arrays.keys() == arrays.keys()
            assert [name for name, array in arrays.items() if rank.arrays[name].tobytes() != array.tobytes()] == []


def test_gradients_are_views_of_two_buffers_in_turn_and_no_rank_waits_for_the_end_of_a_step(ranks):
    """Rank 1 ends its step only after rank 0 has: nothing but the sum of the step before may keep rank 0 waiting."""

    def main(world):
        from minidist.comm.point_to_point import recv, send
        from minidist.nn.layers import Parameter

        parameters, word = [Parameter((2, 3)), Parameter((0,)), Parameter((5,))], np.zeros(1)
        sums, seen = DelayedDataParallel(parameters, world, "auto", np.float64, steps=4), []
        for step in range(4):
            sums.zero_grad()
            assert not any(parameter.grad.any() for parameter in parameters)
            for parameter in parameters:
                with sums.no_sync():
                    parameter.grad += (world.rank + 1) * 10**step
            if world.rank == 1:
                recv(word, 0, world)
            sums.wait_for_gradients()
            if world.rank == 0:
                send(word, 1, world)
            assert len(sums.group.unwaited) == (step < 3) and not world.unwaited  # so the loss need not wait for it
            seen.append([None if p.grad is None else p.grad.tolist() for p in parameters])
        return seen

    for seen in ranks(3).run(main, timeout=60):
        assert seen[0] == [None, None, None]
        for step in (1, 2, 3):
            value = (1 + 2 + 3) * 10.0 ** (step - 1)
            assert seen[step] == [[[value] * 3] * 2, [], [value] * 5]
