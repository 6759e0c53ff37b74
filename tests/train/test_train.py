"""What a run's results depend on, and what it brings back. (What one process computes: nn/test_torch.py.)"""

from dataclasses import asdict, replace
from itertools import count
from unittest import mock

import numpy as np
import pytest

import minidist as md
from minidist import trace
from minidist.comm.transports.cores import ComputeClock
from minidist.nn.gpt import GPT
from minidist.nn.optim.optimizers import AdamW, average_gradients
from minidist.nn.precision.underflow import GradScaler
from minidist.parallel.loosened.server import Push
from minidist.train import step as step_module
from minidist.train.config import Ramp, TrainConfig, read_ramp
from minidist.train.fingerprint import fingerprint, state
from minidist.train.layout import Layout
from minidist.train.measuring.instruments import traced_from
from minidist.train.result import RunOptions
from minidist.train.trainer import MIN_SCALE, diverging, run, train_rank
from minidist.verify.interruption import Interruption, run_interrupted

CONFIG = TrainConfig(
    layers=1, heads=2, width=16, context=8, global_batch=6, micro_batch=2, steps=4, warmup=2, clip=0.3, dropout=0.2,
    seed=5,
)  # fmt: skip


def test_every_setting_shows_in_the_fingerprint(ranks):
    changes = [
        {}, {"lr": 2e-3}, {"warmup": 1}, {"clip": 0.2}, {"weight_decay": 0.2}, {"dropout": 0.1}, {"seed": 6},
        {"micro_batch": 3}, {"global_batch": 8}, {"text": __file__},
    ]  # fmt: skip
    found = [run(ranks(1), replace(CONFIG, steps=3, **change), Layout()).fingerprint for change in changes]
    assert len(set(found)) == len(changes)


def test_the_fingerprint_covers_names_weights_moments_and_losses():
    model, losses = GPT(CONFIG.model), [2.0, 1.0]
    optimizer = AdamW(model.parameters(), 0.1)
    model(*np.zeros((2, 1, 8), np.int64)).backward()
    average_gradients(model.parameters(), 1)
    optimizer.step()
    seen = [fingerprint(model, optimizer, losses), fingerprint(model, optimizer, [2.0, np.nextafter(1.0, 0)])]
    for array in state(model, optimizer).values():
        flat = array.reshape(-1)
        before, flat[-1] = flat[-1], np.nextafter(flat[-1], np.float32(9))
        seen.append(fingerprint(model, optimizer, losses))
        flat[-1] = before
    model.other, model.head = model.head, None
    seen.append(fingerprint(model, optimizer, losses))
    assert len(set(seen)) == len(seen) == 3 + 3 * len(model.parameters())


def steps_in(log: list) -> set[str]:
    return {entry.name for entry in log if isinstance(entry, trace.Event) and entry.track == "step"}


def test_what_a_run_brings_back(ranks):
    seen, told, options = [], [[], []], RunOptions(step_digests=True, progress=True, sample=7, trace=True)

    def looked_at(*arguments):  # a clock that only looks at it advance: when a step begins, has its gradients, and ends
        ticks = count()
        with mock.patch.object(ComputeClock, "seconds", lambda clock: float(next(ticks))):
            return train_rank(*arguments)

    result = run(
        ranks(2), CONFIG, Layout(dp=2), options, on_step=lambda step, loss: seen.append((step, loss)),
        on_event=lambda rank, event: told[rank].append(event), rank_function=looked_at,
    )  # fmt: skip
    first = result.ranks[0]
    for rank, events, micro_batches in zip(result.ranks, told, (2, 1), strict=True):
        steps = list(zip(result.losses, rank.compute_seconds, rank.micro_batch_seconds, strict=True))
        reports = [
            one for n, (loss, step, pace) in enumerate(steps) for one in (("step", n, loss, step), ("pace", n, pace))
        ]
        assert [event for event in events if event[0] in ("ready", "step", "pace")] == [("ready", 0), *reports]
        assert all((step, pace) == (2, 1 / micro_batches) for _, step, pace in steps)
        assert rank.micro_batch_counts == [micro_batches] * CONFIG.steps
    assert seen == list(enumerate(result.losses)) and len(set(first.step_digests)) == CONFIG.steps
    assert steps_in(first.log) == {"step 2", "step 3"}  # the last ones
    assert traced_from(0, replace(CONFIG, steps=9), Layout.parse("dp=2,sync=local,local_steps=5")) == 4  # a round
    assert len(first.sample) == 7 and result.ranks[1].sample is None
    slowest = max(rank.seconds for rank in result.ranks)
    assert result.tokens_per_second == pytest.approx(6 * 8 * 4 / slowest)
    told = {"validation_loss": 3.0, "bits_per_byte": 1.5, "save_errors": [""], "loss_scale": 8.0, "skipped_steps": 1}
    loads, push = [np.arange(6).reshape(1, 6)], Push(1, 2, 0, 3)
    document = replace(result, ranks=[replace(first, **told, expert_counts=loads, pushes=[push])]).as_dict()
    told |= {"losses": result.losses, "seconds": result.seconds, "traffic": [first.traffic.as_dict()]}
    told |= {"resumed_after": 0, "expert_counts": [[[0, 1, 2, 3, 4, 5]]], "pushes": [[asdict(push)]]}
    assert {name: document[name] for name in told} == told
    part = run(ranks(1), CONFIG, Layout(), RunOptions(step_digests=True, trace=True, stop_after=1)).ranks[0]
    assert steps_in(part.log) == {"step 1"}  # as if SIGTERM had come before the last two
    assert part.losses == first.losses[:2] and part.step_digests == first.step_digests[:2]
    assert len(part.arrays) == 3 * len(GPT(CONFIG.model).parameters())
    deep = replace(CONFIG, layers=8)
    whole = sum(parameter.data.nbytes for parameter in GPT(deep.model).parameters())
    sharded = run(ranks(2), deep, Layout(dp=2, zero=3)).ranks[0]
    assert sharded.memory["parameters"] < whole  # which each rank had for a moment, before it was sharded


