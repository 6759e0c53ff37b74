"""Files of Hugging Face's: what minidist writes, transformers loads, and the other way; training begins with them.

(Whether both compute the same from the same weights: tests/nn/test_transformers.py. What is refused: refusals.txt.)
"""

import json
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from choosing import long

from minidist.cli.main import main as cli
from minidist.nn.config import GPTConfig, MoEConfig
from minidist.nn.gpt import GPT
from minidist.nn.models import model_of
from minidist.nn.precision.formats import BFLOAT16, FLOAT16
from minidist.train.checkpoint.commit import name_of
from minidist.train.checkpoint.disk import BadCheckpoint
from minidist.train.checkpoint.hugging_face import check_tensors, from_tensors, settings_in, to_tensors, write_folder
from minidist.train.checkpoint.saver import Saving
from minidist.train.checkpoint.shards import INDEX, SHARD_SIZE, read_slice
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import Elasticity, run_elastic
from minidist.train.resilience.faults import Fault
from minidist.train.result import RunOptions
from minidist.train.trainer import run

SIZES = {"layers": 2, "heads": 6, "width": 60, "context": 8}
EXPERTS = {"experts": 4, "expert_hidden": 24, "bias_rate": 0.0}
MODELS = {
    "gpt2": GPTConfig(**SIZES),
    "gpt2, other hidden units": GPTConfig(**SIZES, hidden=36),
    "llama": GPTConfig(**SIZES, arch="llama", kv_heads=2, rope_base=500_000.0),
    "tied llama": GPTConfig(**SIZES, arch="llama", tied=1),
    "mixtral": GPTConfig(**SIZES, arch="llama", kv_heads=3, moe=MoEConfig(**EXPERTS)),
}
RUN = {"layers": 2, "heads": 4, "width": 16, "context": 8, "global_batch": 4, "micro_batch": 1, "steps": 4}
RUNS = {
    "gpt2": TrainConfig(**RUN),
    "llama": TrainConfig(**RUN, arch="llama", kv_heads=2),
    "mixtral": TrainConfig(**RUN, arch="llama", **EXPERTS),
    "in bfloat16": TrainConfig(**RUN, precision="bf16", dropout=0.1),
}
LAYOUTS = ("dp=1", "dp=2,zero=3", "tp=2", "pp=2", "dp=2,tp=2,zero=1")


def shaken(config: GPTConfig) -> GPT:
    """A model far from its start: biases that are not 0, gains that are not 1, attention that is not flat."""
    model = model_of(config)
    for index, parameter in enumerate(model.parameters()):
        noise = np.random.default_rng(index).standard_normal(parameter.shape, np.float32)
        parameter.data = parameter.data + np.float32(0.2) * noise
    return model


def arrays_of(model: GPT) -> dict[str, np.ndarray]:
    return {name: parameter.data for name, parameter in model.named_parameters()}


def model_in(folder: Path) -> GPT:
    """The model in a folder, as training would begin with it."""
    config = replace(TrainConfig(), **{name: value for name, (_, value) in settings_in(folder).items()}).model
    check_tensors(folder, config)
    model, read = model_of(config), partial(read_slice, folder)
    for name, parameter in model.named_parameters():
        parameter.data = from_tensors(config, name, read, parameter.shape, [(0, parameter.size)])
    return model


@pytest.mark.parametrize("size", [10**9, 30_000])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_what_is_written_is_read_back_to_the_bit(config, size, tmp_path):
    """Exceptions are the rows that round 256 tokens up to 258, which no token looks up: they are 0 then."""
    ours, folder = shaken(config), tmp_path / "new" / "hf"
    write_folder(folder, config, arrays_of(ours) | {"router_bias": np.ones(4)}, shard_size=size)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["config.json", "model.safetensors"] or (len(names) > 9 and size == 30_000)
    again = model_in(folder)
    written, read = (to_tensors(config, arrays_of(model)) for model in (ours, again))
    assert written.keys() == read.keys()
    for name, array in written.items():
        assert array.dtype == np.float32 and np.array_equal(array, read[name]), name
    for name, array in arrays_of(again).items():
        if name.endswith("token.weight"):
            assert np.array_equal(array.reshape(258, -1)[:256], ours_rows(ours, name)) and not array[-1, -2:].any()
        else:
            assert np.array_equal(array, arrays_of(ours)[name]), name


