"""The roofline: the highest speed at which work can run, from its arithmetic intensity, in FLOPs per byte moved.

A chip computes while it moves bytes between its memory and its cores. Whichever takes longer decides: below the ridge
point memory bandwidth, above it arithmetic (Williams, Waterman and Patterson, "Roofline: an insightful visual
performance model for multicore architectures", 2009). No kernel reaches its roof; its efficiency is the share it gets.

Prefill (to read a prompt) and decode (to write one more token) are its two ends. Prefill multiplies each weight with
all tokens of the prompts. Decode multiplies it with one token of each sample, and reads the keys and values of all
tokens before: the KV cache. A larger batch shares the weights among more samples, but each sample has its own KV cache.
Matrix products and attention are counted, with every array read or written once. Attention is one kernel, as
FlashAttention: its scores stay on the chip. Elementwise operations are fused into the products next to them.
"""

from dataclasses import dataclass
from math import ceil, inf, isfinite

from minidist.nn.gpt import GPTConfig
from minidist.plan.cluster.hardware import Accelerator


@dataclass(frozen=True)
class Work:
    """Work of a kernel: FLOPs, and bytes that it reads from memory and writes to it."""

    flops: float
    nbytes: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs per byte moved. Infinite for work that moves nothing."""
        return self.flops / self.nbytes if self.nbytes else inf

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.nbytes + other.nbytes)


def ridge_point(accelerator: Accelerator, precision: str) -> float:
    """Intensity at which memory and arithmetic take equally long: peak FLOP/s over bytes/s."""
    return peak_flops(accelerator, precision) / accelerator.memory_bandwidth


def attainable_flops(accelerator: Accelerator, precision: str, intensity: float) -> float:
    """The roof at one intensity, in FLOP/s."""
    return min(peak_flops(accelerator, precision), intensity * accelerator.memory_bandwidth)


def kernel_seconds(
    accelerator: Accelerator,
    flops: float,
    nbytes: float,
    precision: str,
    flops_efficiency: float = 1.0,
    memory_efficiency: float = 1.0,
) -> float:
    """Seconds of work that computes and moves bytes at the same time: the longer of the two.

    Args:
        nbytes: bytes that cross the chip's memory bus, read and written.
        precision: a key of ``accelerator.flops``; any, where there are no FLOPs.
        flops_efficiency: share of the peak FLOP/s that arithmetic reaches, above 0 and at most 1.
        memory_efficiency: share of the memory bandwidth that a kernel reaches, above 0 and at most 1.

    Raises:
        ValueError: if the chip lacks the precision, or a number is out of range.
    """
    peak = peak_flops(accelerator, precision) if flops else inf  # a kernel without FLOPs needs no precision
    for name, value in (("flops", flops), ("nbytes", nbytes)):
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be 0 or more and finite, got {value:g}")
    for name, value in (("flops_efficiency", flops_efficiency), ("memory_efficiency", memory_efficiency)):
        if not 0 < value <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, got {value:g}")
    return max(flops / (peak * flops_efficiency), nbytes / (accelerator.memory_bandwidth * memory_efficiency))


def peak_flops(accelerator: Accelerator, precision: str) -> float:
    """Dense FLOP/s in a precision.

    Raises:
        ValueError: if the chip lacks the precision; names those that it has.
    """
    if precision not in accelerator.flops:
        raise ValueError(
            f"{accelerator.name} has no {precision} arithmetic: choose from {', '.join(accelerator.flops)}"
        )
    return accelerator.flops[precision]


def prefill(config: GPTConfig, batch: int, context: int, bytes_each: float = 2) -> dict[str, Work]:
    """Count the work of reading ``batch`` prompts of ``context`` tokens each, with logits for the last token of each.

    Args:
        bytes_each: bytes of one weight, activation, key or value.

    Returns:
        "products" and "attention" -> the work of each, taken as one kernel.
    """
    tokens, pairs = batch * context, batch * context * (context + 1) / 2  # a token attends to itself and those before
    return {
        "products": _products(config, tokens, batch, bytes_each),
        "attention": Work(
            4 * config.layers * config.width * pairs,  # scores and weighted sum, 2 FLOPs per multiply-add
            4 * config.layers * config.width * tokens * bytes_each,  # queries, keys and values in, outputs out
        ),
    }


def decode(config: GPTConfig, batch: int, context: int, bytes_each: float = 2) -> dict[str, Work]:
    """Count the work of one more token for each of ``batch`` samples; it attends to ``context`` tokens, itself too.

    Arguments and result: see ``prefill``.
    """
    return {
        "products": _products(config, batch, batch, bytes_each),
        "attention": Work(
            4 * config.layers * config.width * batch * context,
            config.layers * batch * (2 * context + 2) * config.width * bytes_each,  # KV cache; query in, output out
        ),
    }


def weight_count(config: GPTConfig) -> int:
    """Count the weights of all products. The head's are the embedding's; biases and norms are too few to matter.

    Raises:
        ValueError: for a model with experts.
    """
    if config.moe is not None:
        raise ValueError("prefill and decode are computed for dense models only: choose one without experts")
    return config.layers * sum(rows * columns for rows, columns in _shapes(config)) + config.width * _vocab(config)


def kv_bytes(config: GPTConfig, bytes_each: float = 2) -> float:
    """Bytes of the KV cache for one token of one sample."""
    return 2 * config.layers * config.width * bytes_each


def largest_batch(config: GPTConfig, accelerator: Accelerator, context: int, bytes_each: float = 2) -> int:
    """Largest number of samples of ``context`` tokens that fit into the memory next to the weights; 0 if none fits."""
    left = accelerator.memory - weight_count(config) * bytes_each
    return max(0, int(left // (kv_bytes(config, bytes_each) * context)))


def compute_bound_batch(
    config: GPTConfig, accelerator: Accelerator, precision: str, bytes_each: float = 2
) -> int | None:
    """Smallest batch for which the products of decode are compute-bound; None if no batch is large enough.

    Their FLOPs grow with the batch; their bytes are those of the weights, and a few more for each sample. Attention in
    decode has an intensity of 2 / ``bytes_each``, whatever the batch: far below every ridge point.
    """
    one, two = (_products(config, batch, batch, bytes_each) for batch in (1, 2))
    each, ridge = two.nbytes - one.nbytes, ridge_point(accelerator, precision)
    gained = one.flops - ridge * each
    return ceil(ridge * (one.nbytes - each) / gained) if gained > 0 else None


def _products(config: GPTConfig, tokens: int, logits: int, bytes_each: float) -> Work:
    """Count the matrix products with weights: blocks for ``tokens`` rows, the head for ``logits`` of them."""
    for name, number in (("batch", logits), ("tokens", tokens)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    weights, head = weight_count(config), config.width * _vocab(config)
    moved = config.layers * tokens * sum(rows + columns for rows, columns in _shapes(config))
    moved += logits * (config.width + _vocab(config))
    return Work(2 * (tokens * (weights - head) + logits * head), (weights + moved) * bytes_each)


def _shapes(config: GPTConfig) -> tuple[tuple[int, int], ...]:
    """Return the shapes of a block's weights: queries, keys and values; attention's output; the MLP's two layers."""
    width = config.width
    return (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)


def _vocab(config: GPTConfig) -> int:
    return -(-config.vocab // config.heads) * config.heads
