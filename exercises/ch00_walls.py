"""Chapter 0: one GPU is never enough. Worksheets: every function returns one number or a few.

``minidist check 0`` grades this file, ``minidist check --hint 0.4`` gives a hint. A GB is 10^9 bytes, as on
data sheets.
"""

from math import ceil

DAY = 24 * 3600  # seconds
YEAR = 365 * DAY  # seconds


# 0.1  The memory wall
#
# The dtypes in three of the four buckets, per parameter of the model:
#
#   recipe   weights   gradients   optimizer
#   mixed    bf16      bf16        a float32 copy of the weights, and AdamW's two running means in float32
#   fp32     float32   float32     AdamW's two running means in float32
#   bf16     bf16      bf16        AdamW's two running means in float32; no copy of the weights


def memory_buckets(parameters: int, recipe: str) -> dict[str, int]:
    """Bytes of a model's weights, gradients and optimizer states, without activations.

    Args:
        parameters: the model's number of parameters.
        recipe: "mixed", "fp32" or "bf16", as in the table above.

    Returns:
        The bytes under the keys "parameters", "gradients" and "optimizer".
    """
    raise NotImplementedError("task 0.1")


def devices_needed(parameters: int, recipe: str, device_bytes: int) -> int:
    """The least number of devices of ``device_bytes`` bytes each that hold these three buckets, divided evenly."""
    raise NotImplementedError("task 0.1")


# 0.2  The compute wall
#
# ``peak`` is the peak of one GPU in FLOP/s. ``utilisation`` is the share of the peak that useful work attains,
# between 0 and 1: the MFU, model FLOPs utilisation.


def training_flops(parameters: float, tokens: float) -> float:
    """FLOPs of training on ``tokens`` tokens, forward and backward, by the rule of thumb: attention is not counted."""
    raise NotImplementedError("task 0.2")


def gpu_years(flops: float, peak: float, utilisation: float) -> float:
    """The years that one GPU takes for ``flops`` FLOPs. A year has 365 days."""
    raise NotImplementedError("task 0.2")


def days_on_cluster(flops: float, gpus: int, peak: float, utilisation: float) -> float:
    """The days that ``gpus`` GPUs take if they divide the work evenly."""
    raise NotImplementedError("task 0.2")


# 0.3  The roofline
#
# Arithmetic intensity: the FLOPs of a piece of work per byte that it moves to or from memory. Memory traffic and
# computation overlap. ``peak`` is in FLOP/s, ``bandwidth`` in bytes/s.


def matmul_intensity(m: int, k: int, n: int, bytes_per_element: int) -> float:
    """FLOPs per byte of a matrix product (m, k) @ (k, n) -> (m, n).

    A multiplication and an addition are two FLOPs. Each operand is read once, and the result is written once.
    """
    raise NotImplementedError("task 0.3")


def attainable_flops(intensity: float, peak: float, bandwidth: float) -> float:
    """The highest FLOP/s that work of this intensity can attain."""
    raise NotImplementedError("task 0.3")


def ridge(peak: float, bandwidth: float) -> float:
    """The lowest intensity, in FLOPs per byte, at which work can attain the peak."""
    raise NotImplementedError("task 0.3")


# 0.4  Tiling


def tiled_traffic(n: int, tile: int) -> int:
    """Elements of A and B, together, that the tiled product C = A @ B of two n x n matrices loads.

    A, B and C are cut into tiles of ``tile`` x ``tile``. Where ``tile`` does not divide n, the last tile of a row or
    column holds only the remaining elements. For each tile of C, the tiles of A in the same rows and the tiles of B in
    the same columns are loaded, pair by pair. Nothing is kept for the next tile of C. A shorter tile at the edge counts
    only the elements that it has. Writing C does not count.

    Args:
        n: at least 1.
        tile: at least 1; may be larger than n.

    Returns:
        An integer.
    """
    raise NotImplementedError("task 0.4")


# 0.5  The interconnect cliff
#
# From here on ``bandwidth`` is bytes/s per GPU, one way.


def nvlink_bandwidth(data_sheet: float) -> float:
    """Bytes/s one way, from a data sheet in bytes/s that adds both directions, as NVLink's does."""
    raise NotImplementedError("task 0.5")


def infiniband_bandwidth(data_sheet: float) -> float:
    """Bytes/s one way, from a data sheet in bits/s one way, as InfiniBand's is."""
    raise NotImplementedError("task 0.5")


def all_reduce_seconds(nbytes: float, gpus: int, bandwidth: float) -> float:
    """Seconds to sum the gradients of all GPUs, M = ``nbytes`` bytes on each.

    Each of the N GPUs sends 2 (N-1)/N M bytes, as chapter 3 shows, and receives as many at the same time.
    """
    raise NotImplementedError("task 0.5")


def step_seconds(compute: float, communication: float, overlap: bool) -> float:
    """Seconds of a step: compute, then communicate; with ``overlap``, both at the same time throughout."""
    raise NotImplementedError("task 0.5")


def least_tokens(
    parameters: int, bytes_per_gradient: int, gpus: int, bandwidth: float, peak: float, utilisation: float
) -> int:
    """The least number of tokens per GPU and step with which the all-reduce can hide behind the computation.

    Every GPU holds the whole model. It computes 6 FLOPs per parameter and per token of its own, at ``peak`` times
    ``utilisation``. The all-reduce hides if it takes no longer than the computation.

    Args:
        parameters: the model's number of parameters; each has a gradient of ``bytes_per_gradient`` bytes.

    Returns:
        An integer. (How does it depend on the size of the model?)
    """
    raise NotImplementedError("task 0.5")
