"""The whole library on the stand-in for CuPy: NumPy's bits, and a step that makes the host wait three times."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from choosing import long

from minidist import backend
from minidist.course.answers import ROOT
from minidist.nn.precision.policy import autocast
from minidist.trace import Kernel
from minidist.train.checkpoint.commit import name_of
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring.peak import measured_peak
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees
from minidist.verify.matrix import covering_set, every_combination

SMALL = TrainConfig(
    layers=4, heads=4, width=16, context=12, global_batch=8, micro_batch=1, steps=2, warmup=1, lr=1e-2, clip=0.5,
    dropout=0.1,
)  # fmt: skip
CHUNKED = replace(SMALL, context=24, sequence_chunks=4)
SPARSE = replace(
    SMALL, experts=4, expert_hidden=8, shared_expert=4, z_loss=1e-3, aux_loss=0.01, bias_rate=0.01, capacity=1.0
)
PLAIN = replace(SMALL, layers=2, dropout=0.0)
LIMIT = 300  # seconds


@pytest.mark.parametrize(
    ("base", "count"),  # of a covering set: its first combinations have the most pairs
    [
        pytest.param(SMALL, 1, id="one"),
        long(SMALL, 12, id="a dozen"),
        long(CHUNKED, 3, id="a few with context parallelism"),
        long(SPARSE, 5, id="a few with and without experts"),
    ],
)
def test_every_layout_has_numpys_bits(ranks, device_ranks, base, count):
    expected = {}
    for combination in covering_set(every_combination(base, 4))[:count]:
        config, size = combination.config(base), combination.layout.world_size
        if config not in expected:
            expected[config] = run(ranks(1), config, Layout())
        found = run(device_ranks(size), replace(config, backend="cupy"), combination.layout)
        assert agrees(expected[config], found), combination


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("tp=4", {"context": 22}),  # in one head few results, each a sum of many terms
        ("tp=4", {"context": 22, "attention": "tiled", "attention_tile": 20}),
        ("dp=2,zero=3", {"heads": 3, "width": 15, "experts": 6}),  # a router anywhere in a flat array
    ],
    ids=str,
)
def test_no_bits_depend_on_addresses_or_on_how_many_heads_are_here(ranks, device_ranks, text, changes):
    """The stand-in refuses such sums and products."""
    config, layout = replace(PLAIN, steps=1, global_batch=2, **changes), Layout.parse(text)
    found = run(device_ranks(layout.world_size), replace(config, backend="cupy"), layout)
    assert agrees(run(ranks(1), config, Layout()), found)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes", [{}, {"reduce_dtype": "float32"}, {"attention": "tiled", "attention_tile": 5, "dropout": 0.1}], ids=str
)
def test_what_a_run_brings_back(ranks, device_ranks, changes):
    config = replace(PLAIN, **changes)
    options = RunOptions(validate=True, sample=8, stop_after=1, step_digests=True)
    expected = run(ranks(2), config, Layout(dp=2), options).ranks[0]
    found = run(device_ranks(2), replace(config, backend="cupy"), Layout(dp=2), options).ranks[0]
    assert (found.fingerprint, found.step_digests) == (expected.fingerprint, expected.step_digests)
    assert (found.validation_loss, found.sample) == (expected.validation_loss, expected.sample)
    assert found.flops == expected.flops and found.traffic.as_dict() == expected.traffic.as_dict()
    more = PLAIN.micro_batch  # NumPy's tokens are a view of the text: with the target of the last one, a byte more
    found.memory["activations"] += more
    assert expected.memory.pop("peak") - found.memory.pop("peak") in (0, more)  # 0 where no tokens are kept at the peak
    assert found.memory == expected.memory


@pytest.mark.parametrize(
    "text",
    [
        "dp=2,sync=server,servers=2",
        long("dp=3,sync=async,arrivals=1+1+3"),
        long("dp=2,sync=local,local_steps=2,fragments=2"),
        long("dp=2,sync=delayed"),
        "dp=2,compress=int8",
        *(long(f"dp=2,compress={method}") for method in ("bf16", "onebit", "topk:0.1", "powersgd:2")),
    ],
)
def test_looser_steps_have_numpys_bits(ranks, device_ranks, text):
    config, layout = replace(PLAIN, steps=3), Layout.parse(text)
    expected = run(ranks(layout.world_size), config, layout)
    found = run(device_ranks(layout.world_size), replace(config, backend="cupy"), layout)
    assert agrees(expected, found)


def peak_on_a_device(world, precision: str) -> tuple[float, set]:
    import cupy

    backend.use("cupy", world.rank)
    cupy.products.clear()
    with autocast(precision):
        return measured_peak(world, seconds=0.0, sizes=(8, 16)), {kind for kind, _ in cupy.products}


@pytest.mark.parametrize(("precision", "factors"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp8", "bfloat16")])
def test_the_peak_is_measured_on_the_device(device_ranks, precision, factors):
    """In the precision of the run's own products."""
    for peak, multiplied in device_ranks(2).run(peak_on_a_device, precision):
        assert peak > 0 and multiplied == {factors}


