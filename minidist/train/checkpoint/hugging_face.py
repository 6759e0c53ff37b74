"""A model in the files of Hugging Face's ``transformers``: a folder with config.json and files of tensors (shards.py).

Both sides hold the same numbers in different arrangements, and one table describes them for both directions. A row has
the name and the axes of an array here, then the name and the axes of its tensors there. ``hd,c`` is an axis of all
heads' values, one head after the other, then an axis of the width. Where a name stands for several tensors, such as
``(k|v)`` and those of experts, they are the first axes. Linear layers are stored (out, in), except in GPT-2.

Letters: h heads, g heads of keys and values, d values of a head, c width, f hidden units of a head, p and q two and
three things side by side, e experts, t positions, v tokens of a head. Padding rows of the vocabulary are left out.

A folder is trusted no more than a manifest is: an error names what minidist does not have.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from pathlib import Path

import numpy as np

from minidist import backend
from minidist.nn.config import GPTConfig
from minidist.nn.models import model_of
from minidist.parallel.tools.regions import Run
from minidist.train.checkpoint.disk import BadCheckpoint
from minidist.train.checkpoint.shards import SHARD_SIZE, STORED, json_in, read_slice, tensors_in, write_model
from minidist.train.share import Share

CONFIG = "config.json"

GPT2 = """
embeddings.token.weight            hvc     transformer.wte.weight                                        hv,c
embeddings.position                tc      transformer.wpe.weight                                        t,c
blocks.{i}.norm1.gain              c       transformer.h.{i}.ln_1.weight                                 c
blocks.{i}.norm1.bias              c       transformer.h.{i}.ln_1.bias                                   c
blocks.{i}.attention.qkv.weight    hcqd    transformer.h.{i}.attn.c_attn.weight                          c,qhd
blocks.{i}.attention.qkv.bias      hqd     transformer.h.{i}.attn.c_attn.bias                            qhd
blocks.{i}.attention.out.weight    hdc     transformer.h.{i}.attn.c_proj.weight                          hd,c
blocks.{i}.attention.out.bias      c       transformer.h.{i}.attn.c_proj.bias                            c
blocks.{i}.norm2.gain              c       transformer.h.{i}.ln_2.weight                                 c
blocks.{i}.norm2.bias              c       transformer.h.{i}.ln_2.bias                                   c
blocks.{i}.mlp.fc.weight           hcf     transformer.h.{i}.mlp.c_fc.weight                             c,hf
blocks.{i}.mlp.fc.bias             hf      transformer.h.{i}.mlp.c_fc.bias                               hf
blocks.{i}.mlp.proj.weight         hfc     transformer.h.{i}.mlp.c_proj.weight                           hf,c
blocks.{i}.mlp.proj.bias           c       transformer.h.{i}.mlp.c_proj.bias                             c
head.norm.gain                     c       transformer.ln_f.weight                                       c
head.norm.bias                     c       transformer.ln_f.bias                                         c
"""
LLAMA = """
embeddings.token.weight            hvc     model.embed_tokens.weight                                     hv,c
blocks.{i}.norm1.gain              c       model.layers.{i}.input_layernorm.weight                       c
blocks.{i}.attention.qkv.q         hcd     model.layers.{i}.self_attn.q_proj.weight                      hd,c
blocks.{i}.attention.qkv.kv        gcpd    model.layers.{i}.self_attn.(k|v)_proj.weight                  p,gd,c
blocks.{i}.attention.out.weight    hdc     model.layers.{i}.self_attn.o_proj.weight                      c,hd
blocks.{i}.norm2.gain              c       model.layers.{i}.post_attention_layernorm.weight              c
blocks.{i}.mlp.fc.weight           hcpf    model.layers.{i}.mlp.(gate|up)_proj.weight                    p,hf,c
blocks.{i}.mlp.proj.weight         hfc     model.layers.{i}.mlp.down_proj.weight                         c,hf
blocks.{i}.mlp.router.weight       ce      model.layers.{i}.block_sparse_moe.gate.weight                 e,c
blocks.{i}.mlp.experts.fc          hecpf   model.layers.{i}.block_sparse_moe.experts.{e}.(w1|w3).weight  e,p,hf,c
blocks.{i}.mlp.experts.proj        hefc    model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight       e,c,hf
head.norm.gain                     c       model.norm.weight                                             c
head.token.weight                  hvc     lm_head.weight                                                hv,c
"""
TABLES = {"gpt2": GPT2, "llama": LLAMA}
CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "mixtral": "MixtralForCausalLM"}  # by model_type
WHOLE = {  # settings that are whole numbers, and their names in config.json
    "gpt2": {"layers": "n_layer", "heads": "n_head", "width": "n_embd", "context": "n_positions", "hidden": "n_inner"},
    "llama": {
        "layers": "num_hidden_layers", "heads": "num_attention_heads", "width": "hidden_size",
        "context": "max_position_embeddings", "kv_heads": "num_key_value_heads", "hidden": "intermediate_size",
    },
}  # fmt: skip
WHOLE["mixtral"] = {name: there for name, there in WHOLE["llama"].items() if name != "hidden"} | {
    "expert_hidden": "intermediate_size", "experts": "num_local_experts", "top_k": "num_experts_per_tok"
}  # fmt: skip
ONLY = {  # settings of which minidist supports one value
    "gpt2": {
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False, "tie_word_embeddings": True,
    },
    "llama": {"hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False},
    "mixtral": {"hidden_act": "silu", "rms_norm_eps": 1e-5, "sliding_window": None},
}  # fmt: skip
ABSENT = {  # transformers' values of settings that config.json leaves out, where they differ from ONLY
    "gpt2": {"n_inner": None},
    "llama": {"rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "num_key_value_heads": None},
    "mixtral": {"rope_theta": 1e6},
}
MIXTRAL = {"moe_every": 1, "gate": "softmax", "shared_expert": 0, "capacity": None, "bias_rate": 0.0, "route_nodes": 0}
NAMED = 3  # at most this many tensors are named in an error


def to_tensors(config: GPTConfig, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert the full arrays of a model, or their gradients, to Hugging Face's tensors."""
    return {
        tensor: np.ascontiguousarray(_without_padding(view, shape))
        for name, array in arrays.items()
        for tensor, view, shape in _tensors_in(config, name, np.ascontiguousarray(array))
    }


