"""The architectures, with random weights, against those of Hugging Face's ``transformers``, from their code alone.

All is compared in float64, where 1e-10 of the largest number is far above what a few thousand roundings of 2^-53 make,
and far below any mistake. transformers turns some activations into float32 on the way, whatever the weights are: here
it is kept from that. Both sides round the cosines of rotary positions to float32, but not the same ones: transformers
rounds angles, too. The comparison in float64 gives it minidist's, and another one bounds the difference.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from minidist.nn.config import GPTConfig, MoEConfig
from minidist.nn.gpt import GPT
from minidist.nn.llama_operations import rotary_table
from minidist.nn.models import model_of
from minidist.train.checkpoint.hugging_face import to_tensors

GPT2 = GPTConfig(vocab=11, context=9, layers=2, heads=6, width=60)
LLAMA = replace(GPT2, arch="llama")
MIXTRAL = replace(LLAMA, kv_heads=2, moe=MoEConfig(experts=4, top_k=2, expert_hidden=30, bias_rate=0.0))
LLAMAS = [
    replace(LLAMA, kv_heads=groups, width=6 * head, tied=tied, rope_base=base)
    for groups, head, tied, base in product((1, 2, 3), (6, 10, 16), (0, 1), (10_000.0, 500_000.0))
]

IN_PARTS = {"sequence_chunks": 3, "attention": "tiled", "attention_tile": 2}
OTHERS = [MIXTRAL, replace(MIXTRAL, tied=1), *(replace(config, **IN_PARTS) for config in (GPT2, LLAMAS[12], MIXTRAL))]


@pytest.fixture(scope="module", autouse=True)
def oracle():
    """PyTorch takes seconds to import: not in each process that collects the tests."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")
    pytest.importorskip("transformers", reason="needs transformers: pip install 'minidist[hf]'")
    global torch, transformers
    import torch
    import transformers


def named(config: GPTConfig) -> str:
    kind = f"{config.arch}, {config.groups} of {config.heads} heads, width {config.width}, base {config.rope_base:g}"
    return kind + ", tied" * config.tied + ", experts" * bool(config.moe) + ", in parts" * (config.sequence_chunks > 1)


def shaken(config: GPTConfig, dtype=np.float64) -> GPT:
    """A model far from its start: biases that are not 0, gains that are not 1, attention that is not flat."""
    model = model_of(config, dtype=dtype)
    for index, parameter in enumerate(model.parameters()):
        noise = np.random.default_rng(index).standard_normal(parameter.shape)
        parameter.data = (parameter.data + 0.2 * noise).astype(dtype)
    return model


def theirs(config: GPTConfig):
    """The same architecture of transformers, with other weights."""
    usual = {"vocab_size": config.vocab, "attn_implementation": "sdpa", "bos_token_id": None, "eos_token_id": None}
    if config.arch == "gpt2":
        sizes = {"n_positions": config.context, "n_embd": config.width, "n_layer": config.layers}
        dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        sizes |= {"n_head": config.heads, "activation_function": "gelu_new"} | dropouts
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**usual, **sizes))
    sizes = {"hidden_size": config.width, "num_hidden_layers": config.layers, "num_attention_heads": config.heads}
    sizes |= {"num_key_value_heads": config.groups, "max_position_embeddings": config.context, "rms_norm_eps": 1e-5}
    sizes |= {"rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base}}
    sizes |= {"tie_word_embeddings": bool(config.tied), "intermediate_size": config.hidden_units}
    if config.moe is None:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**usual, **sizes))
    sizes |= {"num_local_experts": config.moe.experts, "num_experts_per_tok": config.moe.top_k}
    sizes |= {"intermediate_size": config.moe.expert_hidden, "experts_implementation": "eager"}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**usual, **sizes))


