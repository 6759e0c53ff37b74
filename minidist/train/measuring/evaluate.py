"""What a trained model can do: its loss on held-out text. Run on the full model, in one process."""

from minidist import backend
from minidist.nn.data import Corpus, validation_batches
from minidist.nn.gpt import GPT
from minidist.nn.moe.balance import Balance
from minidist.nn.tensor import no_grad
from minidist.train.config import TrainConfig


def full_model(config: TrainConfig, arrays: dict, balance: Balance | None = None) -> GPT:
    """The model with these weights, full arrays by parameter name, and the routers' biases of ``balance``."""
    model = GPT(config.model)
    if balance is not None:
        model.balance.bias = balance.bias
    for parameter in model.parameters():
        parameter.data = arrays[parameter.name]
    return model


@no_grad()
def validation_loss(model: GPT, corpus: Corpus, config: TrainConfig) -> float:
    """The mean loss over the held-out text, in nats per token."""
    losses = [
        (float(model(backend.from_host(tokens), backend.from_host(targets)).item()), tokens.size)
        for tokens, targets in validation_batches(corpus, 8, config.context)
    ]
    return sum(loss * tokens for loss, tokens in losses) / sum(tokens for _, tokens in losses)