def ours_rows(model: GPT, name: str) -> np.ndarray:
    return arrays_of(model)[name].reshape(258, -1)[:256]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_loads_what_is_written_and_its_files_are_read(name, dtype, tmp_path):
    """Tensors have the same bits both ways, in files and in shards of both.

    Logits in float32, of sums of some hundred terms: 1e-5 of the largest, as in tests/nn/test_transformers.py.
    """
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'minidist[hf]'")
    ours, here, there = shaken(MODELS[name]), tmp_path / "ours", tmp_path / "theirs"
    sizes = (10**9, "1GB") if dtype == "float32" else (20_000, "20KB")
    write_folder(here, MODELS[name], arrays_of(ours), dtype, sizes[0])
    model, told = transformers.AutoModelForCausalLM.from_pretrained(here, output_loading_info=True)
    assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    assert model.dtype == getattr(torch, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(there, max_shard_size=sizes[1])
    assert (there / INDEX).exists() == (here / INDEX).exists() == (dtype != "float32")
    read = [model_in(folder) for folder in (here, there)]
    one, other = (to_tensors(MODELS[name], arrays_of(each)) for each in read)
    for tensor, values in to_tensors(MODELS[name], arrays_of(ours)).items():
        rounded = torch.from_numpy(values).to(model.dtype).float().numpy()
        assert np.array_equal(one[tensor], rounded) and np.array_equal(other[tensor], rounded), tensor
    tokens = np.random.default_rng(0).integers(0, 256, (2, 8))
    with torch.no_grad():
        right = model.float().eval()(torch.from_numpy(tokens)).logits.numpy()
    found = read[1].logits(tokens).data
    assert found.shape == right.shape and abs(found - right).max() < 1e-5 * abs(right).max()


@pytest.mark.parametrize("name, layouts", [("gpt2", LAYOUTS[:2]), *(long(name, LAYOUTS) for name in RUNS)])
def test_a_run_that_begins_with_the_initial_weights_is_the_run_without(name, layouts, ranks, tmp_path):
    config = RUNS[name]
    size = 10_000 if name == "llama" else SHARD_SIZE
    write_folder(tmp_path, config.model, arrays_of(model_of(config.model, config.seed)), shard_size=size)
    right = run(ranks(1), config, Layout(), RunOptions()).ranks[0].fingerprint
    other = replace(config, seed=1)
    for text in layouts:
        layout, options = Layout.parse(text), RunOptions(init_from=str(tmp_path))
        assert run(ranks(layout.world_size), config, layout, options).ranks[-1].fingerprint == right, text
    drawn, begun = (run(ranks(1), other, Layout(), each).ranks[0].losses for each in (RunOptions(), options))
    assert drawn[0] != begun[0]  # the weights are not those of seed 1


@pytest.mark.long
def test_it_is_exported_from_checkpoints_resumed_and_begun_again_after_a_failure(ranks, tmp_path, capsys):
    config, first = RUNS["mixtral"], tmp_path / "first"
    write_folder(first, config.model, arrays_of(shaken(config.model)))
    options = RunOptions(init_from=str(first))
    right = run(ranks(1), config, Layout(), options).ranks[0]
    saving, half = Saving(str(tmp_path / "saved"), 2, 0), Layout(dp=2)
    run(ranks(2), config, half, replace(options, saving=saving))
    resumed = RunOptions(resume=str(tmp_path / "saved" / name_of(2)), init_from=str(first))
    assert run(ranks(1), config, Layout(), resumed).ranks[0].fingerprint == right.fingerprint
    failing = replace(
        options, saving=Saving(str(tmp_path / "again"), 3), faults=(Fault.parse("rank=1,step=1,kind=kill"),)
    )
    result, interruptions = run_elastic(config, half, failing, Elasticity("restart"))
    assert len(interruptions) == 1 and result.ranks[0].fingerprint == right.fingerprint
    export = ["checkpoint", str(tmp_path / "saved"), "--export", "hf", str(tmp_path / "hf")]
    arrays = run(ranks(1), config, Layout(), replace(options, stop_after=3)).ranks[0].arrays
    for flags, rounded in (
        (["--dtype", "bfloat16", "--shard-size", "10kb"], BFLOAT16.round),
        (["--dtype", "float16"], FLOAT16.round),
        ([], np.copy),
    ):
        assert cli([*export, *flags]) == 0
        assert f"exported: hf {tmp_path / 'hf'}" in capsys.readouterr().out
        assert (tmp_path / "hf" / INDEX).exists() == ("--shard-size" in flags)
        for name, array in arrays_of(model_in(tmp_path / "hf")).items():
            assert np.array_equal(array, rounded(arrays[name])), name


def test_rotary_positions_are_for_any_length_and_other_flags_are_not_free(tmp_path, monkeypatch, capsys):
    write_folder(tmp_path, MODELS["llama"], arrays_of(shaken(MODELS["llama"])))
    flags = ["train", "--steps", "1", "--init-from", str(tmp_path), "--global-batch", "2"]
    first, again = (tmp_path / f"{name}.json" for name in ("first", "again"))
    assert cli([*flags, "--context", "4", "--heads", "6", "--json", str(first)]) == 0
    assert cli(["train", "--config", str(first), "--json", str(again)]) == 0
    assert len({json.loads(path.read_text())["fingerprint"] for path in (first, again)}) == 1
    assert cli([*flags, "--context", "16"]) == 2
    assert "--context 16 contradicts max_position_embeddings in" in capsys.readouterr().err


EVIL = (None, True, -1, 0, 3, 2**64, 10**400, 1.5, float("nan"), "x", [], {}, {"rope_type": "yarn", "rope_theta": 1.0})


@pytest.mark.parametrize("name", MODELS)
def test_any_other_config_is_refused_or_is_of_some_model(name, tmp_path):
    """Each value is replaced by anything JSON has, or left out: nothing but BadCheckpoint and ValueError is raised."""
    write_folder(tmp_path, MODELS[name], arrays_of(shaken(MODELS[name])))
    path = tmp_path / "config.json"
    right = json.loads(path.read_text())
    for key in right | {"rope_scaling": None, "rope_theta": None}:
        for evil in (*EVIL, "left out"):
            path.write_text(
                json.dumps({k: evil if k == key else v for k, v in right.items() if (k, evil) != (key, "left out")})
            )
            try:
                settings = {name: value for name, (_, value) in settings_in(tmp_path).items()}
                TrainConfig(**settings)
            except BadCheckpoint as error:
                assert str(path) in str(error)
            except ValueError:
                pass  # sizes that do not fit together
