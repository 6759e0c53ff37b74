"""Records of routers in real runs: their choices, and how many tokens each expert got."""

from unittest.mock import patch

import numpy as np

import minidist as md
from minidist.analysis.traffic import ExpertLoad
from minidist.nn.moe.router import Router
from minidist.train.measuring.evaluate import full_model


def load_of(run) -> ExpertLoad:
    """Return the number of tokens that chose each expert, by step and layer, over all ranks of a run."""
    return ExpertLoad.of(run.ranks[0].expert_counts)


def trained_model(config, run):
    """Return the GPT that a run ended on."""
    return full_model(config, run.ranks[0].arrays, None)


def choices_of(model, text: bytes) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each layer the weights and the experts, both (N, k), that the bytes of ``text`` choose."""
    choices, correct = [], Router.forward

    def forward(self, x):
        weights, chosen = correct(self, x)
        choices.append((weights.data.copy(), chosen))
        return weights, chosen

    tokens = np.frombuffer(text, np.uint8)[None]  # (1, T)
    with patch.object(Router, "forward", forward), md.no_grad():
        model(tokens, tokens)
    return choices


def record_choices(world, config, layout, options=None):
    """Train; return the result, and for each call of a router on this rank its layer and the experts (N, k)."""
    correct, seen = Router.choose, []

    def choose(self, scores):
        chosen = correct(self, scores)
        seen.append((self.layer, chosen))
        return chosen

    with patch.object(Router, "choose", choose):
        return md.train_rank(world, config, layout, options or md.RunOptions()), seen


def everyone_to_rank_0(world, config, layout, options):
    """Train with every token on experts 0 and 1."""
    with patch.object(Router, "choose", lambda self, scores: np.tile([0, 1], (len(scores), 1))):
        return md.train_rank(world, config, layout, options)
