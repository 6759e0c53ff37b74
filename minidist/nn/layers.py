"""Modules, parameters, and the layers of a transformer."""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from minidist.backend import from_host, read_only, xp
from minidist.nn import functional
from minidist.nn.attention.plain import causal_attention
from minidist.nn.attention.tiled import Keep, tiled_attention, tiles
from minidist.nn.chunks import Chunks
from minidist.nn.config import GPTConfig
from minidist.nn.documents import Documents
from minidist.nn.llama_operations import rms_norm
from minidist.nn.loss import identity
from minidist.nn.precision.formats import Format
from minidist.nn.random import DropoutRNG, generator
from minidist.nn.tensor import Tensor


class Parameter(Tensor):
    """Leaf that training changes.

    It starts at its mean; ``init`` adds the random part once its name is known.

    Args:
        shape: shape of the array; the axis of the heads comes first, if there is one.
        mean, std: mean and standard deviation of the normal initial values. With ``std`` 0 they are constant.
        decay: whether weight decay applies: only to weight matrices and the token embedding.

    Attributes:
        sharded: whether some of its heads are in other processes (Megatron-LM: ``tensor_model_parallel``).
        expert_axis: the axis along which the experts of a mixture have their parts; None for any other parameter.
        summed_late: whether a pipeline sums its gradient over first and last stage, after the last backward; it stays
            full until then.
        format: the format in which it is stored; None for its array's dtype.
        stored: the array in memory: ``data`` itself, or the bits of a smaller format.
    """

    _format: Format | None = None
    expert_axis: int | None = None
    summed_late = False

    def __init__(self, shape: tuple[int, ...], mean: float = 0.0, std: float = 0.0, decay: bool = False) -> None:
        super().__init__(xp.full(shape, mean, xp.float32) if mean else xp.zeros(shape, xp.float32), requires_grad=True)
        self.name = ""
        self.mean, self.std, self.decay = mean, std, decay
        self.sharded = False

    def _store(self, values) -> None:
        self.stored = values

    def _store_in(self, format: Format | None) -> None:
        """Switch between the class that decodes at each use and the one that, without a format, costs no call."""
        self._format = format
        self.__class__ = StoredParameter if format else Parameter  # pyright: ignore[reportAttributeAccessIssue]: meant

    data, format = property(attrgetter("stored"), _store), property(attrgetter("_format"), _store_in)
    shape, size, dtype = (property(attrgetter(f"stored.{name}")) for name in ("shape", "size", "dtype"))

    def init(self, name: str, seed: int, dtype) -> None:
        """Set the name, and the initial values of (seed, name), always for the full parameter."""
        self.name = name
        if self.std == 0:
            self.data = xp.full(self.shape, self.mean, dtype)
        else:
            values = self.mean + self.std * generator("weight", seed, name).standard_normal(self.shape)  # float64
            self.data = from_host(values.astype(dtype))


class StoredParameter(Parameter):
    """Parameter whose ``format`` is set: ``data`` is decoded at each use.

    ``data`` is read-only, because an in-place update would be lost.
    """

    @property
    def data(self):
        return read_only(self.format.decode(self.stored))

    @data.setter
    def data(self, values) -> None:
        self.stored = self.format.encode(values)

    @property
    def dtype(self):
        return xp.dtype(xp.float32)