def from_tensors(
    config: GPTConfig, name: str, read: Callable[..., np.ndarray], shape: tuple[int, ...], runs: Sequence[Run]
) -> np.ndarray:
    """Return one full array of a model, float32, of which only the elements in ``runs`` are valid.

    Args:
        read: ``read(tensor, rows, columns)`` returns a slice of a tensor of Hugging Face's, as ``read_slice`` does. It
            is called for the consecutive rows and columns that have elements of the runs.
        runs: places of the valid elements in the array laid flat. Padding rows are 0.
    """
    array, wanted = np.zeros(shape, np.float32), np.zeros(shape, bool)
    for start, stop in runs:
        wanted.reshape(-1)[start:stop] = True
    parts = zip(_tensors_in(config, name, array), _tensors_in(config, name, wanted), strict=True)
    for (tensor, view, there), (_, mine, _) in parts:
        values, mine = np.zeros(view.size, np.float32), _without_padding(mine, there).reshape(there[0], -1)
        matrix = _without_padding(values, mine.shape)
        for rows, columns in product(_consecutive(np.any(mine, 1)), _consecutive(np.any(mine, 0))):
            matrix[rows.start : rows.stop, columns.start : columns.stop] = read(tensor, rows, columns)
        view[...] = values.reshape(view.shape)
    return array


def _consecutive(wanted: np.ndarray) -> list[range]:
    """Return the ranges in which a vector of booleans is true, as few as possible."""
    bounds = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False]))))
    return [range(start, stop) for start, stop in bounds.reshape(-1, 2).tolist()]


