"""The whole model against PyTorch: the same weights and batch, and plain torch operations on the full weights."""

import math

import numpy as np
import pytest

from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.moe.config import MoEConfig
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import SGD, AdamW, average_gradients

CONFIGS = [
    GPTConfig(vocab=256, context=16, layers=2, heads=4, width=32),
    GPTConfig(vocab=256, context=9, layers=1, heads=6, width=18),  # the vocabulary is padded to 258
    GPTConfig(vocab=5, context=1, layers=3, heads=1, width=1),
    GPTConfig(vocab=3, context=7, layers=1, heads=4, width=4),  # a block of the vocabulary is all padding
    GPTConfig(vocab=11, context=5, layers=2, heads=3, width=15),
    GPTConfig(
        vocab=11, context=7, layers=2, heads=2, width=8, moe=MoEConfig(5, 2, expert_hidden=6, z_loss=0.1, aux_loss=0.01)
    ),
    GPTConfig(
        vocab=11, context=7, layers=3, heads=2, width=8, moe=MoEConfig(4, 1, shared_expert=6, moe_every=2, capacity=1.0)
    ),
    GPTConfig(vocab=11, context=7, layers=1, heads=2, width=8, moe=MoEConfig(6, 3, gate="sigmoid", aux_loss=0.5)),
]


@pytest.fixture(scope="module", autouse=True)
def pytorch():
    """Imported here, because it takes seconds: not in each process that collects the tests."""
    global torch
    torch = pytest.importorskip("torch")


def batch(config: GPTConfig, seed: int = 0, samples: int = 3):
    random = np.random.default_rng(seed)
    return random.integers(0, config.vocab, (2, samples, config.context))


def shaken(model: GPT) -> GPT:
    """Weights far from their start: biases that are not 0, gains that are not 1, attention that is not flat."""
    for index, parameter in enumerate(model.parameters()):
        dropout_rng = np.random.default_rng(index).standard_normal(parameter.shape)
        parameter.data = (parameter.data + 0.3 * dropout_rng).astype(parameter.dtype)
    return model


def torch_weights(model: GPT) -> dict:
    return {name: torch.tensor(parameter.data, requires_grad=True) for name, parameter in model.named_parameters()}


def joined(heads):
    """(H, in, out), split by outputs -> (in, H * out)"""
    return heads.permute(1, 0, 2).flatten(1)


def torch_mixture(weights: dict, name: str, config: GPTConfig, x):
    """A mixture of experts, token by token, and its own losses: (B, T, C) to (B, T, C) and a scalar."""
    moe, flat = config.moe, x.flatten(0, 1)
    logits = flat @ weights[f"{name}.router.weight"]
    scores = torch.sigmoid(logits) if moe.gate == "sigmoid" else logits.softmax(1)
    chosen = scores.topk(moe.top_k).indices
    gates = scores.gather(1, chosen)
    if moe.top_k > 1:
        gates = gates / gates.sum(1, keepdim=True)
    room = [moe.rows_at_most(len(flat)) or len(flat)] * moe.experts
    rows = []
    for token, experts in enumerate(chosen.tolist()):
        total = torch.zeros_like(flat[0])
        for place, expert in enumerate(experts):
            if room[expert] > 0:
                room[expert] -= 1
                hidden = flat[token] @ joined(weights[f"{name}.experts.fc"][:, expert])
                hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
                out = hidden @ weights[f"{name}.experts.proj"][:, expert].flatten(0, 1)
                total = total + gates[token, place] * out
        rows.append(total)
    y = torch.stack(rows)
    if moe.shared_expert:
        hidden = flat @ joined(weights[f"{name}.shared.fc.weight"]) + weights[f"{name}.shared.fc.bias"].flatten()
        hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
        y = y + hidden @ weights[f"{name}.shared.proj.weight"].flatten(0, 1) + weights[f"{name}.shared.proj.bias"]
    shares = torch.bincount(chosen.flatten(), minlength=moe.experts).double() / chosen.numel()
    mean = (scores / scores.sum(1, keepdim=True)).mean(0)
    own = moe.aux_loss * moe.experts * (shares * mean).sum() + moe.z_loss * (logits.logsumexp(1) ** 2).mean()
    return y.view_as(x), own


