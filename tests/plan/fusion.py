"""Chains of elementwise operations: how often they pass over memory as kernels of their own, and as one fused kernel.

An elementwise operation has an intensity far below any ridge point, so its time is that of its bytes. A kernel of its
own reads its inputs from memory and writes its outputs. A fused kernel reads what comes from outside the chain, writes
what is needed after it, and keeps the rest in registers.
"""

from dataclasses import dataclass, field

from minidist.plan.cluster.hardware import Accelerator


@dataclass(frozen=True)
class Kernel:
    """One operation, and the arrays that it reads and writes, by name."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """Kernels in their order.

    Attributes:
        outputs: the arrays that are needed afterwards.
        bytes_each: of one element, where an array has fewer or more than the others: a mask has one.
    """

    name: str
    kernels: tuple[Kernel, ...]
    outputs: tuple[str, ...]
    bytes_each: dict[str, float] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arrays that come from outside: read before they are written."""
        written: set[str] = set()
        found: dict[str, None] = {}
        for kernel in self.kernels:
            found |= dict.fromkeys(name for name in kernel.reads if name not in written)
            written |= set(kernel.writes)
        return tuple(found)

    @property
    def unfused(self) -> list[str]:
        """The array of each pass over memory, a kernel after the other."""
        return [name for kernel in self.kernels for name in (*kernel.reads, *kernel.writes)]

    @property
    def fused(self) -> list[str]:
        """Arrays that one fused kernel reads and writes."""
        return [*self.inputs, *self.outputs]

    def nbytes(self, elements: int, bytes_each: float = 2, fused: bool = False) -> float:
        """Bytes moved for arrays of so many elements."""
        passes = self.fused if fused else self.unfused
        return elements * sum(self.bytes_each.get(name, bytes_each) for name in passes)

    def seconds_saved(
        self, accelerator: Accelerator, elements: int, bytes_each: float = 2, memory_efficiency: float = 1.0
    ) -> float:
        """By fusion, where memory bandwidth is the limit. Launching fewer kernels saves a few microseconds more."""
        saved = self.nbytes(elements, bytes_each) - self.nbytes(elements, bytes_each, fused=True)
        return saved / (accelerator.memory_bandwidth * memory_efficiency)


def _kernels(*lines: str) -> tuple[Kernel, ...]:
    """Kernels written as ``name: reads -> writes``."""
    found = []
    for line in lines:
        name, _, arrays = line.partition(": ")
        reads, _, writes = arrays.partition("->")
        found.append(Kernel(name, tuple(reads.split()), tuple(writes.split())))
    return tuple(found)


# Vectors of one row, such as a bias, are too small to count.
BIAS_GELU = Chain("bias + GELU", _kernels("add bias: x -> h", "GELU: h -> y"), outputs=("y",))
DROPOUT_ADD_NORM = Chain(
    "dropout + add + LayerNorm",
    _kernels("dropout: x -> mask dropped", "add: dropped residual -> stream", "LayerNorm: stream -> y"),
    outputs=("mask", "stream", "y"),
    bytes_each={"mask": 1},
)
MASKED_SOFTMAX = Chain(
    "softmax with mask",
    _kernels(
        "scale: scores -> scores",
        "mask: scores -> scores",  # causal: from the indices
        "max: scores ->",
        "subtract: scores -> scores",
        "exp: scores -> weights",
        "sum: weights ->",
        "divide: weights -> weights",
    ),
    outputs=("weights",),
)
ADAMW = Chain(  # line by line as in adamw_update of nn/optim/optimizers.py
    "AdamW",
    _kernels(
        "m *= b1: m -> m",
        "s = g * (1 - b1): g -> s",
        "m += s: m s -> m",
        "v *= b2: v -> v",
        "s = g * g: g -> s",
        "s *= 1 - b2: s -> s",
        "v += s: v s -> v",
        "s = sqrt(v): v -> s",
        "s /= correction: s -> s",
        "s += eps: s -> s",
        "s = m / s: m s -> s",
        "s *= lr: s -> s",
        "w *= 1 - lr * decay: w -> w",
        "w -= s: w s -> w",
    ),
    outputs=("w", "m", "v"),
)
CHAINS = (BIAS_GELU, DROPOUT_ADD_NORM, MASKED_SOFTMAX, ADAMW)
