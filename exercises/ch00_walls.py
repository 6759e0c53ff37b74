"""Chapter 0: one GPU is never enough. Worksheets: every function returns a number, or a few.

``minidist check 0`` judges, ``minidist check --hint 0.4`` helps. A GB is 10^9 bytes, as on data sheets.
"""

from math import ceil

DAY = 24 * 3600  # seconds
YEAR = 365 * DAY  # seconds


# 0.1  The memory wall
#
# Three of the four buckets, for each parameter of the model:
#
#   recipe   weights   gradients   optimizer
#   mixed    bf16      bf16        a float32 copy of the weights, and AdamW's two running means in float32
#   fp32     float32   float32     AdamW's two running means in float32
#   bf16     bf16      bf16        AdamW's two running means in float32; no copy of the weights


def memory_buckets(parameters: int, recipe: str) -> dict[str, int]:
    """The bytes of a model's weights, gradients and optimizer states; activations are not counted.

    Args:
        parameters: how many the model has.
        recipe: "mixed", "fp32" or "bf16", as in the table above.

    Returns:
        A dict with the keys "parameters", "gradients" and "optimizer", each a number of bytes.
    """
    raise NotImplementedError("task 0.1")


def devices_needed(parameters: int, recipe: str, device_bytes: int) -> int:
    """How many devices of ``device_bytes`` bytes it takes at least to hold these three buckets, shared out evenly."""
    raise NotImplementedError("task 0.1")


# 0.2  The compute wall
#
# ``peak`` is what one GPU could do at best, in FLOP/s. ``utilisation`` is the share of it that useful work attains,
# between 0 and 1: the MFU, model FLOPs utilisation.


def training_flops(parameters: float, tokens: float) -> float:
    """The FLOPs of training on so many tokens, forward and backward, by the rule of thumb: attention is not counted."""
    raise NotImplementedError("task 0.2")


def gpu_years(flops: float, peak: float, utilisation: float) -> float:
    """How many years one GPU takes for so many FLOPs. A year has 365 days."""
    raise NotImplementedError("task 0.2")


def days_on_cluster(flops: float, gpus: int, peak: float, utilisation: float) -> float:
    """How many days so many GPUs take, if they share the work evenly."""
    raise NotImplementedError("task 0.2")


# 0.3  The roofline
#
# A piece of work has so many FLOPs for each byte that it moves to or from memory: its arithmetic intensity. Moving and
# computing go on at the same time. ``peak`` is in FLOP/s, ``bandwidth`` in bytes/s.


def matmul_intensity(m: int, k: int, n: int, bytes_per_element: int) -> float:
    """FLOPs per byte of a matrix product (m, k) @ (k, n) -> (m, n).

    A multiplication and an addition are two FLOPs. Both operands are read once, and the result is written once.
    """
    raise NotImplementedError("task 0.3")


def attainable_flops(intensity: float, peak: float, bandwidth: float) -> float:
    """The FLOP/s that work of this intensity attains at best."""
    raise NotImplementedError("task 0.3")


def ridge(peak: float, bandwidth: float) -> float:
    """The least intensity, in FLOPs per byte, at which work can attain the peak."""
    raise NotImplementedError("task 0.3")


# 0.4  Tiling


def tiled_traffic(n: int, tile: int) -> int:
    """How many elements of A and B, together, the tiled product C = A @ B of two n x n matrices loads.

    Each of A, B and C is cut into tiles of ``tile`` x ``tile``. Where ``tile`` does not divide n, the last tile of a
    row or column is smaller, and has only the elements that are left. For each tile of C, the tiles of A in the same
    rows and those of B in the same columns are loaded, pair by pair. Nothing that was loaded is kept for the next tile
    of C. A tile counts as many elements as it has. Writing C does not count.

    Args:
        n: at least 1.
        tile: at least 1; may be larger than n.

    Returns:
        A whole number.
    """
    raise NotImplementedError("task 0.4")


# 0.5  The interconnect cliff
#
# From here on ``bandwidth`` is bytes/s, one way, for each GPU.


def nvlink_bandwidth(data_sheet: float) -> float:
    """Bytes/s one way, where the data sheet gives bytes/s with both directions added up, as NVLink's does."""
    raise NotImplementedError("task 0.5")


def infiniband_bandwidth(data_sheet: float) -> float:
    """Bytes/s one way, where the data sheet gives bits/s one way, as InfiniBand's does."""
    raise NotImplementedError("task 0.5")


def all_reduce_seconds(nbytes: float, gpus: int, bandwidth: float) -> float:
    """Seconds to sum the gradients of all GPUs, of which each has ``nbytes`` bytes (call it M).

    With N GPUs each sends 2 (N-1)/N M bytes, as chapter 3 shows, and receives as many at the same time.
    """
    raise NotImplementedError("task 0.5")


def step_seconds(compute: float, communication: float, overlap: bool) -> float:
    """Seconds of a step: first compute, then communicate; or, with ``overlap``, both at the same time throughout."""
    raise NotImplementedError("task 0.5")


def least_tokens(
    parameters: int, bytes_per_gradient: int, gpus: int, bandwidth: float, peak: float, utilisation: float
) -> int:
    """The least number of tokens that each GPU must have in a step for the all-reduce to hide behind its computation.

    Every GPU holds the whole model and computes 6 FLOPs for each parameter and each of its own tokens, at ``peak``
    times ``utilisation``. It hides if the communication takes no longer than the computation.

    Args:
        parameters: of the model; each has a gradient of ``bytes_per_gradient`` bytes.

    Returns:
        A whole number. (How does it depend on the size of the model?)
    """
    raise NotImplementedError("task 0.5")