def _without_padding(view: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return view.reshape(-1)[: prod(shape)].reshape(shape)


def _tensors_in(config: GPTConfig, name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray, tuple[int, ...]]]:
    """Yield Hugging Face's tensors for an array: each tensor's name, a view of its elements here, its shape there."""
    experts = config.moe.experts if config.moe else 0
    sizes = {"h": config.heads, "g": config.groups, "d": config.width // config.heads, "c": config.width}
    sizes |= {"t": config.context, "v": -(-config.vocab // config.heads), "p": 2, "q": 3, "e": experts}
    layer = (re.findall(r"\.(\d+)\.", name) or [""])[0]
    rows = [row.replace("{i}", layer).split() for row in TABLES[config.arch].strip().splitlines()]
    ((_, axes, tensor, there),) = [row for row in rows if row[0] == name]
    there = there.split(",")
    split = array.reshape([sizes.get(axis, -1) for axis in axes])
    view = split.transpose([axes.index(axis) for axis in "".join(there)])
    sizes["f"] = split.shape[axes.index("f")] if "f" in axes else 0
    numbers = range(experts) if "{e}" in tensor else [""]
    kinds = re.findall(r"\w+", (re.findall(r"\(.*\)", tensor) or [""])[0]) or [""]
    names = [re.sub(r"\(.*\)", kind, tensor).replace("{e}", str(e)) for e in numbers for kind in kinds]
    first = (len(kinds) > 1) + ("{e}" in tensor)  # axes that number the tensors
    shape = tuple(config.vocab if axis == "hv" else prod(sizes[each] for each in axis) for axis in there[first:])
    for each, place in zip(names, np.ndindex(view.shape[:first]), strict=True):
        yield each, view[place], shape


def config_json(config: GPTConfig, dtype: str = "float32") -> dict:
    """Return the content of config.json for a model whose tensors are of ``dtype``.

    Raises:
        ValueError: for a setting that no architecture of transformers has, naming it.
    """
    kind, settings = "mixtral" if config.arch == "llama" and config.moe else config.arch, dict(vars(config))
    if config.moe:
        if config.arch == "gpt2":
            raise ValueError("transformers has no GPT-2 with experts; a Llama with experts is its Mixtral")
        settings |= vars(config.moe) | {"expert_hidden": config.moe.expert_hidden or config.hidden_units}
        for name, only in MIXTRAL.items():
            if settings[name] != only:
                raise ValueError(f"transformers' Mixtral has {name} {only}, but this model has {settings[name]}")
        if config.moe.top_k == 1:
            raise ValueError("with top_k 1, transformers' Mixtral weights an expert by 1, but minidist by its score")
    settings |= {"hidden": config.hidden_units, "kv_heads": config.groups}
    found = {"architectures": [CLASSES[kind]], "model_type": kind, "dtype": dtype, "vocab_size": config.vocab}
    found |= {there: settings[name] for name, there in WHOLE[kind].items()} | ONLY[kind]
    found |= {"bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        return found | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.dropout)
    found |= {"head_dim": config.width // config.heads, "tie_word_embeddings": bool(config.tied)}
    return found | {"rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base}}


def write_folder(
    folder: Path, config: GPTConfig, arrays: Mapping[str, np.ndarray], dtype: str = "float32", shard_size=SHARD_SIZE
) -> None:
    """Write a model into a folder, which is made if it does not exist. A model that is already there is replaced.

    Args:
        arrays: the full arrays, by name; each is looked up when it is written. Arrays that are not parameters, such as
            the routers' counts, are left out.
        dtype, shard_size: see ``write_model``.
    """
    content, parameters = json.dumps(config_json(config, dtype), indent=2), _parameters(config)
    shapes = {tensor: shape for name, a in parameters.items() for tensor, _, shape in _tensors_in(config, name, a)}
    tensors = (tensor for name in parameters for tensor in to_tensors(config, {name: arrays[name]}).values())
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder, {CONFIG: content + "\n"}, shapes, tensors, dtype, shard_size)


def _parameters(config: GPTConfig) -> dict[str, np.ndarray]:
    """Return arrays in the shapes of a model's parameters, by name."""
    return {name: parameter.data for name, parameter in model_of(config, seed=None).named_parameters()}


def settings_in(folder: Path) -> dict[str, tuple[str, object]]:
    """Return the settings of the model in a folder: setting -> (its name in config.json, its value).

    Raises:
        BadCheckpoint: for a model that minidist does not have, naming what it lacks.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise BadCheckpoint(f"{path}: there is no such file, but a model's folder needs one")
    document = json_in(path)
    kind = document.get("model_type")
    try:
        if not (isinstance(kind, str) and kind in CLASSES):
            raise ValueError(f"model_type is {kind!r}, but minidist supports {', '.join(CLASSES)}")
        return _settings(kind, ONLY[kind] | ABSENT[kind] | document)
    except ValueError as error:
        raise BadCheckpoint(f"{path}: {error}") from None


def _check(holds: object, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _settings(kind: str, document: dict) -> dict[str, tuple[str, object]]:
    for name, only in ONLY[kind].items():
        _check(document[name] == only, f"{name} is {document[name]!r}, but minidist supports only {only!r}")
    vocab = document.get("vocab_size")
    _check(type(vocab) is int and 0 < vocab < 2**31, f"vocab_size must be a whole number of at least 1, not {vocab!r}")
    found = {"arch": ("model_type", "gpt2" if kind == "gpt2" else "llama"), "vocab": ("vocab_size", vocab)}
    for name, there in WHOLE[kind].items():
        value = document.get(there)
        if value is None and there in ABSENT[kind]:
            continue  # minidist's default is that of transformers
        _check(type(value) is int and 0 < value < 2**31, f"{there} must be a whole number of at least 1, not {value!r}")
        found[name] = there, value
    if kind == "gpt2":
        return found
    tied, head = document.get("tie_word_embeddings", False), document.get("head_dim")
    _check(isinstance(tied, bool), f"tie_word_embeddings must be true or false, not {tied!r}")
    usual = found["width"][1] / found["heads"][1]
    _check(
        head in (None, usual),
        f"head_dim is {head!r}, but minidist supports only hidden_size / num_attention_heads, {usual:g}",
    )
    found |= {"tied": ("tie_word_embeddings", int(tied)), "rope_base": ("rope_theta", _rope_base(document))}
    return found | {name: ("model_type", only) for name, only in MIXTRAL.items() if kind == "mixtral"}


def _rope_base(document: dict) -> float:
    rope = document.get("rope_parameters") or {}
    _check(
        isinstance(rope, dict) and not document.get("rope_scaling"), "minidist does not support scaled rotary positions"
    )
    rope = {"rope_type": "default", "rope_theta": document["rope_theta"]} | rope
    base = rope.pop("rope_theta")
    _check(rope == {"rope_type": "default"}, f"minidist does not support rotary positions with {rope}")
    _check(type(base) in (int, float) and 1 <= base < 2**63, f"rope_theta must be a number of at least 1, not {base!r}")
    return float(base)


def check_tensors(folder: Path, config: GPTConfig) -> None:
    """Raise BadCheckpoint if a folder's tensors are not those of this model, naming those that differ."""
    there = tensors_in(folder)
    if config.layers > len(there):
        raise BadCheckpoint(f"{folder} has only {len(there)} tensors, but its model has {config.layers} layers")
    arrays = _parameters(config).items()
    expected = {tensor: shape for name, array in arrays for tensor, _, shape in _tensors_in(config, name, array)}
    problems = []
    for name in sorted(there | expected):
        shape, right = there[name].shape if name in there else "none", expected.get(name, "none")
        if shape != right:
            problems.append(f"expected {name} to be {right}, got {shape}")
        elif there[name].dtype not in STORED:
            problems.append(f"{name} is {there[name].dtype}, but minidist reads {', '.join(STORED)}")
    if problems:
        more = [f"{len(problems) - NAMED} more"] if len(problems) > NAMED else []
        raise BadCheckpoint(f"{folder}: {'; '.join(problems[:NAMED] + more)}")


def begin_from(folder: Path, share: Share) -> None:
    """Replace the initial weights of this rank's share by those in a folder. All ranks call it together."""
    regions, shapes = share.model.regions(), share.model.shapes
    for parameter in share.model.trained:
        name, target = parameter.name, parameter.data
        runs = regions[name].runs
        full = from_tensors(share.config.model, name, partial(read_slice, folder), shapes[name], runs).reshape(-1)
        mine = np.concatenate([full[:0], *(full[start:stop] for start, stop in runs)])
        backend.copy_from_host(target, mine.reshape(target.shape))
    share.model.sync_params()
