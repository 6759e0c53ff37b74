"""Kernels of one GPU for one layer and one micro-batch: FLOPs and bytes of each, forward and backward.

n is the number of tokens of the micro-batch on this rank, h the width, t the number of tensor-parallel ranks, e the
bytes of an element. A product (m, k) x (k, n) has 2 m k n FLOPs and moves e (m k + k n + m n) bytes. Its backward is
two products of the same size: for the gradient of its input, and for that of its weight, which adds to the gradients of
earlier micro-batches (in float32, as Megatron-LM's ``gradient_accumulation_fusion`` does).

Elementwise kernels are fused as in Megatron-LM: bias with GELU; bias, dropout and residual; scale, mask and softmax.
Standard attention writes the scores of all pairs of tokens to memory. Flash attention (Dao, 2023, arXiv 2307.08691)
does not, leaves out the pairs that the causal mask hides, and computes scores again in backward: five products where
forward has two.
"""

from dataclasses import dataclass
from functools import lru_cache

from minidist.plan.cluster.efficiency import Efficiency
from minidist.plan.cluster.hardware import Accelerator
from minidist.plan.cluster.roofline import peak_flops
from minidist.plan.models import ModelShape

GRADIENT = 4  # bytes of a gradient while micro-batches add to it
LOSS = 4  # bytes of a logit in the loss
SMALL = ("fp8", "fp4")  # precisions that only linear layers use


@dataclass(frozen=True)
class Part:
    """A rank's part of the work on a micro-batch, on which the time of its kernels depends.

    Attributes:
        tokens: tokens of one micro-batch on a rank. Between the tensor-parallel regions it has 1/sp of them.
        tp: number of ranks that share heads and hidden units. sp: the same with sequence parallelism, else 1.
        ep: number of ranks that share the experts.
        pairs: share of all pairs of tokens whose scores a rank computes for its tokens: 1/2 if a causal mask's work is
            spread evenly.
    """

    tokens: float
    tp: int
    sp: int
    ep: int
    attention: str
    pairs: float


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, for the caches below
class Machine:
    """Chip that kernels run on, with its efficiencies, the precision of products, and the bytes of an element."""

    chip: Accelerator
    efficiency: Efficiency
    precision: str
    element: int

    def product(self, m: float, k: float, n: float, count: float = 1, more_bytes: float = 0.0) -> float:
        """Seconds of ``count`` products (m, k) x (k, n): arithmetic or memory, whichever takes longer."""
        flops = 2.0 * m * k * n
        if not flops:
            return 0.0
        peak = peak_flops(self.chip, self.precision) * self.efficiency.of_product(flops * count)
        return count * max(flops / peak, self.memory(self.element * (m * k + k * n + m * n) + more_bytes))

    def memory(self, nbytes: float) -> float:
        """Seconds of a kernel that only moves bytes."""
        return nbytes / (self.chip.memory_bandwidth * self.efficiency.memory)

    def flash(self, flops: float, share: float) -> float:
        """Seconds of flash attention's products, always in 16 bits."""
        precision = "bf16" if self.precision in SMALL else self.precision
        return flops / (peak_flops(self.chip, precision) * share)


@dataclass(frozen=True)
class Seconds:
    """Seconds of one layer or head: products, attention between its linear layers, and elementwise kernels."""

    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0

    @property
    def total(self) -> float:
        return self.products + self.attention + self.elementwise

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(
            self.products + other.products, self.attention + other.attention, self.elementwise + other.elementwise
        )

    def __mul__(self, factor: float) -> "Seconds":
        return Seconds(self.products * factor, self.attention * factor, self.elementwise * factor)


@dataclass(frozen=True)
class Compute:
    """Seconds of forward and backward of one micro-batch, in one layer or the head."""

    forward: Seconds
    backward: Seconds


def linear_layers(model: ModelShape, part: Part) -> list[tuple[float, float, float]]:
    """Return the products of attention's linear layers on one rank: (m, k, n) each."""
    n, h, t = part.tokens, model.width, part.tp
    if model.latent is None:
        return [(n, h, h / t + 2 * model.key_width_on(t)), (n, h / t, h)]
    latent, (scored, valued) = model.latent, model.score_widths
    down = latent.queries + latent.keys_values + latent.rope
    up_keys = 2 * valued / t
    return [(n, h, down), (n, latent.queries, scored / t), (n, latent.keys_values, up_keys), (n, valued / t, h)]


def mlp_layers(model: ModelShape, part: Part, hidden: float, tokens: float) -> list[tuple[float, float, float]]:
    """Return the products of an MLP with ``hidden`` hidden units, for ``tokens`` tokens: (m, k, n) each."""
    inner = (2 if model.gated else 1) * hidden / part.tp
    return [(tokens, model.width, inner), (tokens, hidden / part.tp, model.width)]


