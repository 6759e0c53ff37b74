"""The rules that make every layout land on the same bits, held in one process."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from minidist.nn import functional
from minidist.nn.attention.plain import causal_attention
from minidist.nn.data import load_corpus, micro_batch
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.loss import cross_entropy
from minidist.nn.optim.optimizers import average_gradients
from minidist.nn.random import DropoutRNG, generator
from minidist.nn.rounding import rounded
from minidist.nn.tensor import Tensor

SHAPES = [(4, 2, 64, 64), (6, 1, 33, 48), (4, 3, 128, 128), (8, 2, 17, 40)]  # heads, samples, tokens, width


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def same_bits(a, b) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and np.ascontiguousarray(a).tobytes() == b.tobytes()


def cuts(heads: int) -> list[list[slice]]:
    """The heads in one part, in two parts of different sizes, and one by one."""
    return [[slice(0, heads)], [slice(0, 1), slice(1, heads)], [slice(i, i + 1) for i in range(heads)]]


def gradient_of(function, *arrays):
    """The output, and the gradients of the sum of output * fixed random weights."""
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    output = function(*tensors)
    output.backward(generator("weights", output.size).standard_normal(output.shape, np.float32))
    return output.data, [tensor.grad for tensor in tensors]


def test_some_of_the_heads_have_the_bits_of_all_of_them():
    """And sums over heads are the same from partial sums in float64, in any order."""
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


class Together:
    """Run each part in its own thread, as ranks would, with an all-reduce between the threads."""

    def __init__(self, parts: list) -> None:
        self.parts, self.values = parts, [None] * len(parts)
        self.barrier = threading.Barrier(len(parts), timeout=300)

    def all_reduce(self, number: int, combine, value):
        self.values[number] = value
        self.barrier.wait()
        joined = combine(self.values, axis=0)
        self.barrier.wait()  # before anyone writes the next value
        return joined

    def run(self, work) -> list:
        with ThreadPoolExecutor(len(self.parts)) as pool:
            return list(pool.map(work, range(len(self.parts)), self.parts))


def test_cross_entropy_of_a_vocabulary_in_parts():
    for heads, vocab in ((4, 256), (6, 256), (4, 3)):
        width = -(-vocab // heads)
        logits = 3 * draw(heads, 2, 9, width)
        targets = np.random.default_rng(0).integers(0, vocab, (2, 9))

        def loss_of(logits, *first_and_joins, targets=targets, vocab=vocab):
            return gradient_of(lambda x: cross_entropy(x, targets, vocab, *first_and_joins), logits)

        whole_loss, (whole_gradient,) = loss_of(logits)
        for parts in cuts(heads):
            together = Together(parts)

            def work(number: int, part: slice, join=together.all_reduce, logits=logits, width=width, loss_of=loss_of):
                joins = (partial(join, number, combine) for combine in (np.max, np.sum))
                return loss_of(logits[part], part.start * width, *joins)

            outcomes = together.run(work)
            assert all(same_bits(loss, whole_loss) for loss, _ in outcomes)
            assert same_bits(np.concatenate([gradient for _, (gradient,) in outcomes]), whole_gradient)


TOKENS = np.random.default_rng(0).integers(0, 12, (4, 64))


def test_gradients_summed_over_tokens_do_not_show_how_the_tokens_are_cut():
    x, weights, zeros = draw(4, 64, 48), 1 + draw(4, 64, 48), Tensor(np.zeros(48, np.float32))
    operations = {
        "gain": (lambda x, part, p: functional.layer_norm(x, p, zeros), (48,)),
        "norm bias": (lambda x, part, p: functional.layer_norm(x, zeros, p), (48,)),
        "bias": (lambda x, part, p: x + p, (48,)),
        "embedding": (lambda x, part, p: functional.embedding(p, TOKENS[part]), (4, 3, 48)),
        "positions": (lambda x, part, p: functional.add_positions(x, p), (64, 48)),
    }

    def gradient(name: str, parts) -> np.ndarray:
        """The sum over the parts, as ranks would take it that each have some of the tokens: before it is rounded."""
        operation, shape = operations[name]
        parameter, partial_sums = Tensor(draw(*shape), requires_grad=True), []
        parameter.accumulate = partial_sums.append
        for part in parts:
            operation(Tensor(x[part]), part, parameter).backward(weights[part])
        assert all(partial.dtype == np.float64 for partial in partial_sums)
        return sum(partial_sums).astype(np.float32)

    for name in operations:
        whole = gradient(name, [slice(0, 4)])
        assert same_bits(gradient(name, [slice(0, 1), slice(1, 4)]), whole), name
        assert same_bits(gradient(name, [slice(i, i + 1) for i in (2, 0, 3, 1)]), whole), name


def train_gradients(order, dtype=np.float64, config=None) -> list[np.ndarray]:
    """Averaged gradients of eight micro-batches of different samples, added up in this order."""
    config = config or GPTConfig(context=32, layers=2, heads=4, width=32, dropout=0.1)
    corpus = load_corpus(None, config.context)
    model = GPT(config, seed=1)
    for parameter in model.parameters():
        parameter.grad_dtype = dtype
    for index in order:
        model(*micro_batch(corpus, 0, 0, 2 * index, 2, config.context), DropoutRNG(0, 0, index)).backward()
    average_gradients(model.parameters(), len(order))
    return [parameter.grad for parameter in model.parameters()]


def test_micro_batches_in_another_order_give_the_same_bits():
    expected = train_gradients(range(8))
    assert all(gradient.dtype == np.float32 for gradient in expected)
    for seed in range(3):
        shuffled = train_gradients(np.random.default_rng(seed).permutation(8))
        assert all(same_bits(a, b) for a, b in zip(shuffled, expected, strict=True))
    rising, falling = train_gradients(range(8), np.float32), train_gradients(range(8)[::-1], np.float32)
    assert not all(same_bits(a, b) for a, b in zip(rising, falling, strict=True))  # which is what float64 sums are for


def test_dropout_repeats_by_name_and_differs_by_each_part_of_it():
    config = GPTConfig(context=8, layers=2, heads=2, width=8, dropout=0.5)
    model = GPT(config)
    tokens = np.arange(16).reshape(2, 8)

    def loss(*names):
        return model(tokens, tokens, DropoutRNG(*names)).item()

    first = loss(0, 1, 2)
    assert loss(0, 1, 3) != first and loss(0, 2, 2) != first and loss(1, 1, 2) != first
    assert loss(0, 1, 2) == first
    assert model(tokens, tokens).item() == model(tokens, tokens, None).item() != first
    names = [(0, "mlp"), (0, "attention"), (1, "mlp"), (0, "attention", 0), (0, "attention", 1)]
    drawn = [DropoutRNG(0, 0, 0).generator(*name).random() for name in names]
    assert len(set(drawn)) == len(drawn)


def test_weights_are_drawn_by_name_and_seed():
    small = GPT(GPTConfig(context=8, layers=1, heads=2, width=8), seed=3)
    deep = GPT(GPTConfig(context=8, layers=4, heads=2, width=8), seed=3)
    others = dict(deep.named_parameters())
    for name, parameter in small.named_parameters():
        if not name.endswith((".out.weight", ".proj.weight")):  # those are scaled by the number of layers
            assert same_bits(parameter.data, others[name].data)
    assert not same_bits(deep.blocks[0].mlp.fc.weight.data, deep.blocks[1].mlp.fc.weight.data)
    assert not same_bits(small.embeddings.position.data, GPT(small.config, seed=4).embeddings.position.data)


def test_names_are_not_run_together():
    assert generator("a", 11).random() != generator("a1", 1).random()
    assert generator("a", 1).random() != generator("a", "1").random()
    assert generator("a", np.int64(1)).random() == generator("a", 1).random()
    with pytest.raises(TypeError):
        generator("a", 0.5)


def test_a_generator_never_changes():
    """A change here changes every run: weights, data and dropout."""
    assert generator("weight", 0, "embeddings.position").bit_generator.random_raw() == 13907866679542851271


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


def test_of_a_float64_sum_43_bits_count():
    """Next to a tie, the lowest bit that decides is the 43rd; anything below half of it is ignored."""
    tie, up = 1 + 2.0**-24, 1 + 2.0**-23  # the middle between the float32 numbers 1 and ``up``
    for extra, expected in ((2.0**-42, up), (0.75 * 2.0**-43, 1.0), (2.0**-48, 1.0), (-(2.0**-42), 1.0)):
        for sign in (1, -1):
            total = np.array([sign * (tie + extra)])
            assert total[0] != sign * tie  # float64 holds it
            assert rounded(total, np.float32)[0] == sign * expected, extra
    beside = 1 + 3 * 2.0**-24  # the tie above: to even is up
    assert rounded(np.array([beside - 2.0**-42, beside - 2.0**-48]), np.float32).tolist() == [up, 1 + 2 * 2.0**-23]


def test_rounding_is_that_of_the_hardware_elsewhere():
    """Exact ties go to even, and almost none of a million random sums differs from a single rounding."""
    ties = (np.arange(1000, dtype=np.float64) + 0.5) * 2.0**-3 + 2.0**20  # in the middle of float32 numbers there
    assert same_bits(rounded(ties, np.float32), ties.astype(np.float32))
    values = np.random.default_rng(0).standard_normal(1_000_000)
    assert np.mean(rounded(values, np.float32) != values.astype(np.float32)) < 1e-5
    special = np.array([0.0, -0.0, 1e-45, -1e-300, 3e38])
    assert same_bits(rounded(special, np.float32), special.astype(np.float32))
    assert rounded(values, np.float64) is values