def on_another_stream(world) -> str:
    import cupy

    with cupy.cuda.Stream(non_blocking=True), pytest.raises(RuntimeError) as caught:
        backend.use("cupy", world.rank)
    backend.use("cupy", world.rank)
    return str(caught.value)


def test_another_stream_than_the_null_stream_is_refused(device_ranks):
    """What a background thread computes would come at any time."""
    (told,) = device_ranks(1).run(on_another_stream)
    assert "outside of any `with stream:`" in told


@pytest.mark.parametrize(
    "changes", [{}, long({"precision": "bf16"}), long({"precision": "fp8", "attention": "tiled"})], ids=str
)
def test_a_trace_has_the_same_kernels(ranks, device_ranks, changes):
    """To ask for views and bytes does not make the host wait."""
    config = replace(PLAIN, **changes)
    found = [
        run(started, replace(config, backend=backend), Layout(dp=2), RunOptions(trace=True)).ranks[0].log
        for started, backend in ((ranks(2), "numpy"), (device_ranks(2), "cupy"))
    ]
    expected, kernels = ([entry for entry in log if isinstance(entry, Kernel)] for log in found)
    assert kernels == expected != []


@pytest.mark.parametrize("text", [long("dp=2,zero=3"), long("tp=2"), "dp=2,ep=2"])
def test_a_checkpoint_goes_from_device_to_host_and_back(ranks, device_ranks, tmp_path, text):
    """Saved on one, resumed on the other: the bits of a run that stayed on the host."""
    config, layout = replace(SPARSE, layers=2, steps=3, precision="bf16"), Layout.parse(text)
    device = replace(config, backend="cupy")
    expected = run(ranks(1), config, Layout())
    for one, save_on, other, resume_on in (
        (device, device_ranks, config, ranks),
        (config, ranks, device, device_ranks),
    ):
        folder = tmp_path / one.backend
        run(save_on(2), one, layout, RunOptions(saving=Saving(str(folder), every=1, keep=0), stop_after=1))
        options = RunOptions(resume=str(folder / name_of(2)), check_replicas=1)
        assert agrees(expected, run(resume_on(2), other, Layout(dp=2, zero=1), options)), one.backend


def crossings_of_a_step(world, config, layout) -> Counter:
    """Of the second step, which is like all that follow. Runs in a rank."""
    import cupy

    counts = []
    for steps in (1, 2):
        cupy.crossings.clear()
        train_rank(world, replace(config, steps=steps), layout, RunOptions())
        counts.append(Counter(cupy.crossings))
    return counts[1] - counts[0]


BATCHES = PLAIN.global_batch // PLAIN.micro_batch
NORM = {("scalar", "nn.optim.clip.grad_norm"): 2}  # the largest gradient, and the sum on the grid that it leads to
LOSS = {("scalar", "parallel.tools.accumulation.accumulate"): 1}


def batches(count: int) -> dict:
    """Tokens and targets of so many micro-batches."""
    return {("to device", "nn.data._samples"): 2 * count}


COUNTS = {("to host", "nn.moe.balance.report"): 1}  # of all experts, after the step


