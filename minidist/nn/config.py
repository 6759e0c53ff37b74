"""The settings of a model: its sizes, and those of its mixtures of experts."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isfinite

from minidist.nn.attention.tiled import SOFTMAXES

ATTENTION = ("plain", "tiled")
GATES = ("softmax", "sigmoid")
SCOPES = ("micro_batch", "global_batch")
LEAST_0 = (("expert_hidden", 0), ("shared_expert", 0), ("route_nodes", 0))  # whole numbers that may be 0


@dataclass(frozen=True)
class MoEConfig:
    """How many experts there are, how a token chooses among them, and what keeps them evenly loaded.

    Raises:
        ValueError: for a value that no model can have, naming what would fit.
    """

    experts: int  # E, in each mixture
    top_k: int = 2  # k, that each token uses
    expert_hidden: int = 0  # hidden units of one expert; 0 for 4 C, those of a dense MLP
    shared_expert: int = 0  # hidden units of the expert that every token uses as well; 0 for none
    moe_every: int = 1  # every n-th layer has experts: n
    gate: str = "softmax"  # from the router's logits to scores
    capacity: float | None = None  # an expert takes at most this many times k N / E of N tokens; None: all who come
    aux_loss: float = 0.0  # coefficient of the loss that evens out the load; 0 for none
    aux_scope: str = "micro_batch"  # whose tokens it evens out
    z_loss: float = 0.0  # coefficient of the loss that keeps the logits small; 0 for none
    bias_rate: float = 0.001  # by which an expert's bias moves after a step, as in DeepSeek-V3; 0 for no biases
    expert_nodes: int = 1  # groups of as many experts each
    route_nodes: int = 0  # number of nodes whose experts a token may use; 0 for all

    def __post_init__(self) -> None:
        for name, least in (("experts", 1), ("top_k", 1), ("moe_every", 1), ("expert_nodes", 1), *LEAST_0):
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 2**31:
                raise ValueError(f"{name} must be a whole number from {least} to {2**31 - 1:,}, not {value!r}")
        if self.top_k > self.experts:
            raise ValueError(
                f"top_k {self.top_k} is more than the number of experts, {self.experts}: choose top_k from 1 to "
                f"{self.experts}, or more experts"
            )
        if self.capacity is not None and not (isfinite(self.capacity) and self.capacity > 0):
            raise ValueError(
                f"capacity must be finite and above 0, not {self.capacity:g}: an expert takes so many times its even "
                "share of the tokens at most. Choose 1.25, say, or leave it out to drop none"
            )
        for name in ("aux_loss", "z_loss", "bias_rate"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be a finite number of at least 0, not {getattr(self, name)}")
        for name, choices in (("gate", GATES), ("aux_scope", SCOPES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        self._check_nodes()

    def _check_nodes(self) -> None:
        if self.experts % self.expert_nodes:
            fitting = [n for n in range(1, self.experts + 1) if self.experts % n == 0]
            raise ValueError(
                f"expert_nodes {self.expert_nodes} does not divide the {self.experts} experts: choose from "
                f"{', '.join(map(str, fitting))}"
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
        """How many of ``tokens`` tokens an expert takes: capacity k N / E rounded up, at most N; None for all."""
        if self.capacity is None:
            return None
        return min(tokens, ceil(Fraction(str(self.capacity)) * self.top_k * tokens / self.experts))  # as it is written


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a model.

    Raises:
        ValueError: for a size below 1, or a width that the heads do not divide.
    """

    vocab: int = 256
    context: int = 64  # the most tokens that it sees at once
    layers: int = 2
    heads: int = 4
    width: int = 64
    dropout: float = 0.0
    attention: str = "plain"  # or tiled: see nn/attention/
    attention_tile: int = 128  # queries, and keys, in a tile
    softmax: str = "exact"  # of tiled attention: see nn/attention/
    sequence_chunks: int = 1  # parts of the context, each computed by itself: see nn/chunks.py
    moe: MoEConfig | None = None  # the experts in place of MLPs; None for a dense model

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "layers", "heads", "width", "attention_tile", "sequence_chunks"):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {size!r}")
            if size >= 2**63:
                raise ValueError(f"{name} must be below 2^63")
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by {self.heads} heads: each head has width / heads values. "
                f"Nearest widths that fit: {self._nearest_widths()}"
            )
        if self.attention not in ATTENTION:
            raise ValueError(f"attention must be one of {', '.join(ATTENTION)}, not {self.attention!r}")
        if self.context % self.sequence_chunks:
            fitting = [n for n in range(1, min(self.context, 64) + 1) if self.context % n == 0]
            raise ValueError(
                f"sequence_chunks {self.sequence_chunks} does not divide a context of {self.context} tokens: choose "
                f"from {', '.join(map(str, fitting))}, or another context"
            )
        if self.softmax not in SOFTMAXES:
            raise ValueError(f"softmax must be one of {', '.join(SOFTMAXES)}, not {self.softmax!r}")
        if self.softmax != "exact" and self.attention == "plain" and self.sequence_chunks == 1:
            raise ValueError(
                f"softmax {self.softmax} is a way to merge tiles, and plain attention has none: choose attention tiled"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if self.moe is not None:
            self._check_experts(self.moe)

    def _check_experts(self, moe: MoEConfig) -> None:
        for name in ("expert_hidden", "shared_expert"):
            if getattr(moe, name) % self.heads:
                raise ValueError(
                    f"{name} {getattr(moe, name)} must be a multiple of the {self.heads} heads, which share the "
                    "hidden units of an expert evenly"
                )
        if self.layers < moe.moe_every:
            raise ValueError(
                f"moe_every {moe.moe_every} leaves no layer with experts in a model of {self.layers} layers: choose "
                f"from 1 to {self.layers}"
            )

    @property
    def sparse_layers(self) -> list[int]:
        """The layers that have experts: every n-th, the last of n."""
        return [] if self.moe is None else list(range(self.moe.moe_every - 1, self.layers, self.moe.moe_every))

    def _nearest_widths(self) -> str:
        below = self.width // self.heads * self.heads
        return " or ".join(str(width) for width in (below, below + self.heads) if width)
