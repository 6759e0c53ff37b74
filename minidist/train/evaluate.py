"""What a trained model can do: its loss on held-out text. Run on the full model, in one process."""

from minidist import backend
from minidist.nn.data import Corpus, validation_batches
from minidist.nn.gpt import GPT
from minidist.nn.tensor import no_grad
from minidist.train.config import TrainConfig
from minidist.train.parallelize import ParallelModel


def full_model(model: ParallelModel, config: TrainConfig) -> GPT:
    """The model with the weights that all ranks have trained together. Called by all of them."""
    arrays = model.full_state({parameter.name: parameter.data for parameter in model.trained})
    full = GPT(config.model)
    for parameter in full.parameters():
        parameter.data = arrays[parameter.name]
    return full


@no_grad()
def validation_loss(model: GPT, corpus: Corpus, config: TrainConfig) -> float:
    """The mean loss over the held-out text, in nats per token."""
    losses = [
        (float(model(backend.from_host(tokens), backend.from_host(targets)).item()), tokens.size)
        for tokens, targets in validation_batches(corpus, 8, config.context)
    ]
    return sum(loss * tokens for loss, tokens in losses) / sum(tokens for _, tokens in losses)
