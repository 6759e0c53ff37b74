"""Measurements after training: the loss on held-out text, and how many FLOP/s a rank can reach.

Utilization (MFU) is measured against that peak. A GPU's data sheet states it. A CPU's says little: its clock falls
under load, and cores share caches and memory. So the peak is measured: matrix products of a size that suits the
machine, on as many cores as the run has. They are in float32; on a GPU, those of a 16-bit run use the tensor cores, as
the run does.
"""

import time
from collections.abc import Sequence
from math import log

from minidist import backend
from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import barrier
from minidist.comm.transports.cores import cores
from minidist.data.samples import DocumentCorpus
from minidist.nn.data import Corpus, generate, validation_batches
from minidist.nn.gpt import GPT
from minidist.nn.loss import IGNORED
from minidist.nn.models import model_of
from minidist.nn.moe.balance import Balance
from minidist.nn.precision.policy import current
from minidist.nn.tensor import no_grad
from minidist.train.config import TrainConfig
from minidist.train.fingerprint import state
from minidist.train.hooks import StepHook
from minidist.train.result import RunOptions
from minidist.train.share import Share


class Evaluation(StepHook):
    """Hook for what the options ask for after training: the peak, the arrays, the validation loss, a sample."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options

    def begin_run(self, share: Share) -> None:
        self.share = share

    def end_run(self) -> dict:
        options, share, found = self.options, self.share, {}
        if options.measure_peak:
            found["peak_flops"] = measured_peak(share.world)
        if options.stop_after is not None:
            arrays = state(share.gpt, share.optimizer, share.model.full_state)
            found["arrays"] = {name: backend.to_host(array).copy() for name, array in arrays.items()}
        if options.validate or options.sample:
            weights = share.model.full_state({parameter.name: parameter.data for parameter in share.model.trained})
            if share.world.rank == 0:
                found |= self.run_model(full_model(share.config, weights, share.gpt.balance))
        return found

    def run_model(self, trained: GPT) -> dict:
        options, share, found = self.options, self.share, {}
        if options.progress:  # it may take long, and silence would count as hanging
            trained.blocks[0].forward_pre_hook = lambda: share.world.report(("evaluating",))
        if options.validate:
            found["validation_loss"] = loss = validation_loss(trained, share.corpus, share.config)
            found["bits_per_byte"] = loss / log(2) / share.corpus.bytes_per_token
        if options.sample:
            prompt, seed, tokenizer = prompt_of(share.config), share.config.seed, share.corpus.tokenizer
            found["sample"] = generate(trained, prompt, options.sample, seed, tokenizer=tokenizer)
        return found


def prompt_of(config: TrainConfig) -> bytes:
    """Return the prompt of a sample. With a tokenizer it ends without a space: the next word usually begins with it."""
    return b"The " if config.tokenizer is None else b"The"


def full_model(config: TrainConfig, arrays: dict, balance: Balance | None) -> GPT:
    """Return the model with these weights, full arrays by parameter name, and the routers' biases of ``balance``."""
    model = model_of(config.model)
    if balance is not None and model.balance is not None:
        model.balance.bias = balance.bias
    for parameter in model.parameters():
        parameter.data = arrays[parameter.name]
    return model


@no_grad()
def validation_loss(model: GPT, corpus: Corpus | DocumentCorpus, config: TrainConfig) -> float:
    """Return the mean loss over the held-out text, in nats per token."""
    if isinstance(corpus, Corpus):
        batches = validation_batches(corpus, 8, config.context)
    else:
        batches = corpus.validation_batches(8)
    total = count = 0
    for tokens, targets, *documents in batches:
        loss = model(backend.from_host(tokens), backend.from_host(targets), None, *documents)
        total += float(loss.item()) * targets.size
        count += int((targets != IGNORED).sum())
    return total / count


SIZES = (256, 512, 1024)  # n of the products (n, n) @ (n, n); which is fastest depends on the machine
GPU_SIZES = (2048, 4096)  # a GPU computes smaller ones faster than they can be started
SECONDS = 0.2


def measured_peak(world: ProcessGroup, seconds: float = SECONDS, sizes: Sequence[int] | None = None) -> float:
    """Measure this rank's peak in FLOP/s: a core's speed while all ranks compute, times this rank's share of the cores.

    All ranks call it together, and compute for the whole time. Products are timed by the rank's compute clock, which
    leaves out waiting for a core where the system reports it. The fastest product of all sizes counts, because nothing
    has interrupted it. With more ranks than cores a rank's share is cores / ranks: the sum over all ranks is what the
    machine can do, and a rank that computes while others wait may exceed its own peak. On a GPU, which ranks may share,
    the time of a product is the time until it is done.

    Args:
        world: all ranks of the run, on one machine.
        seconds: time to measure for; each size runs at least once.
        sizes: n of the products (n, n) @ (n, n); None for those that suit the device.
    """
    clock, on_host = world.transport.clock, backend.on_host(xp.empty(0))
    policy = current()

    def factor(n: int):
        return policy.factor(xp.ones((1, n, n), xp.float32))

    sizes = sizes or (SIZES if on_host else GPU_SIZES)
    products = [(n, factor(n), factor(n), xp.empty((1, n, n), xp.float32)) for n in sizes]

    def multiply(a, b, product) -> None:
        policy.matmul(a, b, product)
        backend.to_host(product[:, :1, :1])  # a GPU has computed it by then

    for _, *arrays in products:  # the first product starts the library, and touches the memory
        multiply(*arrays)
    barrier(world)
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds or not best:
        for n, *arrays in products:
            before, computed = clock.seconds(), time.thread_time()
            multiply(*arrays)
            # a thread that loses its core while it reads the clock may read too little; it computed at least this long
            took = max(clock.seconds() - before, time.thread_time() - computed, 1e-9)
            best = max(best, 2 * n**3 / took)
    return best * (share_of_cores(world.size, cores()) if on_host else 1.0)


def share_of_cores(ranks: int, cores: int) -> float:
    """Return the share of a core that each of ``ranks`` busy ranks gets."""
    return min(1.0, cores / ranks)
