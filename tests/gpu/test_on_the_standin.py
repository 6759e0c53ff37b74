"""The whole library on the stand-in for CuPy: NumPy's bits on any number of GPUs, and what crosses in a step."""

from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest
from choosing import long
from own_gpus import with_gpus
from verify.settings import with_every_value

from minidist import backend
from minidist.cli.main import main
from minidist.nn.precision.policy import autocast
from minidist.trace import Kernel
from minidist.train.checkpoint.commit import name_of
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring.evaluate import measured_peak
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees, bits

PLAIN = TrainConfig(
    layers=2, heads=4, width=16, context=12, global_batch=4, micro_batch=1, steps=2, warmup=1, lr=1e-2, clip=0.5
)
SPARSE = replace(
    PLAIN, dropout=0.1, experts=4, expert_hidden=8, shared_expert=4, z_loss=1e-3, aux_loss=0.01, bias_rate=0.01,
    capacity=1.0, precision="bf16",
)  # fmt: skip


def run_on_gpus(device_ranks, config: TrainConfig, layout: Layout, gpus: int, options: RunOptions | None = None) -> Run:
    """A run of the stand-in on so many GPUs; with one for each rank, every collective goes by NCCL."""

    def rank_function(world, *arguments):
        return with_gpus(world, gpus, train_rank, *arguments)

    size = layout.world_size
    found = run(
        device_ranks(size),
        replace(config, backend="cupy"),
        layout,
        options or RunOptions(),
        rank_function=rank_function,
    )
    assert {(rank.gpu, rank.by_nccl) for rank in found.ranks} == {("stand-in", 1 < size <= gpus)}
    return found


@pytest.mark.parametrize("chosen", [slice(0, 1), long(slice(1, None))], ids=["one", "all the others"])
def test_every_value_of_every_setting_has_numpys_bits(ranks, device_ranks, chosen):
    """Ranks have a GPU each, share one, or share two: some of their groups take NCCL then."""
    compressed = [Layout.parse(f"dp=2,compress={one}") for one in ("bf16", "int8", "onebit", "topk:0.1", "powersgd:2")]
    cases = [(case.config, case.layout, case.reference) for case in with_every_value(1000)]
    wrong = []
    cases += [(PLAIN, one, one) for one in compressed]
    for number, (config, layout, reference) in list(enumerate(cases))[chosen]:
        options = RunOptions(stop_after=config.steps - 1)  # brings the arrays back
        expected = run(ranks(reference.world_size), config, reference, options)
        on_device = replace(layout, algorithm="auto") if number % 3 == 0 else layout  # others take no NCCL
        found = run_on_gpus(device_ranks, config, on_device, (layout.world_size, 1, 2)[number % 3], options)
        if not agrees(expected, found) and not only_subnormal_terms_differ(expected, found):
            wrong.append((str(layout), config))
    assert wrong == []


def only_subnormal_terms_differ(expected: Run, found: Run) -> bool:
    """Whether mean squares of gradients alone differ, and by no more than a few terms that a GPU takes for 0."""
    pairs = {name: (array, found.ranks[0].arrays[name]) for name, array in expected.ranks[0].arrays.items()}
    other = {name: abs(one - two).max() for name, (one, two) in pairs.items() if (bits(one) != bits(two)).any()}
    tiny = all(name.startswith("exp_avg_sq.") and distance < 2.0**-124 for name, distance in other.items())
    return tiny and expected.losses == found.losses


@pytest.mark.long
def test_what_a_run_brings_back(device_ranks):
    """Only the kernels of its trace are compared: asking for views and bytes does not make the host wait."""
    options = RunOptions(validate=True, sample=8, step_digests=True, trace=True)
    fp8 = {"precision": "fp8", "attention": "tiled", "attention_tile": 5, "dropout": 0.1}
    for changes in ({}, {"reduce_dtype": "float32", "precision": "bf16"}, fp8):
        expected, found = (
            run(device_ranks(2), replace(PLAIN, backend=name, **changes), Layout(dp=2), options).ranks[0]
            for name in ("numpy", "cupy")
        )
        for name in ("fingerprint", "step_digests", "validation_loss", "sample", "flops", "memory"):
            assert getattr(found, name) == getattr(expected, name), (name, changes)
        assert found.traffic.as_dict() == expected.traffic.as_dict(), changes
        kernels, numpys = ([entry for entry in log if isinstance(entry, Kernel)] for log in (found.log, expected.log))
        assert kernels == numpys != [], changes