def torch_loss(weights: dict, config: GPTConfig, tokens, targets):
    """The loss, with every weight joined to its full form; ``extra`` on it is what the mixtures add for backward."""
    heads, width = config.heads, config.width
    tokens, targets = torch.from_numpy(tokens), torch.from_numpy(targets)
    batch, length = tokens.shape
    table = weights["embeddings.token.weight"].flatten(0, 1)[: config.vocab]
    x, extra = table[tokens] + weights["embeddings.position"][:length], 0.0

    def norm(x, name):
        return torch.nn.functional.layer_norm(x, (width,), weights[f"{name}.gain"], weights[f"{name}.bias"])

    for layer in range(config.layers):
        name = f"blocks.{layer}"
        y = norm(x, f"{name}.norm1") @ joined(weights[f"{name}.attention.qkv.weight"])
        y = y + weights[f"{name}.attention.qkv.bias"].flatten()
        q, k, v = y.view(batch, length, heads, 3, -1).permute(3, 0, 2, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + y @ weights[f"{name}.attention.out.weight"].flatten(0, 1) + weights[f"{name}.attention.out.bias"]
        if layer in config.sparse_layers:
            y, own = torch_mixture(weights, f"{name}.mlp", config, norm(x, f"{name}.norm2"))
            x, extra = x + y, extra + own
            continue
        y = norm(x, f"{name}.norm2") @ joined(weights[f"{name}.mlp.fc.weight"])
        y = torch.nn.functional.gelu(y + weights[f"{name}.mlp.fc.bias"].flatten(), approximate="tanh")
        x = x + y @ weights[f"{name}.mlp.proj.weight"].flatten(0, 1) + weights[f"{name}.mlp.proj.bias"]
    logits = norm(x, "head.norm") @ table.T
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.extra = extra
    return loss


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_loss_and_gradients_in_float64(config):
    model = shaken(GPT(config, dtype=np.float64))
    weights = torch_weights(model)
    tokens, targets = batch(config)
    loss, expected = model(tokens, targets), torch_loss(weights, config, tokens, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    loss.backward()
    (expected + expected.extra).backward()
    largest = max(float(weight.grad.abs().max()) for weight in weights.values())
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(
            parameter.grad, weights[name].grad.numpy(), rtol=1e-10, atol=1e-12 * largest, err_msg=name
        )


def test_gradients_of_a_shorter_sequence_than_the_context():
    config = CONFIGS[0]
    model = shaken(GPT(config, dtype=np.float64))
    weights = torch_weights(model)
    tokens, targets = batch(config)[:, :, :5]
    model(tokens, targets).backward()
    torch_loss(weights, config, np.ascontiguousarray(tokens), np.ascontiguousarray(targets)).backward()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.grad, weights[name].grad.numpy(), rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.long
def test_twenty_steps_of_adamw_in_float32_with_clipping():
    """float32 has 24 bits, 6e-8. The losses may differ by some of that in each of the few sums that make one.

    AdamW divides a gradient by its own size, so where a gradient is mere rounding dropout_rng (the key bias, whose true
    gradient is 0), a step of the full lr may go either way. Elsewhere a weight's relative error is the gradient's, of
    about 1e-5, times lr, on each step: 20 * 1e-3 * 1e-5 = 2e-7. The tolerance is 1e-5, a hundredth of one step.
    """
    config = CONFIGS[0]
    model = shaken(GPT(config))
    weights = torch_weights(model)
    ours = AdamW(model.parameters(), lr=1e-3)
    decayed = [weights[name] for name, parameter in model.named_parameters() if parameter.decay]
    others = [weights[name] for name, parameter in model.named_parameters() if not parameter.decay]
    theirs = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95)
    )
    for step in range(20):
        tokens, targets = batch(config, seed=step)
        loss, expected = model(tokens, targets), torch_loss(weights, config, tokens, targets)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        model.zero_grad()
        loss.backward()
        average_gradients(model.parameters(), 1)
        norm = clip_grad_norm(model.parameters(), 0.5)
        ours.step()

        theirs.zero_grad()
        expected.backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(weights.values(), 0.5).item()
        assert norm == pytest.approx(expected_norm, rel=1e-5) and norm > 0.5
        theirs.step()
    head_width = config.width // config.heads
    for name, parameter in model.named_parameters():
        found, wanted = parameter.data, weights[name].detach().numpy()
        if name.endswith("qkv.bias"):  # without the key bias
            found, wanted = (
                np.delete(found, np.s_[head_width : 2 * head_width], 1),
                np.delete(wanted, np.s_[head_width : 2 * head_width], 1),
            )
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd(momentum):
    config = CONFIGS[4]
    model = shaken(GPT(config, dtype=np.float64))
    weights = torch_weights(model)
    ours = SGD(model.parameters(), lr=0.1, momentum=momentum)
    theirs = torch.optim.SGD(weights.values(), lr=0.1, momentum=momentum)
    for step in range(4):
        tokens, targets = batch(config, seed=step)
        model.zero_grad()
        model(tokens, targets).backward()
        average_gradients(model.parameters(), 1)
        ours.step()
        theirs.zero_grad()
        torch_loss(weights, config, tokens, targets).backward()
        theirs.step()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.data, weights[name].detach().numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


def test_logits_are_those_the_loss_is_of():
    config = CONFIGS[1]
    model = shaken(GPT(config, dtype=np.float64))
    tokens, targets = batch(config)
    logits = torch.from_numpy(model.logits(tokens).data.copy())
    assert logits.shape == (3, config.context, 256)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
    assert model(tokens, targets).item() == pytest.approx(expected.item(), rel=1e-12)


def test_starting_loss_is_that_of_a_uniform_guess():
    config = CONFIGS[0]
    assert GPT(config)(*batch(config)).item() == pytest.approx(math.log(256), abs=0.05)
