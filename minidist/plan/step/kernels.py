"""What one GPU computes in one layer for one micro-batch: FLOPs and bytes of each kernel, forward and backward.

n is the tokens of the micro-batch on this rank, h the width, t the tensor-parallel ranks, e the bytes of an element. A
product (m, k) x (k, n) has 2 m k n FLOPs and moves e (m k + k n + m n) bytes. Its backward is
two products of the same size: for the gradient of its input, and of its weight, which adds to the gradients that
earlier micro-batches have left (in float32, as Megatron-LM's ``gradient_accumulation_fusion`` does).

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
SMALL = ("fp8", "fp4")  # precisions of linear layers alone


@dataclass(frozen=True)
class Part:
    """A rank's part of the work: what decides how long its kernels take.

    Attributes:
        tokens: tokens of one micro-batch on a rank. Between the tensor-parallel regions it has 1/sp of them.
        tp: ranks that share heads and hidden units. sp: the same number with sequence parallelism, else 1.
        pairs: the share of all pairs of tokens whose scores a rank computes for its tokens: 1/2 where a causal mask's
            work is spread evenly.
    """

    tokens: float
    tp: int
    sp: int
    ep: int
    attention: str
    pairs: float


@dataclass(frozen=True, eq=False)  # compared, and hashed for the caches below, by identity
class Machine:
    """What kernels run on: a chip, its efficiencies, the precision of products, and the bytes of an element."""

    chip: Accelerator
    efficiency: Efficiency
    precision: str
    element: int

    def product(self, m: float, k: float, n: float, count: float = 1, more_bytes: float = 0.0) -> float:
        """Seconds of ``count`` products (m, k) x (k, n): of arithmetic or of memory, whichever takes longer."""
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
    """Forward and backward of one micro-batch, each in Seconds; ``core`` is attention's share of forward."""

    forward: Seconds
    backward: Seconds


def linear_layers(model: ModelShape, part: Part) -> list[tuple[float, float, float]]:
    """The products of attention's linear layers on one rank: (m, k, n) each."""
    n, h, t = part.tokens, model.width, part.tp
    if model.latent is None:
        return [(n, h, h / t + 2 * model.key_width_on(t)), (n, h / t, h)]
    latent, (scored, valued) = model.latent, model.score_widths
    down = latent.queries + latent.keys_values + latent.rope
    up_keys = 2 * valued / t
    return [(n, h, down), (n, latent.queries, scored / t), (n, latent.keys_values, up_keys), (n, valued / t, h)]


def mlp_layers(model: ModelShape, part: Part, hidden: float, tokens: float) -> list[tuple[float, float, float]]:
    """Products of an MLP with ``hidden`` hidden units, for ``tokens`` tokens: (m, k, n) each."""
    inner = (2 if model.gated else 1) * hidden / part.tp
    return [(tokens, model.width, inner), (tokens, hidden / part.tp, model.width)]


@lru_cache(maxsize=1 << 14)
def block_compute(model: ModelShape, part: Part, machine: Machine, sparse: bool) -> Compute:
    """One layer, with experts if it is ``sparse``; their tokens are taken to be spread evenly."""
    products = linear_layers(model, part)
    groups = [(products, 1)]
    hidden = model.mlp_hidden
    if sparse and (moe := model.moe):
        local = moe.experts // part.ep
        routed = part.tokens * moe.top_k / local  # tokens of each local expert: ep ranks send theirs
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
    """Scores, softmax, dropout and weighted sum by four kernels; every pair is computed, hidden or not."""
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
    """Norms; bias, dropout and residual; activation; rotary positions."""
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
    """The last norm, the logits and the loss."""
    n, vocabulary, e = part.tokens, model.vocab / part.tp, machine.element
    if machine.precision in SMALL:  # models trained in 8 bits keep the head in 16
        machine = Machine(machine.chip, machine.efficiency, "bf16", e)
    product = machine.product(n, model.width, vocabulary)
    weights = machine.product(n, model.width, vocabulary, 1, 2 * GRADIENT * model.width * vocabulary)
    forward = machine.memory((e + 4 * LOSS) * n * vocabulary)  # read, made float32, its maximum, its sum
    backward = machine.memory((LOSS + e) * n * vocabulary)
    norm = machine.memory(2 * e * n * model.width / part.sp)
    return Compute(Seconds(product, 0.0, forward + norm), Seconds(product + weights, 0.0, backward + 2 * norm))
