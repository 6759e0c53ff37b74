"""A training run that records what a viewer cannot see: digests of all weights, and the loss of the server's."""

from hashlib import sha256
from unittest.mock import patch

import numpy as np

from minidist.backend import from_host
from minidist.comm.group import ProcessGroup
from minidist.nn.data import load_corpus, micro_batch
from minidist.nn.gpt import GPT
from minidist.nn.tensor import no_grad
from minidist.train import step, trainer
from minidist.train.config import TrainConfig
from minidist.train.hooks import StepHook
from minidist.train.layout import Layout
from minidist.train.result import RankResult, RunOptions
from minidist.train.share import ServedModel, Share

NEVER = 1_000_000  # a step that no run reaches; its samples measure the loss
SAMPLES = 128


def train_watched(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """Run ``train_rank``, and add to ``arrays`` of its result:

    - "weights": digests of the weights, uint64 (n,): on a server of each version, on another rank of the weights that
      each step begins with;
    - "losses": loss of a server's weights on fixed samples, float64 (steps + 1,): at first, and after each step.
    """
    weights, losses, train_step = [], Losses(*probe(config)), step.train_step

    def watched_update(model, *arguments) -> float:
        serves = isinstance(model, ServedModel)
        if not (serves and weights):
            weights.append(digest_of(model.model))
        loss = train_step(model, *arguments)
        if serves:
            weights.append(digest_of(model.model))
        return loss

    serves = world.rank >= layout.dp
    with patch.object(step, "train_step", watched_update):
        result = trainer.train_rank(world, config, layout, options, [losses] if serves else [])
    result.arrays |= {"weights": np.array(weights, np.uint64), "losses": np.array(losses.found)}
    return result


class Losses(StepHook):
    """Hook that measures the loss of the weights on fixed samples, before the first step and after each."""

    def __init__(self, tokens, targets) -> None:
        self.tokens, self.targets, self.found = tokens, targets, []

    def begin_run(self, share: Share) -> None:
        self.gpt = share.gpt
        self.found.append(loss_of(self.gpt, self.tokens, self.targets))

    def end_step(self, step: int, loss: float, last: bool) -> None:
        self.found.append(loss_of(self.gpt, self.tokens, self.targets))


def probe(config: TrainConfig) -> tuple:
    """Return the tokens and targets that measure the loss, uint8 (SAMPLES, context): the same for all seeds."""
    corpus = load_corpus(config.text, config.context)
    return tuple(map(from_host, micro_batch(corpus, 0, NEVER, 0, SAMPLES, config.context)))


@no_grad()
def loss_of(gpt: GPT, tokens, targets) -> float:
    return float(gpt(tokens, targets).item())


def digest_of(gpt: GPT) -> int:
    """Return a number that identifies the weights: 64 bits of their SHA-256."""
    found = sha256()
    for parameter in gpt.parameters():
        found.update(parameter.data.tobytes())
    return int.from_bytes(found.digest()[:8], "little")
