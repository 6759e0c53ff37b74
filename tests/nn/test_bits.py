"""The rules that make every layout land on the same bits, held in one process."""

import itertools

import numpy as np

from minidist.nn import functional
from minidist.nn.attention.plain import causal_attention
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.kernels import rounded
from minidist.nn.random import generator
from minidist.nn.tensor import Tensor

SHAPES = [(4, 2, 64, 64), (6, 1, 33, 48), (4, 3, 128, 128), (8, 2, 17, 40)]  # heads, samples, tokens, width


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def same_bits(a, b) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and np.ascontiguousarray(a).tobytes() == b.tobytes()


def cuts(heads: int) -> list[list[slice]]:
    """The heads in one part, in two parts of different sizes, and one by one."""
    return [[slice(0, heads)], [slice(0, 1), slice(1, heads)], [slice(i, i + 1) for i in range(heads)]]


def test_some_of_the_heads_have_the_bits_of_all_of_them():
    """Sums over heads are the same from partial sums in float64, in any order."""
    for heads, samples, length, width in SHAPES:
        x, y, upstream = draw(samples, length, width), draw(heads, samples, length, width), draw(samples, length, width)
        each = width // heads
        shapes = {
            "qkv": (width, 3 * each), "qkv_bias": (3 * each,), "out": (each, width), "fc": (width, 4 * each),
            "fc_bias": (4 * each,), "proj": (4 * each, width),
        }  # fmt: skip
        weights = {name: draw(heads, *shape) for name, shape in shapes.items()}

        def run(part: slice, x=x, upstream=upstream, weights=weights):
            """These heads' part of an attention and an MLP: partial sums in float64, and gradients."""
            p = {name: Tensor(weight[part], requires_grad=True) for name, weight in weights.items()}
            inputs = Tensor(np.broadcast_to(x, (len(p["qkv"].data), *x.shape)), requires_grad=True)
            attended = functional.linear(causal_attention(functional.linear(inputs, p["qkv"], p["qkv_bias"])), p["out"])
            hidden = functional.linear(functional.gelu(functional.linear(inputs, p["fc"], p["fc_bias"])), p["proj"])
            for output in (attended, hidden):
                output.backward(np.broadcast_to(upstream, output.shape))
            return [attended.data, hidden.data, inputs.grad, *(tensor.grad for tensor in p.values())]

        whole, total = run(slice(None)), functional.reduce_from_heads(Tensor(y)).data
        for parts in cuts(heads):
            for expected, *found in zip(whole, *map(run, parts), strict=True):
                assert same_bits(np.concatenate(found), expected)
            partials = [functional.sum_over_heads(y[part]) for part in parts]  # (B, T, C) each
            assert all(array.dtype == np.float64 for array in partials)
            for order in (partials, partials[::-1]):
                assert same_bits(np.sum(order, axis=0).astype(np.float32), total)
        x = Tensor(y[0], requires_grad=True)
        functional.copy_to_heads(x, heads).backward(y)  # the conjugate: its backward is the same sum
        assert same_bits(x.grad.astype(np.float32), total) and (x.grad == total).all()


def test_weights_are_drawn_by_name_and_seed():
    small, deep, other = (
        GPT(GPTConfig(vocab=8, layers=n, heads=2, width=8), seed) for n, seed in ((1, 3), (4, 3), (1, 4))
    )
    others = dict(deep.named_parameters())
    for name, parameter in small.named_parameters():
        if not name.endswith((".out.weight", ".proj.weight")):  # those are scaled by the number of layers
            assert same_bits(parameter.data, others[name].data)
    assert not same_bits(deep.blocks[0].mlp.fc.weight.data, deep.blocks[1].mlp.fc.weight.data)
    assert not same_bits(small.embeddings.position.data, other.embeddings.position.data)


def test_a_generator_never_changes():
    """A change here changes every run: weights, data and dropout. Names are not run together."""
    assert generator("weight", 0, "embeddings.position").bit_generator.random_raw() == 13907866679542851271
    assert generator("a", 11).random() != generator("a1", 1).random()
    assert generator("a", 1).random() != generator("a", "1").random()
    assert generator("a", np.int64(1)).random() == generator("a", 1).random()


def test_a_tie_is_rounded_alike_in_every_order_of_its_terms():
    """Pairs of float32 numbers, half of whose sums lie in the middle between two, and a term that some orders lose."""
    rng = np.random.default_rng(0)
    plain = 0
    for _ in range(500):
        terms = [*rng.uniform(2.0**-6, 2.0**-5, 2).astype(np.float32).astype(np.float64), 1.25 * 2.0**-58]
        sums = np.array([(a + b) + c for a, b, c in itertools.permutations(terms)])
        plain += len(set(sums.astype(np.float32))) > 1
        assert len(set(rounded(sums, np.float32))) == 1
    assert plain > 20  # rounded in one go they differ


def test_rounding_is_that_of_the_hardware_elsewhere():
    """Exact ties go to even, and almost none of a million random sums differs from a single rounding."""
    ties = (np.arange(1000, dtype=np.float64) + 0.5) * 2.0**-3 + 2.0**20  # in the middle of float32 numbers there
    assert same_bits(rounded(ties, np.float32), ties.astype(np.float32))
    values = np.random.default_rng(0).standard_normal(1_000_000)
    assert np.mean(rounded(values, np.float32) != values.astype(np.float32)) < 1e-5
    special = np.array([0.0, -0.0, 1e-45, -1e-300, 3e38])
    assert same_bits(rounded(special, np.float32), special.astype(np.float32))
    assert rounded(values, np.float64) is values
