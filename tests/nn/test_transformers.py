"""The architectures, with random weights, against those of Hugging Face's ``transformers``, from their code alone.

All is compared in float64, where 1e-10 of the largest number is far above what a few thousand roundings of 2^-53 make,
and far below any mistake. transformers turns some activations into float32 on the way, whatever the weights are: here
it is kept from that. Both sides round the cosines of rotary positions to float32, but not the same ones: transformers
rounds angles, too. The comparison in float64 gives it minidist's, and another one bounds the difference.

Runs are compared too: what eight ranks here have saved goes on there, with torch's AdamW.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from choosing import long

from minidist.cli.main import main as cli
from minidist.nn.config import GPTConfig, MoEConfig
from minidist.nn.data import load_corpus
from minidist.nn.gpt import GPT
from minidist.nn.llama_operations import rotary_table
from minidist.nn.models import model_of
from minidist.nn.optim.optimizers import warmup_cosine
from minidist.train.checkpoint.commit import name_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.hugging_face import to_tensors
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.restore import full_arrays
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.share import batch_of
from minidist.train.trainer import run

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
    """Return the architecture of transformers, with other weights."""
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


def turn_alike(model, config: GPTConfig, length: int) -> None:
    """Give a Llama of transformers minidist's rotary table, in its own dtype."""
    table = rotary_table(0, length, config.width // config.heads, config.rope_base)
    turn = [torch.from_numpy(np.concatenate((each, each), 1))[None].to(model.dtype) for each in table]
    model.model.rotary_emb.forward = lambda x, position_ids: turn


def deviations(config: GPTConfig, dtype=np.float64) -> dict[str, float]:
    """Return the largest difference of logits, loss and each gradient, over the largest number in it.

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
        turn_alike(other, config, length)
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
    """Some hundred float32 roundings of 2^-24 meet in a number, 1e-5, and gradients are sums that partly cancel."""
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


SAVED, MORE = 5, 3  # steps of a run before it is exported, and after
RUN = {"layers": 2, "heads": 4, "width": 32, "context": 16, "global_batch": 8, "micro_batch": 2}
RUN |= {"steps": 12, "warmup": 2, "lr": 0.01, "clip": 0.5, "weight_decay": 0.1}
RUNS = {
    "gpt2": (TrainConfig(**RUN), "dp=2,tp=2,pp=2"),
    "llama": (TrainConfig(**RUN, arch="llama", kv_heads=2), "dp=2,tp=2,pp=2"),
    "tied llama": (TrainConfig(**RUN, arch="llama", kv_heads=2, tied=1), "dp=4,tp=2,zero=3"),
}


def of_theirs(config: TrainConfig, arrays: dict, kind: str = "") -> dict:
    """The weights, or a state of the optimizer's, under transformers' names."""
    names = [name for name, _ in model_of(config.model, seed=None).named_parameters()]
    return to_tensors(config.model, {name: arrays[kind + name] for name in names})


def continued(config: TrainConfig, model, arrays: dict) -> tuple[list[float], dict]:
    """Losses of the steps that a model takes with torch's AdamW and clipping after a checkpoint; its weights then.

    Args:
        arrays: those of the checkpoint, with the moments.
    """
    parameters, decays = dict(model.named_parameters()), {}
    for name, parameter in model_of(config.model, seed=None).named_parameters():
        decays |= dict.fromkeys(to_tensors(config.model, {name: parameter.data}), parameter.decay)
    assert decays.keys() == parameters.keys()
    optimizer = torch.optim.AdamW([
        {"params": [parameters[name] for name in decays if decays[name] == decay], "weight_decay": rate}
        for decay, rate in ((True, config.weight_decay), (False, 0.0))
    ], betas=(0.9, 0.95))  # fmt: skip
    moments = {kind: of_theirs(config, arrays, f"{kind}.") for kind in ("exp_avg", "exp_avg_sq")}
    for name, parameter in parameters.items():
        state = {kind: torch.from_numpy(tensors[name]).to(model.dtype) for kind, tensors in moments.items()}
        optimizer.state[parameter] = {"step": torch.tensor(float(SAVED))} | state
    corpus, losses = load_corpus(config.text, config.context), []
    for step in range(SAVED, SAVED + MORE):
        for group in optimizer.param_groups:
            group["lr"] = warmup_cosine(step, config.steps, config.lr, config.warmup, config.lr / 10)
        batches = [batch_of(corpus, config, step, number)[:2] for number in range(config.micro_batches)]
        tokens, labels = (torch.from_numpy(np.concatenate(some)).long() for some in zip(*batches, strict=True))
        optimizer.zero_grad()
        with staying_double():  # where it is float64
            loss = model(tokens, labels=labels, shift_labels=labels).loss
            loss.backward()
        assert torch.nn.utils.clip_grad_norm_(parameters.values(), config.clip) > config.clip
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: parameter.detach().numpy() for name, parameter in parameters.items()}


@pytest.mark.parametrize("name", ["llama", *(long(name) for name in RUNS if name != "llama")])
def test_a_run_of_eight_ranks_continues_in_transformers_as_it_does_here(name, ranks, tmp_path):
    """It has the moments of its checkpoint; float64 says what is right, and both are as far from it as roundings make.

    Losses come out within one rounding, 2^-24, so they may be 5e-7 off; some would be by 7e-6 if the moments of heads
    were exchanged, and by 1e-4 to 1e-2 with any other mistake. Adam divides a gradient by its size, and small ones
    consist of roundings to a larger part: an update may be off by some 1e-4 of the rate, 0.01, and there are three.
    """
    config, text = RUNS[name]
    layout, saved, exported = Layout.parse(text), tmp_path / "saved", tmp_path / "hf"
    run(ranks(8), config, layout, RunOptions(saving=Saving(str(saved), every=SAVED), stop_after=SAVED - 1))
    assert cli(["checkpoint", str(saved), "--export", "hf", str(exported), "--shard-size", "20KB"]) == 0
    checkpoint = saved / name_of(SAVED)
    resumed = RunOptions(resume=str(checkpoint), stop_after=SAVED + MORE - 1)
    mine = run(ranks(1), config, Layout(), resumed).ranks[0]
    arrays, found = full_arrays(checkpoint, Manifest.read(Disk(), checkpoint), optimizer=True), {}
    for dtype in (torch.float64, torch.float32):
        model = transformers.AutoModelForCausalLM.from_pretrained(exported).to(dtype)
        if config.arch == "llama" and dtype == torch.float64:
            turn_alike(model, config.model, config.context)
        found[dtype] = continued(config, model, arrays)
    losses, weights = found[torch.float64]
    for other, theirs in ((mine.losses[SAVED:], of_theirs(config, mine.arrays)), found[torch.float32]):
        assert other == pytest.approx(losses, rel=5e-7)
        off = {name: abs(theirs[name] - right).max() for name, right in weights.items()}
        assert max(off.values()) < 1e-5, off