def collectives(count: int) -> dict:
    """Each stages what it reads in host memory, and brings back what it wrote."""
    return {("to host", "comm.collectives.array"): count, ("to device", "comm.collectives.whole"): count}


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("dp=1", {}, LOSS | NORM | batches(BATCHES)),
        long("recompute=full", {}, LOSS | NORM | batches(BATCHES)),
        long("dp=1", {"attention": "tiled", "attention_tile": 5}, LOSS | NORM | batches(BATCHES)),
        ("dp=1", {"precision": "bf16"}, LOSS | NORM | batches(BATCHES)),
        long("dp=1", {"precision": "fp8"}, LOSS | NORM | batches(BATCHES)),
        long(
            "dp=1",
            {"precision": "fp16"},
            LOSS | NORM | batches(BATCHES) | {("scalar", "nn.precision.loss_scaling.unscale"): 1},
        ),
        long(  # masks: after the embedding, and in each of two layers of the weights and after attention and MLP
            "dp=1",
            {"dropout": 0.1},
            LOSS | NORM | batches(BATCHES) | {("to device", "nn.functional.dropout_mask"): BATCHES * (1 + 2 * 6)},
        ),
        ("dp=2", {}, LOSS | NORM | batches(BATCHES // 2) | collectives(1)),  # one bucket
        long(  # f and g, forward and backward, twice a layer and in the head; three for the loss
            "tp=2",
            {},
            LOSS | NORM | batches(BATCHES) | collectives(BATCHES * (2 * 2 * 2 + 2 + 3)),
        ),
        long(  # in each of two layers: keys and values once in forward, again in backward, and their gradients twice
            "cp=2",
            {"sequence_chunks": 2},
            LOSS
            | NORM
            | batches(BATCHES)
            | collectives(1)
            | {("to host", "comm.point_to_point._isend"): BATCHES * 2 * 4}
            | {("to device", "comm.work.wait"): BATCHES * 2 * 4},
        ),
        long(  # in each of two layers how many rows every expert has
            "dp=1",
            {"experts": 4},
            LOSS | NORM | batches(BATCHES) | {("to host", "nn.moe.permutation.__init__"): BATCHES * 2, **COUNTS},
        ),
        long(  # in each of two layers rows go there and back twice; two buckets, and the counts of all ranks
            "dp=2,ep=2",
            {"experts": 4},
            LOSS
            | NORM
            | batches(BATCHES // 2)
            | {("to host", "nn.moe.permutation.__init__"): BATCHES // 2 * 2, **COUNTS}
            | collectives(BATCHES // 2 * 2 * 4 + 1 + 1),
        ),
        (  # rank 0 sends activations, receives gradients, and shares the embedding's gradient with the last stage
            "pp=2",
            {},
            {("scalar", "parallel.pipeline.run"): 1}
            | NORM
            | batches(BATCHES)
            | collectives(1)
            | {("to host", "comm.point_to_point._isend"): BATCHES}
            | {("to device", "comm.work.wait"): BATCHES},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_crosses_in_a_step(device_ranks, text, changes, expected):
    """No number is read but the loss, those of the gradient norm, and float16's overflow; no copy but those named."""
    layout, config = Layout.parse(text), replace(PLAIN, backend="cupy", **changes)
    found = device_ranks(layout.world_size).run(crossings_of_a_step, config, layout)[0]
    assert found == expected


def launches_of_a_step(world, config) -> int:
    """Kernels that the second step starts. Runs in a rank."""
    import cupy

    counts = []
    for steps in (1, 2):
        cupy.launches.clear()
        train_rank(world, replace(config, steps=steps), Layout(), RunOptions())
        counts.append(sum(cupy.launches.values()))
    return counts[1] - counts[0]


@pytest.mark.parametrize(("precision", "limit"), [("fp32", 2512), ("bf16", 2829)])
def test_how_many_kernels_a_step_starts(device_ranks, precision, limit):
    """As few as docs/gpu.md says, for its model: each costs the host some microseconds."""
    config = replace(PLAIN, layers=4, heads=16, width=64, global_batch=2, micro_batch=2, precision=precision)
    (found,) = device_ranks(1).run(launches_of_a_step, replace(config, backend="cupy"))
    assert found <= limit


@pytest.mark.long
def test_the_command(tmp_path):
    sizes = ["--layers", "1", "--heads", "2", "--width", "8", "--context", "8", "--steps", "1", "--dp", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "gpu" / "standin"), str(ROOT)])}
    lines = []
    for name in ("numpy", "cupy"):
        command = [sys.executable, "-m", "minidist.cli", "train", *sizes, "--backend", name]
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        lines.append(result.stdout.splitlines())
    fingerprints = [[line for line in found if line.startswith("fingerprint")] for found in lines]
    assert fingerprints[0] == fingerprints[1] != []
    told = [[line for line in found if line.startswith("GPU")] for found in lines]
    expected = "GPU: stand-in; collectives through host memory where ranks share a GPU or NCCL is missing"
    assert told == [[], [expected]]