class Module:
    """Base class of everything with parameters: attributes that are parameters, modules, or lists of them.

    ``forward_pre_hook`` is called before forward. ``forward_hook`` is called after it with the output, which it may
    replace. ZeRO stage 3 uses both.
    """

    forward: Callable[..., Any]  # defined by a subclass
    forward_pre_hook: Callable[[], object] | None = None
    forward_hook: Callable[[Tensor], Tensor] | None = None

    def __call__(self, *arguments, **options) -> Any:
        if self.forward_pre_hook is not None:
            self.forward_pre_hook()
        output = self.forward(*arguments, **options)
        return output if self.forward_hook is None else self.forward_hook(output)

    def register_forward_pre_hook(self, hook: Callable[[], object]) -> None:
        """Call ``hook`` before forward, after the hooks that are registered already."""
        earlier = self.forward_pre_hook
        self.forward_pre_hook = hook if earlier is None else lambda: (earlier(), hook())

    def register_forward_hook(self, hook: Callable[["Tensor"], "Tensor"]) -> None:
        """Call ``hook`` with the output, after the hooks that are registered already; it returns the new output."""
        earlier = self.forward_hook
        self.forward_hook = hook if earlier is None else lambda output: hook(earlier(output))

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield each parameter once, in order of definition, under a dotted name: ``blocks.0.attention.qkv.weight``."""
        seen = set()
        for name, parameter in self._walk(""):
            if parameter not in seen:
                seen.add(parameter)
                yield name, parameter

    def _walk(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for attribute, value in vars(self).items():
            parts = {f".{i}": part for i, part in enumerate(value)} if isinstance(value, list) else {"": value}
            for position, part in parts.items():
                if isinstance(part, Parameter):
                    yield f"{prefix}{attribute}{position}", part
                elif isinstance(part, Module):
                    yield from part._walk(f"{prefix}{attribute}{position}.")

    def parameters(self) -> list[Parameter]:
        return [parameter for _, parameter in self.named_parameters()]

    def extra_state(self) -> dict:
        """Return, by name, the arrays that training changes besides parameters. (In torch: ``get_extra_state``.)"""
        return {}

    def load_extra_state(self, arrays: dict) -> None:
        """Load the arrays of ``extra_state``: NumPy arrays by name. (In torch: ``set_extra_state``.)"""

    def init_parameters(self, seed: int, dtype=xp.float32) -> None:
        """Give every parameter its name and its initial values, which depend only on (seed, name)."""
        for name, parameter in self.named_parameters():
            parameter.init(name, seed, dtype)

    def zero_grad(self) -> None:
        """Drop every gradient."""
        for parameter in self.parameters():
            parameter.grad = None


class ColumnLinear(Module):
    """Linear layer into the heads: (..., in) -> (H, ..., out). Each head has its own columns.

    In one process it is a plain linear layer, H * out wide, with its output in H parts. Split over ranks by heads it is
    Megatron-LM's ``ColumnParallelLinear``.

    Args:
        heads: H.
        inputs, outputs: widths; ``outputs`` is the width of one head.
        std: standard deviation of the initial weights.
        bias: whether the layer has a bias.
    """

    def __init__(self, heads: int, inputs: int, outputs: int, std: float, bias: bool = True) -> None:
        self.weight = Parameter((heads, inputs, outputs), std=std, decay=True)
        self.bias = Parameter((heads, outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = functional.copy_to_heads(x, self.weight.shape[0])  # (H, ..., in)
        return functional.linear(x, self.weight, self.bias)  # (H, ..., out)


class RowLinear(Module):
    """Linear layer out of the heads: (H, ..., in) -> (..., out), the sum of the heads' products.

    In one process it is a plain linear layer with H * in inputs. Split over ranks by heads it is Megatron-LM's
    ``RowParallelLinear``. The bias is added once, after the sum.

    Args:
        heads: H.
        inputs, outputs: widths; ``inputs`` is the width of one head.
        std: standard deviation of the initial weights.
        bias: whether the layer has a bias.
    """

    def __init__(self, heads: int, inputs: int, outputs: int, std: float, bias: bool = True) -> None:
        self.weight = Parameter((heads, inputs, outputs), std=std, decay=True)
        self.bias = Parameter((outputs,)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight, partial=True)  # (H, ..., out)
        y = functional.reduce_from_heads(y)  # (..., out)
        return y if self.bias is None else y + self.bias


class LayerNorm(Module):
    """Layer normalisation of each token's values: (..., C) -> (..., C)."""

    normalize = staticmethod(functional.layer_norm)

    def __init__(self, width: int) -> None:
        self.gain = Parameter((width,), mean=1.0)
        self.bias = Parameter((width,))

    def forward(self, x: Tensor) -> Tensor:
        return self.normalize(x, self.gain, self.bias)