@lru_cache(maxsize=1 << 14)
def block_compute(model: ModelShape, part: Part, machine: Machine, sparse: bool) -> Compute:
    """Compute the time of one layer, with experts if ``sparse``; tokens are assumed to be spread evenly over them."""
    products = linear_layers(model, part)
    groups = [(products, 1)]
    hidden = model.mlp_hidden
    if sparse and (moe := model.moe):
        local = moe.experts // part.ep
        routed = part.tokens * moe.top_k / local  # tokens of each local expert, from all ep ranks
        groups.append((mlp_layers(model, part, moe.hidden, routed), local))
        if moe.shared:
            groups.append((mlp_layers(model, part, moe.shared * moe.hidden, part.tokens), 1))
        groups.append(([(part.tokens, model.width, moe.experts)], 1))
        hidden = (moe.top_k + moe.shared) * moe.hidden
    else:
        groups.append((mlp_layers(model, part, hidden, part.tokens), 1))
    forward = sum(machine.product(*sizes, count) for layers, count in groups for sizes in layers)
    backward = forward + sum(
        machine.product(m, k, n, count, 2 * GRADIENT * k * n) for layers, count in groups for m, k, n in layers
    )
    scores = _standard if part.attention == "standard" else _flash
    (core, core_backward), (small, small_backward) = (
        scores(model, part, machine),
        _elementwise(model, part, machine, hidden),
    )
    return Compute(Seconds(forward, core, small), Seconds(backward, core_backward, small_backward))


def _standard(model: ModelShape, part: Part, machine: Machine) -> tuple[float, float]:
    """Seconds of forward and backward: four kernels, for scores, softmax, dropout and weighted sum, of all pairs."""
    e, mask = machine.element, int(model.dropout)
    scored, valued = (width / model.heads for width in model.score_widths)
    heads = model.heads / part.tp
    pairs = heads * part.tokens * model.context  # numbers in an array of scores
    rows = part.tokens
    both = machine.product(rows, scored, model.context, heads) + machine.product(rows, model.context, valued, heads)
    softmax = machine.memory(2 * e * pairs)
    dropout = mask * machine.memory((2 * e + 1) * pairs)
    return both + softmax + dropout, 2 * both + machine.memory(3 * e * pairs) + dropout


def _flash(model: ModelShape, part: Part, machine: Machine) -> tuple[float, float]:
    flops = 2.0 * part.tokens * model.context * part.pairs * sum(model.score_widths) / part.tp
    share = machine.efficiency
    return machine.flash(flops, share.flash_forward), machine.flash(2.5 * flops, share.flash_backward)


def _elementwise(model: ModelShape, part: Part, machine: Machine, hidden: float) -> tuple[float, float]:
    """Seconds of forward and backward: norms; bias, dropout and residual; activation; rotary positions."""
    e, mask, n = machine.element, int(model.dropout), part.tokens
    stream = n * model.width / part.sp  # numbers between the tensor-parallel regions
    inner = n * hidden / part.tp
    rotated = 0 if model.learned_positions else n * (model.width / part.tp + model.key_width_on(part.tp))
    forward = 2 * 2 * e * stream + 2 * (3 * e + mask) * stream
    forward += (3 if model.gated else 2) * e * inner + 2 * e * rotated
    backward = 2 * 4 * e * stream + 2 * mask * (2 * e + 1) * stream
    backward += (5 if model.gated else 3) * e * inner + 2 * e * rotated
    return machine.memory(forward), machine.memory(backward)


@lru_cache(maxsize=1 << 14)
def head_compute(model: ModelShape, part: Part, machine: Machine) -> Compute:
    """Compute the time of the last norm, the logits and the loss."""
    n, vocabulary, e = part.tokens, model.vocab / part.tp, machine.element
    if machine.precision in SMALL:  # models trained in 8 bits keep the head in 16
        machine = Machine(machine.chip, machine.efficiency, "bf16", e)
    product = machine.product(n, model.width, vocabulary)
    weights = machine.product(n, model.width, vocabulary, 1, 2 * GRADIENT * model.width * vocabulary)
    forward = machine.memory((e + 4 * LOSS) * n * vocabulary)  # read, made float32, its maximum, its sum
    backward = machine.memory((LOSS + e) * n * vocabulary)
    norm = machine.memory(2 * e * n * model.width / part.sp)
    return Compute(Seconds(product, 0.0, forward + norm), Seconds(product + weights, 0.0, backward + 2 * norm))
