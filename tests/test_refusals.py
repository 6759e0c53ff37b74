"""What is said of input that cannot be: every line of each refusals.txt, but for show's. Here is what they call."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from clusters import start_no_ranks
from planned import HARDWARE, NETWORK
from refusals import check_refusals, refusal
from safetensors.numpy import load_file, save_file

from minidist.course.answers import solutions
from minidist.course.sandbox.values import numbers
from minidist.course.stubs import plan_reset, stub_of
from minidist.data.documents import MANIFEST, prepare, read_documents
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.models import MODELS
from minidist.nn.tensor import Function, Tensor
from minidist.nn.tokenizer import BYTES, ByteTokenizer
from minidist.parallel.tools.schedule_check import check_schedule
from minidist.parallel.tools.schedules import Action
from minidist.plan.batches import BatchExperiment, Run
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.toml_tables import from_table
from minidist.plan.cluster.topologies import from_toml, topology_of
from minidist.plan.cluster.topology import Topology
from minidist.plan.models import model_of
from minidist.plan.published_runs import PublishedRun
from minidist.plan.scaling.laws import Training
from minidist.train.checkpoint.hugging_face import write_folder
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

TWELVE = model_of("layers=12,width=960,heads=12,vocab=1000,context=240")
RUNS = [Training(10.0**size, 10.0**tokens, 30.0 - size - tokens) for size in (8, 9, 10) for tokens in (9, 10, 11)]
GOOD = np.zeros((2, 8), np.int64)
CONFIG = {field.name for field in fields(TrainConfig)}
PARTS, OTHER = ([numbers(rank, 4, seed=seed) for rank in range(5)] for seed in (0, 1))
COPIES = {"rank 0's": PARTS[0], "rank 1's": PARTS[1]}
TWO_RANKS = SimpleNamespace(rank=0, size=2)


def refused(layout: str = "dp=1", **settings) -> None:
    """Begin a run that has to be refused, with settings of its config and options."""
    split, config = Layout.parse(layout), {key: value for key, value in settings.items() if key in CONFIG}
    nobody = SimpleNamespace(world_size=split.world_size)  # a cluster that runs nothing
    options = {key: value for key, value in settings.items() if key not in CONFIG}
    run(nobody, TrainConfig(**config), split, RunOptions(**options))


def gpt() -> GPT:
    return GPT(GPTConfig(context=8, layers=1, heads=2, width=8))


def half(model: GPT) -> GPT:
    """Leave the model only the tokens of its first head, and return it."""
    model.embeddings.token.weight.data = model.embeddings.token.weight.data[:1]
    return model


def product() -> Tensor:
    """Two numbers, made by an operation."""
    x = Tensor(np.ones(2), requires_grad=True)
    return x * x


def function_with(backward=None, forward=lambda ctx, x: x * 1) -> type[Function]:
    return type("Wrong", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def checked(*ranks: str, micro_batches: int = 1) -> None:
    """Check a schedule: of each rank its actions."""
    check_schedule([[Action.parse(text) for text in rank.split()] for rank in ranks], micro_batches)


def parts(dtype: str) -> list[np.ndarray]:
    return [part.astype(dtype) for part in PARTS]


def sending(*bytes_to: list[int]) -> list[SimpleNamespace]:
    """Results of ranks, of each the bytes that it sent to each rank, and a message to everyone."""
    return [SimpleNamespace(traffic=SimpleNamespace(sent=np.array([row, [1] * len(row)]).T)) for row in bytes_to]


def begun(flags: str = "", arch: str = "gpt2", config=None, tensors=lambda file: file, drop="", add=None, **changes):
    """minidist train --init-from of a model's folder, of which config.json and its tensors have been changed.

    Args:
        config: other content of config.json.
        tensors: function from the content of the file of tensors to another; None for no such file.
        drop, add: a tensor to leave out, and others to put in.
        changes: other values in config.json.
    """
    write_hf(arch)
    right = json.loads(Path("hf/config.json").read_text(encoding="utf-8")) | changes
    Path("hf/config.json").write_bytes(config or json.dumps(right).encode())
    file = Path("hf/model.safetensors")
    save_file({name: a for name, a in load_file(file).items() if name != drop} | (add or {}), file)
    if tensors is None:
        file.unlink()
    else:
        file.write_bytes(tensors(file.read_bytes()))
    begin_from_hf(flags)


def in_shards(change=lambda one, two: None, index=lambda index: index) -> None:
    """minidist train --init-from of a model in two shards.

    Args:
        change: function of the tensors by name, of each shard, which changes them.
        index: function from the index to what is written in its place.
    """
    write_hf("gpt2", shard_size=10_000)
    paths = sorted(Path("hf").glob("*-of-00002.safetensors"))
    shards = [load_file(path) for path in paths]
    change(*shards)
    for path, shard in zip(paths, shards, strict=True):
        save_file(shard, path)
        if not shard:
            path.unlink()
    path = Path("hf/model.safetensors.index.json")
    path.write_text(json.dumps(index(json.loads(path.read_text()))))
    begin_from_hf()


def mapped(**files: str):
    """A change of an index: other files for tensors, whose dots are written as __."""
    changes = {name.replace("__", "."): file for name, file in files.items()}
    return lambda index: index | {"weight_map": index["weight_map"] | changes}


def write_hf(arch: str, **options) -> None:
    """Write a model's folder."""
    model = GPTConfig(context=8, layers=2, heads=2, width=8, arch=arch)
    arrays = {name: parameter.data for name, parameter in MODELS[arch](model).named_parameters()}
    write_folder(Path("hf"), model, arrays, **options)