class RMSNorm(Module):
    """Division of each token's values by their root mean square, times a gain: (..., C) -> (..., C)."""

    normalize = staticmethod(rms_norm)

    def __init__(self, width: int) -> None:
        self.gain = Parameter((width,), mean=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.normalize(x, self.gain)


class Embedding(Module):
    """Embedding: a row of weights for each token, integers (...) -> (..., C).

    The rows are divided among the heads. Their number is rounded up to a multiple of H, as with Megatron-LM's
    ``make_vocab_size_divisible_by``; no token looks up a padding row.

    Args:
        heads: H.
        vocab: the number of tokens, V.
        width: C.
        std: standard deviation of the initial weights.
    """

    def __init__(self, heads: int, vocab: int, width: int, std: float) -> None:
        self.weight = Parameter((heads, -(-vocab // heads), width), std=std, decay=True)  # (H, V/H, C)

    def forward(self, tokens) -> Tensor:
        return functional.embedding(self.weight, tokens)


class Dropout(Module):
    """Dropout: sets each value to 0 with probability ``rate`` if the forward pass has a DropoutRNG.

    Args:
        rate: 0 for no dropout.
        layer, place: its position in the model, part of the name of its random numbers.
    """

    def __init__(self, rate: float, layer: int, place: str) -> None:
        self.rate, self.layer, self.place = rate, layer, place

    def forward(self, x: Tensor, dropout_rng: DropoutRNG | None) -> Tensor:
        if dropout_rng is None or self.rate == 0:
            return x
        return functional.dropout(x, self.keep(x.shape, dropout_rng), self.rate)

    def keep(self, shape: tuple[int, ...], dropout_rng: DropoutRNG):
        """Return a bool mask of the given shape: True for the values to keep."""
        return functional.dropout_mask(dropout_rng.generator(self.layer, self.place), shape, self.rate)


class CoreAttention(Module):
    """Attention without its linear layers, the only place where tokens interact: (H, B, T, 3 D) -> (H, B, T, D).

    It has no parameters. (Megatron-LM: ``core_attention``.)
    """

    def __init__(self, config: GPTConfig, layer: int, chunks: Chunks) -> None:
        self.heads = range(config.heads)  # the heads computed here
        self.rate, self.layer, self.chunks, self.softmax = config.dropout, layer, chunks, config.softmax
        self.tile = config.attention_tile if config.attention == "tiled" else None

    def forward(
        self, qkv: Tensor, dropout_rng: DropoutRNG | None, documents: Documents | None,
        kv: Tensor | None = None, all_sum=identity,
    ) -> Tensor:  # fmt: skip
        """Compute the attention of one micro-batch.

        Args:
            qkv, documents, kv, all_sum: see ``causal_attention``.
            dropout_rng: names the dropout of attention weights; None keeps all.
        """
        _, batch, length, _ = qkv.shape
        count = self.chunks.of(length)
        if self.tile is None and count == 1:
            keep = None  # or (H, B, T, T) bool, the weights that dropout keeps, generated head by head
            if dropout_rng is not None and self.rate:
                keep = xp.stack([self._mask((batch, length, length), dropout_rng, head) for head in self.heads])
            return causal_attention(qkv, keep, self.rate, documents, kv, all_sum)
        tile = self.tile or length // count  # plain attention holds the scores of two chunks
        keep = self._keep_in_tiles(batch, tiles(length, tile, count), dropout_rng)
        return tiled_attention(qkv, keep, self.rate, documents, kv, all_sum, tile, count, self.softmax)

    def _keep_in_tiles(self, batch: int, parts: list[slice], dropout_rng: DropoutRNG | None) -> Keep | None:
        """Return a function that generates the weights to keep, tile by tile; None to keep all."""
        if dropout_rng is None or self.rate == 0:
            return None
        sizes = [part.stop - part.start for part in parts]
        return lambda h, i, j: self._mask((batch, sizes[j], sizes[i]), dropout_rng, self.heads[h], i, j)

    def _mask(self, shape: tuple[int, ...], dropout_rng: DropoutRNG, *part: int):
        return functional.dropout_mask(dropout_rng.generator(self.layer, "attention weights", *part), shape, self.rate)