def test_every_rank_names_the_gradient_that_diverged(ranks):
    """Ranks that do not have it name it too: whichever error comes first, it is the one that helps."""
    average_gradients = step_module.average_gradients

    def error_of(world, *arguments):
        def poisoned(parameters, count):
            average_gradients(parameters, count)
            if world.rank == 1:
                parameters[0].grad[...] = np.nan

        with mock.patch.object(step_module, "average_gradients", poisoned), pytest.raises(FloatingPointError) as error:
            train_rank(world, *arguments)
        return str(error.value)

    for layout in (Layout(pp=2), Layout(dp=2, zero=2), Layout(dp=3, zero=3)):
        errors = ranks(layout.world_size).run(error_of, replace(CONFIG, layers=2), layout, RunOptions())
        assert len(set(errors)) == 1, errors
        assert errors[0].startswith("training diverged in step 0: the gradient of ")
        assert " is not finite: " in errors[0]


def test_gradients_that_overflow_whatever_the_scale_end_the_run():
    """Otherwise it would skip every step from then on."""
    scaler = GradScaler(init_scale=MIN_SCALE)
    with diverging(6, scaler, None):
        scaler.update(overflow=True)
    with (
        pytest.raises(FloatingPointError, match="step 7: gradients overflow even at a loss scale of 2"),
        diverging(7, scaler, None),
    ):
        scaler.update(overflow=True)


def test_traffic_is_that_of_the_training_alone(ranks):
    def noisy(world, *arguments):
        md.all_reduce(np.ones(1000), group=world)
        return train_rank(world, *arguments)

    quiet, other = (run(ranks(2), CONFIG, Layout(dp=2), rank_function=each) for each in (None, noisy))
    assert quiet.as_dict()["traffic"] == other.as_dict()["traffic"]


# A batch that grows

GROWING = TrainConfig(
    layers=2, heads=2, width=8, context=8, global_batch=8, micro_batch=1, steps=6, warmup=1, rampup_batch_size="4,2,20"
)


def test_the_batch_grows_as_megatron_s():
    """Megatron-LM's rule, from the samples consumed: start + int(consumed / (samples / increments)) increment."""
    for text, full, micro_batch in (
        ("12,12,120", 48, 2), ("1,1,7", 9, 1), ("3,3,0", 6, 3), ("256,128,50000", 1024, 4), ("2,6,100", 8, 2),
    ):  # fmt: skip
        start, increment, samples = map(int, text.split(","))
        ramp, consumed = read_ramp(text, full, micro_batch), 0
        for step in range(400):
            each = samples / ((full - start) / increment)
            size = full if consumed >= samples else start + int(consumed / each) * increment
            assert ramp.batch_at(step) == size <= full, (text, step)
            assert size in ramp.sizes
            consumed += size
        assert size == full
    assert Ramp(2, 2, 0, 8).batch_at(0) == 8  # over no samples
    ramp = Ramp(2, 2, 3 * 10**9, 8)  # 10^9 samples at each of 2, 4 and 6, found at once
    steps = [0, 5 * 10**8 - 1, 5 * 10**8, 75 * 10**7 - 1, 75 * 10**7, 10**12]
    assert [ramp.batch_at(step) for step in steps] == [2, 2, 4, 4, 6, 8]
    assert [GROWING.batch_at(step) for step in range(6)] == [4, 4, 4, 6, 6, 8]
    assert GROWING.tokens_of(range(6)) == 32 * 8 and GROWING.tokens_of(range(5, 6)) == 8 * 8


@pytest.mark.long
def test_a_run_goes_on_in_the_middle_of_the_ramp():
    interruptions = [Interruption(Layout(dp=3), Layout(pp=2), 2), Interruption(Layout(pp=2), Layout(dp=2, zero=2), 4)]
    results = list(run_interrupted(interruptions, GROWING, lambda _: None))
    assert len(results) == 3 and all(same for _, _, same in results)