def begin_from_hf(flags: str = "") -> None:
    """minidist train on that folder, which is removed then."""
    try:
        raise ValueError(refusal(f"minidist train --init-from hf {flags}", {}))
    finally:
        shutil.rmtree("hf")


def with_header(text: str, data: int = 0) -> bytes:
    """A safetensors file with this header and that many bytes of data."""
    return len(text).to_bytes(8, "little") + text.encode() + bytes(data)


def sum_of(counts: list[int], dtype: str) -> np.ndarray:
    """Each rank's part so many times."""
    return sum(count * part for count, part in zip(counts, parts(dtype), strict=True)).astype(dtype)


def hardware(before: str, after: str, size: str = "") -> ClusterSpec:
    """A cluster of one's own file, in which one text has become another."""
    assert before in HARDWARE
    Path("own.toml").write_text(HARDWARE.replace(before, after, 1) if before else HARDWARE + after, encoding="utf-8")
    return ClusterSpec.parse(f"own.toml{size}")


def network(before: str, after: str) -> Topology:
    """One's own graph, in which one text has become another."""
    assert before in NETWORK
    Path("ring.toml").write_text(NETWORK.replace(before, after, 1), encoding="utf-8")
    return from_toml("ring.toml")


def without_uplink() -> Topology:
    """Four nodes, the third of which has lost its cable to the spine."""
    found = topology_of(ClusterSpec.parse("h100:4x8"))
    del found.links["leaf2", "spine"]
    return Topology(found.chips, found.nodes, found.links, chips_forward=False)


def published(**changes) -> PublishedRun:
    """An entry of published_runs.toml with these changes."""
    table = {"name": "x", "model": "gpt3-175b", "cluster": "a100:1x8", "layout": "dp=8", "batch": 8, "source": "y"}
    table |= {"mfu": 0.4} | changes
    return from_table(PublishedRun, {key: value for key, value in table.items() if value is not None}, "here")


def unreached() -> BatchExperiment:
    """An experiment in which no rate tried reached the loss."""
    return BatchExperiment(2.3, 8, 32, 6400, 128, (Run("adamw", 32, 0.1, 0, None),), (), ())


def grade(submissions: str, *flags: str) -> None:
    """minidist grade of a folder that has these submissions."""
    for name in submissions.split():
        place = Path("in", name)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"") if place.suffix else place.mkdir(exist_ok=True)
    try:
        with pytest.MonkeyPatch.context() as patch:  # what a user has set for tests of her own
            for name, value in (("PYTEST_ADDOPTS", "--no"), ("PYTEST_PLUGINS", "no_such"), ("PY_COLORS", "1")):
                patch.setenv(name, value)
            raise ValueError(refusal(" ".join(["minidist grade in", *flags]), {}))
    finally:
        for place in Path("in").iterdir():
            place.unlink() if place.suffix else place.rmdir()


def verify_file(text: str) -> None:
    """minidist verify on a learner's file with this text."""
    Path("ch03_collectives.py").write_text(text, encoding="utf-8")
    raise ValueError(refusal("minidist verify --impl . --steps=1 dp=2", {}))


def reset(target: str, text: str = "") -> None:
    """A plan to reset this target in a file with this text, or the untouched one."""
    stub = stub_of(solutions()["ch03_collectives"].text)
    Path("ch03_collectives.py").write_text(text or stub, encoding="utf-8")
    plan_reset(target, Path())


def documents(content: bytes, name: str = "text.jsonl") -> None:
    """Read the documents of a file with this content."""
    Path(name).write_bytes(content)
    try:
        read_documents(name)
    finally:
        Path(name).unlink()


def opened(change: Callable[[Path], object], by: ByteTokenizer = BYTES) -> None:
    """Open a folder of ten tokens that was prepared, and then changed."""
    Path("text").write_bytes(b"some words")
    prepare("text", BYTES, Path("made"))
    try:
        change(Path("made"))
        read_documents("made", by)
    finally:
        shutil.rmtree("made")


def with_manifest(**changes) -> Callable[[Path], object]:
    """A change of a prepared folder's manifest."""

    def change(folder: Path) -> None:
        path = folder / MANIFEST
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


MODEL = gpt()


@pytest.mark.parametrize("folder", ["course", "data", "nn", "parallel", "plan", "train", "verify"])
def test_what_cannot_be_is_named_with_what_can(folder, tmp_path, monkeypatch):
    start_no_ranks(monkeypatch)
    check_refusals(Path(__file__).parent / folder / "refusals.txt", dict(globals()), monkeypatch, tmp_path)
