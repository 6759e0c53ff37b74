"""One worker of the plain loops that loosened steps are held against: a model and its optimizer, without messages."""

from collections.abc import Iterable

from minidist.nn.data import load_corpus
from minidist.nn.gpt import GPT
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import SGD, AdamW, average_gradients, warmup_cosine
from minidist.train.config import TrainConfig
from minidist.train.share import batch_of


class Plain:
    def __init__(self, config: TrainConfig) -> None:
        self.config, self.corpus = config, load_corpus(config.text, config.context)
        self.model = GPT(config.model, seed=config.seed)
        self.parameters = dict(self.model.named_parameters())
        kind = {"adamw": AdamW, "sgd": SGD}[config.optimizer]
        self.optimizer = kind(self.model.parameters(), config.lr, weight_decay=config.weight_decay)

    def compute(self, step: int, micro_batches: Iterable[int]) -> list[float]:
        """Leave the sum of these micro-batches' gradients in the parameters; return their losses."""
        losses = []
        self.model.zero_grad()
        for index in micro_batches:
            loss = self.model(*batch_of(self.corpus, self.config, step, index))
            loss.backward()
            losses.append(float(loss.data))
        return losses

    def update(self, step: int, count: int, workers: int = 1) -> None:
        """Take a step with the mean of so many micro-batches' gradients, at one worker's part of the learning rate."""
        average_gradients(self.model.parameters(), count)
        clip_grad_norm(self.model.parameters(), self.config.clip)
        lr = warmup_cosine(step, self.config.steps, self.config.lr, self.config.warmup, self.config.lr / 10)
        self.optimizer.lr = lr / workers
        self.optimizer.step()
