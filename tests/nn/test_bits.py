"""The rules that make every layout land on the same bits, held in one process."""

import numpy as np
import pytest

from minidist.nn import functional
from minidist.nn.data import load_corpus, micro_batch
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.loss import cross_entropy
from minidist.nn.optim import average_gradients
from minidist.nn.random import Noise, generator
from minidist.nn.tensor import Tensor

SHAPES = [(4, 2, 64, 64), (6, 1, 33, 48), (4, 3, 128, 128), (8, 2, 17, 40)]  # heads, samples, tokens, width


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def same_bits(a, b) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and np.ascontiguousarray(a).tobytes() == b.tobytes()


def cuts(blocks: int) -> list[list[slice]]:
    """The blocks in one part, in two of different sizes, and each by itself."""
    return [
        [slice(0, blocks)],
        [slice(0, 1), slice(1, blocks)],
        [slice(i, i + 1) for i in range(blocks)],
    ]


def gradient_of(function, *arrays):
    """The output, and the gradients of the sum of output * fixed random weights."""
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    output = function(*tensors)
    output.backward(generator("weights", output.size).standard_normal(output.shape, np.float32))
    return output.data, [tensor.grad for tensor in tensors]


@pytest.mark.parametrize("shape", SHAPES)
def test_some_of_the_heads_have_the_bits_of_all_of_them(shape):
    heads, samples, length, width = shape
    x = draw(samples, length, width)
    head_width = width // heads
    weights = {
        "qkv": draw(heads, width, 3 * head_width),
        "qkv_bias": draw(heads, 3 * head_width),
        "out": draw(heads, head_width, width),
        "fc": draw(heads, width, 4 * head_width),
        "fc_bias": draw(heads, 4 * head_width),
        "proj": draw(heads, 4 * head_width, width),
    }
    upstream = draw(samples, length, width)

    def run(part: slice):
        """These heads' part of an attention and an MLP: partial sums in float64, and gradients."""
        p = {name: Tensor(weight[part], requires_grad=True) for name, weight in weights.items()}
        count = len(p["qkv"].data)
        inputs = Tensor(np.broadcast_to(x, (count, *x.shape)), requires_grad=True)
        attended = functional.linear(
            functional.causal_attention(functional.linear(inputs, p["qkv"], p["qkv_bias"])), p["out"]
        )
        hidden = functional.linear(functional.gelu(functional.linear(inputs, p["fc"], p["fc_bias"])), p["proj"])
        for output in (attended, hidden):
            output.backward(np.broadcast_to(upstream, output.shape))
        return [attended.data, hidden.data, inputs.grad, *(tensor.grad for tensor in p.values())]

    whole = run(slice(None))
    for parts in cuts(heads):
        pieces = [run(part) for part in parts]
        for expected, *found in zip(whole, *pieces, strict=True):
            assert same_bits(np.concatenate(found), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_over_blocks_have_the_same_bits_from_partial_sums(shape):
    heads, samples, length, width = shape
    y = draw(heads, samples, length, width)
    whole = functional.reduce_from_blocks(Tensor(y)).data
    _, (gradient,) = gradient_of(lambda x: functional.copy_to_blocks(x, heads) * Tensor(y), y[0])
    for parts in cuts(heads):
        partials = [functional.sum_over_blocks(y[part]) for part in parts]
        assert all(partial.dtype == np.float64 for partial in partials)
        for order in (partials, partials[::-1]):
            assert same_bits(np.sum(order, axis=0).astype(np.float32), whole)
    assert gradient.shape == y[0].shape


@pytest.mark.parametrize(("heads", "vocab"), [(4, 256), (6, 256), (4, 3)])
def test_cross_entropy_of_a_vocabulary_in_parts(heads, vocab):
    """Parts that join their numbers one after the other, as ranks would all at once."""
    width = -(-vocab // heads)
    logits = 3 * draw(heads, 2, 9, width)
    targets = np.random.default_rng(0).integers(0, vocab, (2, 9))
    whole_loss, (whole_gradient,) = gradient_of(lambda x: cross_entropy(x, targets, vocab), logits)
    for parts in cuts(heads):
        joined: list = []
        for number in range(4):  # in pass n the parts know what the first n exchanges joined; pass 3 is complete
            heard: list[list] = []

            def exchange(value, heard=heard, number=number):
                heard.append(value)
                return joined[len(heard) - 1] if len(heard) <= number else value

            outcomes, told = [], []
            for part in parts:
                heard.clear()
                leaf = Tensor(logits[part], requires_grad=True)
                with np.errstate(all="ignore"):  # before the exchanges are complete the numbers mean nothing
                    loss = cross_entropy(leaf, targets, vocab, part.start * width, exchange, exchange)
                loss.backward(generator("weights", 1).standard_normal((), np.float32))
                outcomes.append((loss.data, leaf.grad))
                told.append(list(heard))
            if number < 3:
                values = [each[number] for each in told]
                joined.append(np.max(values, axis=0) if number == 0 else np.sum(values, axis=0))
        assert all(same_bits(loss, whole_loss) for loss, _ in outcomes)
        assert same_bits(np.concatenate([gradient for _, gradient in outcomes]), whole_gradient)


def test_layer_norm_has_the_same_bits_for_some_of_the_tokens():
    x, gain, bias = draw(2, 64, 48), draw(48), draw(48)
    whole = functional.layer_norm(Tensor(x), Tensor(gain), Tensor(bias)).data
    for part in (slice(0, 1), slice(5, 37), slice(32, 64)):
        found = functional.layer_norm(Tensor(np.ascontiguousarray(x[:, part])), Tensor(gain), Tensor(bias)).data
        assert same_bits(found, np.ascontiguousarray(whole[:, part]))


def test_gradients_over_tokens_do_not_show_their_order():
    x, gain, bias = draw(4, 64, 48), draw(48), draw(48)
    weights = draw(4, 64, 48)

    def gradients(order):
        tensors = [Tensor(array, requires_grad=True) for array in (gain, bias)]
        for sample in order:
            functional.layer_norm(Tensor(x[sample : sample + 1]), *tensors).backward(weights[sample : sample + 1])
        return [tensor.grad.astype(np.float32) for tensor in tensors]

    expected = gradients(range(4))
    assert all(same_bits(a, b) for a, b in zip(gradients([2, 0, 3, 1]), expected, strict=True))


def train_gradients(order, dtype=np.float64, config=None) -> list[np.ndarray]:
    """Averaged gradients of eight micro-batches of different samples, added up in this order."""
    config = config or GPTConfig(context=32, layers=2, heads=4, width=32, dropout=0.1)
    corpus = load_corpus(None, config.context)
    model = GPT(config, seed=1)
    for parameter in model.parameters():
        parameter.grad_dtype = dtype
    for index in order:
        model(*micro_batch(corpus, 0, 0, 2 * index, 2, config.context), Noise(0, 0, index)).backward()
    average_gradients(model.parameters(), len(order))
    return [parameter.grad for parameter in model.parameters()]


def test_micro_batches_in_another_order_give_the_same_bits():
    expected = train_gradients(range(8))
    assert all(gradient.dtype == np.float32 for gradient in expected)
    for seed in range(3):
        shuffled = train_gradients(np.random.default_rng(seed).permutation(8))
        assert all(same_bits(a, b) for a, b in zip(shuffled, expected, strict=True))


def test_summing_gradients_in_float32_drifts():
    expected, shuffled = train_gradients(range(8), np.float32), train_gradients(range(8)[::-1], np.float32)
    assert not all(same_bits(a, b) for a, b in zip(shuffled, expected, strict=True))


def test_dropout_repeats_by_name_and_differs_by_each_part_of_it():
    config = GPTConfig(context=8, layers=2, heads=2, width=8, dropout=0.5)
    model = GPT(config)
    tokens = np.arange(16).reshape(2, 8)

    def loss(*names):
        return model(tokens, tokens, Noise(*names)).item()

    first = loss(0, 1, 2)
    assert loss(0, 1, 3) != first and loss(0, 2, 2) != first and loss(1, 1, 2) != first
    assert loss(0, 1, 2) == first
    assert model(tokens, tokens).item() == model(tokens, tokens, None).item() != first
    names = [(0, "mlp"), (0, "attention"), (1, "mlp"), (0, "attention", 0), (0, "attention", 1)]
    drawn = [Noise(0, 0, 0).generator(*name).random() for name in names]
    assert len(set(drawn)) == len(drawn)


def test_dropout_of_some_heads_is_that_of_all_of_them():
    config = GPTConfig(context=8, layers=1, heads=4, width=16, dropout=0.5)
    attention = GPT(config).blocks[0].attention
    whole = attention._keep((4, 2, 8, 12), Noise(0, 0, 0))
    assert whole.shape == (4, 2, 8, 8) and 0.4 < whole.mean() < 0.6
    attention.heads = range(1, 3)
    assert same_bits(attention._keep((2, 2, 8, 12), Noise(0, 0, 0)), whole[1:3])


def test_weights_are_drawn_by_name_and_seed():
    small = GPT(GPTConfig(context=8, layers=1, heads=2, width=8), seed=3)
    deep = GPT(GPTConfig(context=8, layers=4, heads=2, width=8), seed=3)
    others = dict(deep.named_parameters())
    for name, parameter in small.named_parameters():
        if not name.endswith((".out.weight", ".proj.weight")):  # those are scaled by the number of layers
            assert same_bits(parameter.data, others[name].data)
    assert not same_bits(small.embeddings.position.data, GPT(small.config, seed=4).embeddings.position.data)


def test_names_are_not_run_together():
    assert generator("a", 11).random() != generator("a1", 1).random()
    assert generator("a", 1).random() != generator("a", "1").random()
    assert generator("a", np.int64(1)).random() == generator("a", 1).random()
    with pytest.raises(TypeError):
        generator("a", 0.5)


def test_a_generator_is_the_same_for_ever():
    """A change here changes every run: weights, data and dropout."""
    assert generator("weight", 0, "embeddings.position").bit_generator.random_raw() == 13907866679542851271
