"""The settings of a model: its sizes, and those of its mixtures of experts."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, isfinite, isqrt

from minidist.nn.attention.tiled import SOFTMAXES

ARCHITECTURES = ("gpt2", "llama")
ATTENTION = ("plain", "tiled")
GATES = ("softmax", "sigmoid")
SCOPES = ("micro_batch", "global_batch")


def check_whole(settings, least: int, *names: str) -> None:
    """Raise ValueError unless these settings are integers of at least ``least`` and below 2^63."""
    for name in names:
        value = getattr(settings, name)
        if type(value) is not int or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if value >= 2**63:
            raise ValueError(f"{name} must be below 2^63")


def check_real(settings, at_least: float, *names: str, most: float = inf) -> None:
    """Raise ValueError unless these settings are finite numbers of at least ``at_least`` and below ``most``."""
    for name in names:
        if not at_least <= getattr(settings, name) < most:
            bound = f" and below {most:g}" if isfinite(most) else ""
            raise ValueError(
                f"{name} must be a finite number of at least {at_least:g}{bound}, not {getattr(settings, name)}"
            )


def check_one_of(settings, name: str, choices: Iterable) -> None:
    """Raise ValueError unless a setting is among the choices."""
    if getattr(settings, name) not in choices:
        raise ValueError(f"{name} must be one of {listed(choices)}, not {getattr(settings, name)!r}")


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, in ascending order."""
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return low + [number // n for n in reversed(low) if n * n != number]


def listed(values: Iterable) -> str:
    return ", ".join(map(str, values))


@dataclass(frozen=True)
class Experts:
    """Mixtures of experts."""

    experts: int = 0  # E, the number of experts in each mixture; 0 for a dense model
    top_k: int = 2  # k, the number of experts that each token uses
    expert_hidden: int = 0  # hidden units of one expert; 0 for as many as a dense MLP has
    shared_expert: int = 0  # hidden units of the expert that every token uses in addition; 0 for none
    moe_every: int = 1  # n: every n-th layer has experts


@dataclass(frozen=True)
class Routing:
    """Routing of tokens to experts, and balancing of the load."""

    gate: str = "softmax"  # function that turns the router's logits into scores
    capacity: float | None = None  # an expert takes at most this many times k N / E of N tokens; None for no limit
    aux_loss: float = 0.0  # coefficient of the loss that evens out the load; 0 for none
    aux_scope: str = "micro_batch"  # batch over which aux_loss evens out the load
    z_loss: float = 0.0  # coefficient of the loss that keeps the logits small; 0 for none
    bias_rate: float = 0.001  # change of an expert's bias per step, as in DeepSeek-V3; 0 for no biases
    expert_nodes: int = 1  # number of nodes; each has equally many experts
    route_nodes: int = 0  # number of nodes whose experts a token may use; 0 for all


@dataclass(frozen=True)
class MoEConfig(Routing, Experts):
    """Settings of a model's mixtures of experts. (The fields of a dataclass' last base come first.)

    Raises:
        ValueError: for an invalid value; the message says what would fit.
    """

    def __post_init__(self) -> None:
        check_whole(self, 1, "experts", "top_k", "moe_every", "expert_nodes")
        check_whole(self, 0, "expert_hidden", "shared_expert", "route_nodes")
        check_real(self, 0, "aux_loss", "z_loss", "bias_rate")
        check_one_of(self, "gate", GATES)
        check_one_of(self, "aux_scope", SCOPES)
        if self.top_k > self.experts:
            raise ValueError(
                f"top_k {self.top_k} is more than the number of experts, {self.experts}: choose top_k from 1 to "
                f"{self.experts}, or more experts"
            )
        if self.capacity is not None and not (isfinite(self.capacity) and self.capacity > 0):
            raise ValueError(
                f"capacity must be finite and above 0, not {self.capacity:g}: an expert takes at most this many times "
                "its even share of the tokens. Choose 1.25, say, or leave it out to drop none"
            )
        if self.experts % self.expert_nodes:
            raise ValueError(
                f"expert_nodes {self.expert_nodes} does not divide the {self.experts} experts: choose from "
                f"{listed(divisors(self.experts))}"
            )
        if self.route_nodes > self.expert_nodes:
            raise ValueError(
                f"route_nodes {self.route_nodes} is more than expert_nodes {self.expert_nodes}, over which experts are "
                f"spread: set expert_nodes to {self.route_nodes} or more, or route_nodes to 0 for all"
            )
        reachable = self.experts // self.expert_nodes * self.route_nodes
        if self.route_nodes and reachable < self.top_k:
            raise ValueError(
                f"route_nodes {self.route_nodes} leaves a token {reachable} of the {self.experts} experts, fewer than "
                f"top_k {self.top_k}: set route_nodes to {-(-self.top_k * self.expert_nodes // self.experts)} or more"
            )

    def rows_at_most(self, tokens: int) -> int | None:
        """Return the most of N tokens an expert takes: capacity k N / E rounded up, at most N; None for no limit."""
        if self.capacity is None:
            return None
        return min(tokens, ceil(Fraction(str(self.capacity)) * self.top_k * tokens / self.experts))  # as written


@dataclass(frozen=True)
class ModelSizes:
    """The model."""

    layers: int = 2
    heads: int = 4
    width: int = 64
    context: int = 64  # most tokens that the model sees at once
    vocab: int = 256  # number of tokens; those beyond the tokenizer's never occur
    dropout: float = 0.0
    attention: str = "plain"  # or tiled: see nn/attention/
    attention_tile: int = 128  # number of queries, and of keys, in a tile
    softmax: str = "exact"  # how tiles are merged: see nn/attention/
    sequence_chunks: int = 1  # parts of the context, each computed by itself: see nn/chunks.py


@dataclass(frozen=True)
class Architecture:
    """The architecture."""

    arch: str = "gpt2"  # or llama: see nn/llama.py
    hidden: int = 0  # hidden units of an MLP; 0 for 4 C, or with llama for 8/3 C, rounded up to a multiple of heads
    kv_heads: int = 0  # llama: heads of keys and values; 0 for as many as heads of queries
    rope_base: float = 10_000.0  # llama: base of the rotary angles
    tied: int = 0  # llama: 1 to share the embedding's weight with the output, as in GPT-2


@dataclass(frozen=True)
class GPTConfig(Architecture, ModelSizes):
    """Settings of a model, including its experts.

    Raises:
        ValueError: for an invalid value; the message says what would fit.
    """

    moe: MoEConfig | None = None  # the mixtures of experts that replace MLPs; None for a dense model

    def __post_init__(self) -> None:
        check_whole(self, 1, "vocab", "context", "layers", "heads", "width", "attention_tile", "sequence_chunks")
        check_whole(self, 0, "hidden", "kv_heads", "tied")
        check_one_of(self, "arch", ARCHITECTURES)
        check_one_of(self, "attention", ATTENTION)
        check_one_of(self, "softmax", SOFTMAXES)
        check_real(self, 0, "dropout", most=1)
        if self.width % self.heads:
            below = self.width // self.heads * self.heads
            nearest = " or ".join(str(width) for width in (below, below + self.heads) if width)
            raise ValueError(
                f"width {self.width} is not divisible by {self.heads} heads: each head has width / heads values. "
                f"Nearest widths that fit: {nearest}"
            )
        self.check_architecture()
        if self.context % self.sequence_chunks:
            raise ValueError(
                f"sequence_chunks {self.sequence_chunks} does not divide a context of {self.context} tokens: choose "
                f"from {listed(n for n in divisors(self.context) if n <= 64)}, or another context"
            )
        if self.softmax != "exact" and self.attention == "plain" and self.sequence_chunks == 1:
            raise ValueError(
                f"softmax {self.softmax} is a way to merge tiles, but plain attention has none: choose attention tiled"
            )
        if self.moe is None:
            return
        for name in ("expert_hidden", "shared_expert"):
            if getattr(self.moe, name) % self.heads:
                raise ValueError(
                    f"{name} {getattr(self.moe, name)} must be a multiple of the {self.heads} heads, which share the "
                    "hidden units of an expert evenly"
                )
        if self.layers < self.moe.moe_every:
            raise ValueError(
                f"moe_every {self.moe.moe_every} leaves no layer with experts in a model of {self.layers} layers: "
                f"choose from 1 to {self.layers}"
            )

    def check_architecture(self) -> None:
        """Raise ValueError for settings that this architecture does not have, or that do not fit its heads."""
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden {self.hidden} must be a multiple of the {self.heads} heads, which share the units"
            )
        if self.arch == "gpt2":
            for field in ("kv_heads", "rope_base", "tied"):
                if getattr(self, field) != getattr(Architecture, field):
                    raise ValueError(f"{field} is a setting of llama: add arch llama")
            return
        if self.width // self.heads % 2:
            raise ValueError(
                f"width {self.width} over {self.heads} heads leaves {self.width // self.heads} values for a head, but "
                f"rotary positions rotate pairs: choose a width that is a multiple of {2 * self.heads}"
            )
        if self.heads % self.groups:
            raise ValueError(
                f"kv_heads {self.kv_heads} does not divide the {self.heads} heads, which share them: choose from "
                f"{listed(divisors(self.heads))}"
            )
        if self.tied > 1:
            raise ValueError(f"tied must be 0 or 1, not {self.tied}")
        if not 1 <= self.rope_base < inf:
            raise ValueError(f"rope_base must be a finite number of at least 1, not {self.rope_base}")

    @property
    def groups(self) -> int:
        """G, the number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def hidden_units(self) -> int:
        """Hidden units of a dense MLP."""
        usual = 4 * self.width if self.arch == "gpt2" else -(-8 * self.width // (3 * self.heads)) * self.heads
        return self.hidden or usual

    @property
    def sparse_layers(self) -> list[int]:
        """Numbers of the layers that have experts: the last of every n layers."""
        return [] if self.moe is None else list(range(self.moe.moe_every - 1, self.layers, self.moe.moe_every))
