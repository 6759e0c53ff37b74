"""The shape of a transformer, from which follow its parameters, those that a token uses, and its FLOPs.

The shapes cover the published models: GPT's blocks with biases and learned positions; Llama's gated MLPs with grouped
queries; Mixtral's experts; DeepSeek's latent attention, shared experts and dense first layers.

A model is one of models.toml, such as ``llama3-405b``, or ``layers=96,width=12288,heads=96,...``.
"""

from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from minidist.plan.cluster.toml_tables import choose, from_table, read_toml
from minidist.train.notation import shortened, whole_number


@dataclass(frozen=True)
class Experts:
    """Experts that replace the MLP in all layers but the first few.

    Attributes:
        experts: number of routed experts of a layer; each token uses top_k of them.
        hidden: hidden units of one expert.
        shared: number of experts that every token uses as well.
        dense_layers: number of first layers, which keep their MLP.
        bias: whether the router has a bias for each expert to balance them (Wang et al., arXiv 2408.15664).
    """

    experts: int
    top_k: int
    hidden: int
    shared: int = 0
    dense_layers: int = 0
    bias: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k must be from 1 to experts ({self.experts}), got {self.top_k}")
        if not self.hidden:
            raise ValueError("hidden, the units of one expert, must be at least 1")


@dataclass(frozen=True)
class LatentAttention:
    """Widths of multi-head latent attention (DeepSeek-AI, 2024, arXiv 2405.04434, section 2.1).

    Attributes:
        queries: width of the vector that queries are made from.
        keys_values: width of the vector that keys and values are made from.
        rope: width of the part of a head that carries the position; its keys are shared by all heads.
        head: width of the rest of a head's queries and keys, and of its values.
    """

    queries: int
    keys_values: int
    rope: int
    head: int


@dataclass(frozen=True)
class ModelShape:
    """Shape of a transformer.

    Attributes:
        width: width of the residual stream. heads: number of query heads.
        context: tokens of a sequence in training.
        source: where the numbers were read.
        kv_heads: number of key-value heads; 0 for as many as query heads.
        hidden: hidden units of an MLP; 0 for four times the width.
        gated: whether an MLP has a third matrix, as in SwiGLU (Shazeer, arXiv 2002.05202).
        biases: whether products add a bias.
        tied: whether the head uses the embedding's weights.
        learned_positions: whether each position of the context has a learned vector.
        norm_vectors: vectors of parameters in a norm: 2 for LayerNorm, 1 for RMSNorm.
        dropout: whether training drops attention weights and the outputs of attention and MLP, and so keeps masks.
    """

    name: str
    layers: int
    width: int
    heads: int
    vocab: int
    context: int
    source: str = ""
    kv_heads: int = 0
    hidden: int = 0
    gated: bool = False
    biases: bool = True
    tied: bool = True
    learned_positions: bool = True
    norm_vectors: int = 2
    dropout: bool = True
    moe: Experts | None = None
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        for what in ("layers", "width", "heads", "vocab", "context"):
            if getattr(self, what) < 1:
                raise ValueError(f"{what} must be at least 1, got {getattr(self, what)}")
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide the width {self.width}")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide the {self.heads} heads")
        if self.moe and self.moe.dense_layers >= self.layers:
            raise ValueError(
                f"dense_layers={self.moe.dense_layers} leaves none of the {self.layers} layers for experts"
            )

    @property
    def sparse_layers(self) -> int:
        """Number of layers with experts."""
        return self.layers - self.moe.dense_layers if self.moe else 0

    @property
    def attention_products(self) -> int:
        """Elements of the matrices of one layer's attention."""
        if self.latent is None:
            return 2 * self.width**2 + 2 * self.width * self.key_width
        it, wide = self.latent, self.heads * self.latent.head
        queries = self.width * it.queries + it.queries * (wide + self.heads * it.rope)
        keys_values = self.width * (it.keys_values + it.rope) + it.keys_values * 2 * wide
        return queries + keys_values + wide * self.width

    @property
    def attention(self) -> int:
        """Parameters of one layer's attention: its matrices, their biases, and the norms of latent vectors."""
        biases = (2 * self.width + 2 * self.key_width) * self.biases
        norms = (self.latent.queries + self.latent.keys_values) * self.norm_vectors if self.latent else 0
        return self.attention_products + biases + norms

    def mlp(self, hidden: int) -> int:
        """Parameters of an MLP, or of an expert, with ``hidden`` hidden units."""
        return (3 if self.gated else 2) * self.width * hidden + (hidden * (1 + self.gated) + self.width) * self.biases

    @property
    def mlp_hidden(self) -> int:
        """Hidden units of a dense MLP."""
        return self.hidden or 4 * self.width

    @property
    def groups(self) -> int:
        """Heads of keys and values: ``kv_heads``, or one for each head of queries."""
        return self.kv_heads or self.heads

    @property
    def key_width(self) -> int:
        """Width of the keys of all heads together; except in latent attention, values have the same."""
        return self.width // self.heads * self.groups

    def key_width_on(self, tp: int) -> float:
        """Width of the keys on one of ``tp`` tensor-parallel ranks: at least that of one head."""
        return max(self.key_width / tp, self.width / self.heads)

    @property
    def score_widths(self) -> tuple[int, int]:
        """Multiply-adds of all heads for one pair of tokens: for its scores, and for its values."""
        if self.latent is None:
            return self.width, self.width
        return self.heads * (self.latent.head + self.latent.rope), self.heads * self.latent.head

    @property
    def embeddings(self) -> int:
        """Parameters of token and position embeddings, and of a head that is not tied."""
        return self.width * (self.vocab * (1 if self.tied else 2) + self.context * self.learned_positions)

    def block(self, experts: int) -> int:
        """Parameters of a layer with ``experts`` routed experts counted; of a dense layer if the model has none."""
        if self.moe is None:
            return self.dense_block
        return self._rest_of_block + self.router + (experts + self.moe.shared) * self.mlp(self.moe.hidden)

    @property
    def dense_block(self) -> int:
        """Parameters of a layer without experts."""
        return self._rest_of_block + self.mlp(self.mlp_hidden)

    @property
    def _rest_of_block(self) -> int:
        return self.attention + 2 * self.norm_vectors * self.width

    @property
    def replicated(self) -> int:
        """Parameters of a layer without experts that tensor parallelism does not split: norms, and biases of sums."""
        norms = 2 * self.width + (self.latent.queries + self.latent.keys_values if self.latent else 0)
        return self.norm_vectors * norms + 2 * self.width * self.biases

    @property
    def router(self) -> int:
        """Parameters of the router of a layer with experts."""
        return self.width * self.moe.experts + self.moe.experts * self.moe.bias if self.moe else 0

    @property
    def routed(self) -> int:
        """Parameters of the routed experts of one layer."""
        return self.moe.experts * self.mlp(self.moe.hidden) if self.moe else 0

    def _count(self, experts: int) -> int:
        dense = (self.layers - self.sparse_layers) * self.dense_block
        sparse = self.sparse_layers * self.block(experts)
        return self.embeddings + dense + sparse + self.norm_vectors * self.width

    @property
    def parameters(self) -> int:
        """Number of parameters, embeddings and all experts included."""
        return self._count(self.moe.experts if self.moe else 0)

    @property
    def active_parameters(self) -> int:
        """Number of parameters that one token uses: of the routed experts, only top_k."""
        return self._count(self.moe.top_k if self.moe else 0)

    @property
    def scores_flops(self) -> float:
        """FLOPs of scores and weighted sums of one token in forward, over all layers and all pairs of tokens."""
        return 2.0 * self.layers * self.context * sum(self.score_widths)

    @property
    def head_flops(self) -> float:
        """FLOPs of the logits of one token in forward."""
        return 2.0 * self.width * self.vocab

    @property
    def forward_flops(self) -> float:
        """FLOPs of the matrix products of one token in forward, at the full context; backward has twice as many.

        Scores that the causal mask hides count, as in Narayanan et al. (arXiv 2104.04473, appendix) and PaLM's MFU.
        """
        moe, matrices = self.moe, 3 if self.gated else 2
        dense = (self.layers - self.sparse_layers) * self.mlp_hidden
        sparse = self.sparse_layers * (moe.top_k + moe.shared) * moe.hidden if moe else 0
        products = self.layers * self.attention_products + matrices * self.width * (dense + sparse)
        products += self.width * self.vocab + (self.sparse_layers * self.width * moe.experts if moe else 0)
        return 2.0 * products + self.scores_flops