def peak_on_a_device(world, precision: str) -> set[str]:
    """Return the kinds of products that measure the peak. Runs in a rank."""
    import cupy

    backend.use("cupy", world.rank)
    cupy.products.clear()
    with autocast(precision):
        assert measured_peak(world, seconds=0.0, sizes=(8, 16)) > 0
    return {kind for kind, _ in cupy.products}


@pytest.mark.parametrize(("precision", "kind"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp8", "bfloat16")])
def test_the_peak_is_that_of_the_runs_products(device_ranks, precision, kind):
    assert device_ranks(2).run(peak_on_a_device, precision) == [{kind}] * 2


def test_another_stream_than_the_null_stream_is_refused(standin):
    """The results of a background thread would come at any time."""
    told = "outside of any `with stream:`"
    with standin.cuda.Stream(non_blocking=True), pytest.raises(RuntimeError, match=told):
        backend.use("cupy")


@pytest.mark.long
@pytest.mark.parametrize("text", [long("dp=2,zero=3"), long("tp=2"), "dp=2,ep=2"])
def test_a_checkpoint_goes_from_device_to_host_and_back(ranks, device_ranks, tmp_path, text):
    """Saved on one, resumed on the other: the bits of a run that stayed on the host. (Those of fast products have the
    device's own, and so may the stand-in's: it multiplies other shapes.)"""
    config, layout = replace(SPARSE, steps=3, products="exact"), Layout.parse(text)
    expected, device = run(ranks(1), config, Layout()), replace(config, backend="cupy")
    for (one, save_on), (other, resume_on) in permutations([(device, device_ranks), (config, ranks)]):
        folder = tmp_path / one.backend
        run(save_on(2), one, layout, RunOptions(saving=Saving(str(folder), every=1, keep=0), stop_after=1))
        options = RunOptions(resume=str(folder / name_of(2)), check_replicas=1)
        assert agrees(expected, run(resume_on(2), other, Layout(dp=2, zero=1), options)), one.backend


# What crosses in a step, and what it starts


def counts_of_a_step(world, config, layout, name: str) -> Counter:
    """Return ``cupy.crossings`` or ``cupy.launches`` of the second step; all later ones are like it. Runs in a rank."""
    import cupy

    counts = []
    for steps in (1, 2):
        getattr(cupy, name).clear()
        train_rank(world, replace(config, steps=steps), layout, RunOptions())
        counts.append(Counter(getattr(cupy, name)))
    return counts[1] - counts[0]


BATCHES = PLAIN.global_batch // PLAIN.micro_batch
# The largest gradient, and the sum on the grid that it leads to; and where parameters are, for each of the kernels that
# take all of them
OPTIMIZER = {("scalar", "nn.optim.clip.grad_norm"): 2}
OPTIMIZER |= dict.fromkeys(
    [
        ("to device", f"nn.optim.{name}")
        for name in ("optimizers.average_gradients", "clip.grad_norm", "clip.clip_grad_norm", "optimizers.step")
    ],
    1,
)
SENT, ARRIVED = ("to host", "comm.point_to_point._isend"), ("to device", "comm.transports.messages.wait")
ROWS, COUNTS = ("to host", "nn.moe.permutation.__init__"), {("to host", "nn.moe.balance.report"): 1}
CROSSINGS = [  # layout, changes, what crosses besides batches, loss and norm, and collectives, which cross on one GPU
    ("dp=1", {"precision": "bf16"}, {}, 0),
    ("dp=2", {}, {}, 1),  # one bucket
    # Rank 0 sends activations, receives gradients, and shares the embedding's gradient with the last stage.
    ("pp=2", {}, {SENT: BATCHES, ARRIVED: BATCHES}, 1),
    ("dp=1", {}, {}, 0),
    ("recompute=full", {}, {}, 0),
    ("dp=1", {"attention": "tiled", "attention_tile": 5}, {}, 0),
    ("dp=1", {"precision": "fp8"}, {}, 0),
    ("dp=1", {"precision": "fp16"}, {("scalar", "nn.precision.underflow.unscale"): 1}, 0),
    # Masks: after the embedding, and in each of two layers of the weights and after attention and MLP.
    ("dp=1", {"dropout": 0.1}, {("to device", "nn.functional.dropout_mask"): BATCHES * (1 + 2 * 6)}, 0),
    # f and g, forward and backward, twice a layer and in the head; three for the loss.
    ("tp=2", {}, {}, BATCHES * (2 * 2 * 2 + 2 + 3)),
    # In each of two layers: keys and values once in forward, again in backward, and their gradients twice.
    ("cp=2", {"sequence_chunks": 2}, {SENT: BATCHES * 2 * 4, ARRIVED: BATCHES * 2 * 4}, 1),
    ("dp=1", {"experts": 4}, {ROWS: BATCHES * 2, **COUNTS}, 0),  # in each of two layers how many rows every expert has
    # In each of two layers rows go there and back twice; two buckets, and the counts of all ranks.
    ("dp=2,ep=2", {"experts": 4}, {ROWS: BATCHES // 2 * 2, **COUNTS}, BATCHES // 2 * 2 * 4 + 1 + 1),
    ("dp=2,zero=3", {}, {}, None),
    ("tp=2,sp=1", {}, {}, None),
]


@pytest.mark.parametrize("rows", [CROSSINGS[:1], long(CROSSINGS[1:])], ids=["one", "all the others"])
def test_what_crosses_in_a_step(device_ranks, rows):
    """No number is read but the loss, those of the gradient norm, and float16's overflow; no copy but those named. A
    collective stages what it reads in host memory, and brings back what it wrote; by NCCL it does not."""
    wrong = []
    for text, changes, more, collectives in rows:
        layout, config = Layout.parse(text), replace(PLAIN, backend="cupy", **changes)
        loss = "parallel.pipeline.run" if layout.pp > 1 else "train.parallelize.forward_backward"
        tokens_and_targets = {("to device", "train.share.on_device"): 2 * BATCHES // layout.dp}
        expected = {("scalar", loss): 1} | OPTIMIZER | tokens_and_targets | more
        ways = ("to host", "comm.collectives.stage"), ("to device", "comm.collectives._finish")
        staged = dict.fromkeys(ways, collectives)
        for gpus in {1, layout.world_size} if collectives is not None else {layout.world_size}:
            want = expected | (staged if collectives and gpus == 1 else {})
            ranks = device_ranks(layout.world_size)
            found, *_ = ranks.run(with_gpus, gpus, counts_of_a_step, config, layout, "crossings")
            wrong += [] if found == want else [(text, changes, gpus, found, want)]
    assert wrong == []


def test_how_many_kernels_a_step_starts(device_ranks):
    """The numbers are those of docs/gpu.md, for its model: each kernel costs the host some microseconds."""
    config = replace(PLAIN, layers=4, heads=16, width=64, global_batch=2, micro_batch=2, backend="cupy")
    for precision, limit in (("fp32", 564), ("bf16", 865)):
        config = replace(config, precision=precision)
        (found,) = device_ranks(1).run(with_gpus, 1, counts_of_a_step, config, Layout(), "launches")
        assert sum(found.values()) <= limit, precision


@pytest.mark.long
def test_the_command(standin, compiler, capsys):
    sizes = ["--layers=1", "--heads=2", "--width=8", "--context=8", "--steps=1", "--dp=2"]
    lines = []
    for name in ("numpy", "cupy"):
        assert main(["train", *sizes, "--backend", name]) == 0
        lines.append({line for line in capsys.readouterr().out.splitlines() if line.startswith(("fingerprint", "GPU"))})
    on_host, on_device = lines
    assert len(on_host) == 1 and on_host < on_device
    (told,) = on_device - on_host
    assert told == "GPU: stand-in; collectives through host memory where ranks share a GPU or NCCL is missing"


def test_a_demonstration_computes_on_the_gpu(standin, compiler, capsys, monkeypatch):
    computed = []
    monkeypatch.setattr(
        standin, "matmul", lambda *factors, matmul=standin.matmul: computed.append(1) or matmul(*factors)
    )
    told = []
    for name in backend.BACKENDS:
        assert main(["demo", "exact", "--scene", "product", "--backend", name]) == 0
        told.append(capsys.readouterr().out)
        assert bool(computed) is (name == "cupy")
    for machine in ("the machine's BLAS", "     stand-in     "):
        told = [text.replace(machine, " " * 18) for text in told]
    assert told[0] == told[1]
