"""The model of a config: the one place that knows all architectures."""

from minidist.backend import xp
from minidist.nn.config import GPTConfig
from minidist.nn.gpt import GPT
from minidist.nn.llama import Llama

MODELS = {"gpt2": GPT, "llama": Llama}


def model_of(config: GPTConfig, seed: int | None = 0, dtype=xp.float32) -> GPT:
    """Return the model of a config. Arguments: see ``GPT``."""
    return MODELS[config.arch](config, seed, dtype)
