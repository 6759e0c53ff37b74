"""The training loop against the same steps written out by hand, and what its results must depend on."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import minidist as md
from minidist import trace
from minidist.nn.data import load_corpus, micro_batch, validation_batches
from minidist.nn.gpt import GPT
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import AdamW, warmup_cosine
from minidist.nn.random import DropoutRNG
from minidist.train.config import TrainConfig
from minidist.train.fingerprint import digest, fingerprint, state
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank

CONFIG = TrainConfig(
    layers=1, heads=2, width=16, context=8, global_batch=6, micro_batch=2, steps=4, warmup=2, clip=0.3, dropout=0.2,
    seed=5,
)  # fmt: skip


def by_hand(config):
    """Single-process training, without train.py: returns the losses, the model and the optimizer."""
    corpus = load_corpus(config.text, config.context)
    model = GPT(config.model, seed=config.seed)
    optimizer = AdamW(model.parameters(), config.lr, weight_decay=config.weight_decay)
    losses = []
    for step in range(config.steps):
        model.zero_grad()
        loss_sum = 0.0
        for index in range(config.global_batch // config.micro_batch):
            first = index * config.micro_batch
            batch = micro_batch(corpus, config.seed, step, first, config.micro_batch, config.context)
            loss = model(*batch, DropoutRNG(config.seed, step, index))
            loss.backward()
            loss_sum += float(loss.item())
        for parameter in model.parameters():
            parameter.grad = (parameter.grad / 3).astype(np.float32)
        assert clip_grad_norm(model.parameters(), config.clip) > config.clip  # so that clipping is part of the test
        optimizer.lr = warmup_cosine(step, config.steps, config.lr, config.warmup, config.lr / 10)
        optimizer.step()
        losses.append(loss_sum / 3)
    return losses, model, optimizer


def test_the_loop_is_the_one_written_by_hand(ranks):
    losses, model, optimizer = by_hand(CONFIG)
    result = run(ranks(1), CONFIG, Layout())
    assert result.losses == losses
    assert result.fingerprint == fingerprint(model, optimizer, losses)


def test_every_setting_shows_in_the_fingerprint(ranks):
    changes = [
        {}, {"lr": 2e-3}, {"warmup": 1}, {"clip": 0.2}, {"weight_decay": 0.2}, {"dropout": 0.1}, {"seed": 6},
        {"micro_batch": 3}, {"global_batch": 8}, {"text": __file__},
    ]  # fmt: skip
    found = [run(ranks(1), replace(CONFIG, steps=3, **change), Layout()).fingerprint for change in changes]
    assert len(set(found)) == len(changes)


def test_the_fingerprint_covers_names_weights_moments_and_losses():
    losses, model, optimizer = by_hand(CONFIG)
    seen = {fingerprint(model, optimizer, losses)}
    seen.add(fingerprint(model, optimizer, [*losses[:-1], np.nextafter(losses[-1], 0)]))
    arrays = state(model, optimizer)
    assert len(arrays) == 3 * len(model.parameters())
    for array in arrays.values():
        flat = array.reshape(-1)
        before = flat[-1]
        flat[-1] = np.nextafter(before, np.float32(9))
        seen.add(fingerprint(model, optimizer, losses))
        flat[-1] = before
    names = digest(model, optimizer).hexdigest()
    model.other, model.head = model.head, None
    assert digest(model, optimizer).hexdigest() != names
    assert len(seen) == 2 + len(arrays)


def test_what_a_run_brings_back(ranks):
    seen, config = [], replace(CONFIG, text=str(Path(__file__).parents[2] / "LICENSE"))  # a short text to validate on
    options = RunOptions(step_digests=True, progress=True, validate=True, sample=7, trace=True)
    result = run(ranks(2), config, Layout(dp=2), options, on_step=lambda step, loss: seen.append((step, loss)))
    first = result.ranks[0]
    assert seen == list(enumerate(result.losses))
    assert len(first.step_digests) == config.steps and len(set(first.step_digests)) == config.steps
    steps = {e.name for e in first.log if isinstance(e, trace.Event) and e.track == "step"}
    assert steps == {"step 2", "step 3"}  # the last ones
    assert len(first.sample) == 7 and result.ranks[1].sample is None
    slowest = max(rank.seconds for rank in result.ranks)
    assert result.tokens_per_second == pytest.approx(6 * 8 * 4 / slowest)

    _, model, _ = by_hand(config)
    corpus = load_corpus(config.text, config.context)
    per_token = [
        float(model(tokens[i : i + 1], targets[i : i + 1]).item())
        for tokens, targets in validation_batches(corpus, 8, config.context)
        for i in range(len(tokens))
    ]
    assert first.validation_loss == pytest.approx(np.mean(per_token), rel=1e-5)


def test_every_rank_names_the_gradient_that_diverged(ranks):
    """Also a rank that does not have it: whichever error comes first, it is the one that helps."""

    def error_of(world, config, layout, options):
        from minidist.train import step

        average_gradients = step.average_gradients

        def poisoned(parameters, count):
            average_gradients(parameters, count)
            if world.rank == 1:
                parameters[0].grad[...] = np.nan

        with mock.patch.object(step, "average_gradients", poisoned), pytest.raises(FloatingPointError) as error:
            train_rank(world, config, layout, options)
        return str(error.value)

    for layout in (Layout(pp=2), Layout(dp=2, zero=2), Layout(dp=3, zero=3)):
        config = replace(CONFIG, layers=2)
        errors = ranks(layout.world_size).run(error_of, config, layout, RunOptions())
        assert len(set(errors)) == 1, errors
        assert errors[0].startswith("training diverged in step 0: the gradient of ")
        assert " is not finite: " in errors[0]


def test_stopping_early(ranks):
    whole = run(ranks(1), CONFIG, Layout(), RunOptions(step_digests=True))
    part = run(ranks(1), CONFIG, Layout(), RunOptions(step_digests=True, stop_after=1)).ranks[0]
    assert part.losses == whole.losses[:2] and part.step_digests == whole.ranks[0].step_digests[:2]
    assert set(part.arrays) == set(state(*by_hand(CONFIG)[1:]))


def test_traffic_is_that_of_the_training_alone(ranks):
    def noisy(world, config, layout, options):
        md.all_reduce(np.ones(1000), group=world)
        return train_rank(world, config, layout, options)

    quiet = run(ranks(2), CONFIG, Layout(dp=2))
    other = run(ranks(2), CONFIG, Layout(dp=2), rank_function=noisy)
    assert quiet.as_dict()["traffic"] == other.as_dict()["traffic"]