def staying_double():
    """A context in which ``float()`` and ``to(torch.float32)`` leave a float64 tensor as it is."""
    from torch.overrides import TorchFunctionMode

    class Double(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            options = options or {}
            narrows = function is torch.Tensor.float or (
                function is torch.Tensor.to and torch.float32 in (*arguments[1:], options.get("dtype"))
            )
            if narrows and arguments[0].dtype == torch.float64:
                return arguments[0]
            return function(*arguments, **options)

    return Double()


def fused(tensors: dict, names) -> dict:
    """Mixtral's tensors as its modules have them: those of all experts in one, and gate above up."""
    found = {}
    for name in names:
        of_experts = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        if of_experts == name:
            found[name] = tensors[name.replace("mlp.gate.", "block_sparse_moe.gate.")]
            continue
        kinds, count = ("w2",) if name.endswith("down_proj") else ("w1", "w3"), MIXTRAL.moe.experts
        stem = of_experts.replace(".mlp.", ".block_sparse_moe.")
        each = [np.concatenate([tensors[f"{stem}{e}.{kind}.weight"] for kind in kinds]) for e in range(count)]
        found[name] = np.stack(each)
    return found


def same_as(config: GPTConfig, names, arrays: dict) -> dict:
    """Our arrays under the names of their parameters."""
    tensors = to_tensors(config, arrays)
    return fused(tensors, names) if config.moe else {name: tensors[name] for name in names}


def deviations(config: GPTConfig, dtype=np.float64) -> dict[str, float]:
    """Of logits, loss and each gradient the largest difference, over the largest number in it.

    In float32 transformers computes as its users know it, with its own rotary angles.
    """
    ours, other = shaken(config, dtype), theirs(config).to(torch.float64 if dtype == np.float64 else torch.float32)
    rng, length = np.random.default_rng(0), config.context - (config.sequence_chunks == 1)
    tokens, targets = rng.integers(0, config.vocab, (2, 3, length))
    parameters = dict(other.named_parameters())
    with torch.no_grad():
        weights = same_as(config, parameters, {name: p.data for name, p in ours.named_parameters()})
        for name, parameter in parameters.items():
            assert parameter.shape == weights[name].shape, name
            parameter.copy_(torch.from_numpy(weights[name]))
    if config.arch == "llama" and dtype == np.float64:
        table = rotary_table(0, length, config.width // config.heads, config.rope_base)
        turn = [torch.from_numpy(np.concatenate((each, each), 1))[None].to(other.dtype) for each in table]
        other.model.rotary_emb.forward = lambda x, position_ids: turn
    loss = ours(tokens, targets)
    loss.backward()
    labels = torch.from_numpy(targets)
    with staying_double():  # where it is float64
        result = other(torch.from_numpy(tokens), labels=labels, shift_labels=labels)
        result.loss.backward()
    gradients = same_as(config, parameters, {name: p.grad for name, p in ours.named_parameters()})
    pairs = {name: (gradients[name], parameter.grad) for name, parameter in parameters.items()}
    pairs |= {"logits": (ours.logits(tokens).data, result.logits), "loss": (loss.data, result.loss)}
    found = {}
    for name, (mine, right) in pairs.items():
        right = right.detach().numpy()
        assert mine.shape == right.shape and right.dtype == dtype, name
        found[name] = float(abs(mine - right).max() / abs(right).max())
    return found


@pytest.mark.parametrize("config", [GPT2, *LLAMAS, *OTHERS], ids=named)
def test_logits_loss_and_all_gradients_are_those_of_transformers(config):
    found = deviations(config)
    assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize("config", [GPT2, LLAMAS[0], LLAMAS[-1], MIXTRAL], ids=named)
def test_as_it_is_used_it_differs_by_roundings(config):
    """In float32 some hundred roundings of 2^-24 meet in a number, 1e-5, and gradients are sums that partly cancel."""
    found = deviations(config, np.float32)
    assert found["logits"] < 1e-5 and max(found.values()) < 1e-4, found


@pytest.mark.parametrize("head, base", [(6, 10_000.0), (16, 500_000.0), (64, 10_000.0)])
def test_rotary_angles_differ_by_their_roundings(head, base):
    """transformers rounds the exponent, the power, its inverse, and the angle, which grows with the position.

    An exponent below 1 is rounded by 2^-25, so the power changes by ln(base) < 14 times as much.
    """
    config = replace(LLAMA, heads=1, width=head, rope_base=base)
    positions = torch.arange(2000)[None]
    right = theirs(config).model.rotary_emb(torch.zeros(1), positions)
    angles = np.arange(2000)[:, None] * base ** (-2 * np.arange(head // 2) / head)
    for mine, other in zip(rotary_table(0, 2000, head, base), right, strict=True):
        assert (abs(mine - other[0, :, : head // 2].numpy()) <= (10 * angles + 1) * 2.0**-24).all()