DATA = Path(__file__).with_suffix(".toml")
LARGEST_SIZE = 10**9  # a thousand times the largest sizes of published models
BY_HAND = {field.name: field for field in fields(ModelShape) if field.type in (int, bool)}


@cache
def published() -> dict[str, ModelShape]:
    """Return the models of models.toml, by name."""
    return {name: from_table(ModelShape, table, f"{DATA}: [{name}]") for name, table in read_toml(DATA).items()}


def model_of(text: str) -> ModelShape:
    """Return a published model by its name, or one written as ``key=value,key=value``.

    Keys: layers, width, heads, vocab and context are required; kv_heads, hidden, norm_vectors, and as 0 or 1 gated,
    biases, tied, learned_positions and dropout have the values of GPT by default.

    Raises:
        ValueError: for an unknown name or key, with the nearest known one, and for an invalid value.
    """
    if "=" not in text:
        if text not in published():
            raise ValueError(f"unknown model {text!r}: {choose(text, published())}")
        return published()[text]
    given: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in BY_HAND:
            raise ValueError(f"model {text}: unknown key {key!r}: {choose(key, BY_HAND)}")
        if key in given:
            raise ValueError(f"model {text}: {key} is given twice")
        try:
            number = whole_number(value)
        except ValueError as error:
            raise ValueError(f"model {shortened(text)}: {key}={error}") from None
        if not 0 <= number <= LARGEST_SIZE:
            raise ValueError(f"model {shortened(text)}: {key}={number} must be from 0 to {LARGEST_SIZE:,}")
        if BY_HAND[key].type is bool and value not in "01":
            raise ValueError(f"model {text}: {key}={value} must be 0 or 1")
        given[key] = bool(number) if BY_HAND[key].type is bool else number
    missing = [name for name, field in BY_HAND.items() if field.default is MISSING and name not in given]
    if missing:
        raise ValueError(f"model {text}: {', '.join(missing)} missing: a model given by hand needs at least these")
    try:
        return ModelShape(name=text, **given)
    except ValueError as error:
        raise ValueError(f"model {text}: {error}") from None
