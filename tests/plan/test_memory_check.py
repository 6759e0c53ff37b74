"""What a run needs is known from arithmetic, agrees with real runs, and is told before anything is computed."""

import sys
import time
from dataclasses import replace

import pytest

from minidist.cli import main as cli
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.moe.config import MoEConfig
from minidist.plan import available_memory, memory_check
from minidist.plan.memory_check import check_memory, memory_needed, parameter_count, written
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

LIMIT = 60
KINDS = ("parameters", "gradients", "optimizer")
CONFIG = TrainConfig(layers=4, heads=2, width=32, context=16, global_batch=8, micro_batch=1, steps=1, warmup=1)


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"vocab": 1, "context": 1, "layers": 1, "heads": 1, "width": 1},
        {"vocab": 257, "heads": 6, "width": 24, "layers": 3},  # a vocabulary that is padded to 258
        {"vocab": 3, "heads": 5, "width": 15, "context": 7, "layers": 5},
        {"heads": 2, "width": 8, "layers": 5, "moe": MoEConfig(6, moe_every=2, expert_hidden=10, shared_expert=4)},
    ],
)
def test_the_formula_counts_the_parameters_of_a_real_model(sizes):
    config = GPTConfig(**sizes)
    assert parameter_count(config) == sum(parameter.size for parameter in GPT(config).parameters())


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "text",
    [
        "dp=1",
        "dp=4",
        "dp=4,ep=2",
        "dp=4,ep=4",
        "dp=4,ep=2,zero=1",
        *(f"zero={stage},dp=4{more}" for stage in (1, 2, 3) for more in ("", ",shard=2")),
        "tp=2",
        "pp=2",
        "dp=2,sync=local",
        "dp=2,sync=local,outer_momentum=0",
        "dp=2,sync=delayed",
        "dp=3,sync=server,servers=2",
        "dp=3,sync=async",
    ],
)
def test_no_run_holds_less_than_is_said_to_be_needed(ranks, text, precision):
    layout = Layout.parse(text)
    config = replace(CONFIG, precision=precision, experts=4 if layout.ep > 1 else 0)
    needed = memory_needed(config, layout)
    result = run(ranks(layout.world_size), config, layout)
    held = {kind: sum(rank.memory[kind] for rank in result.ranks) for kind in KINDS}
    assert all(getattr(needed, kind) <= held[kind] for kind in KINDS), (needed, held)
    assert needed.optimizer > 0.8 * held["optimizer"]
    if layout.zero < 2:  # after that the units in flight weigh as much as the shards of so small a model
        assert needed.gradients > 0.5 * held["gradients"] and needed.parameters > 0.8 * held["parameters"]
    if text in ("dp=1", "dp=4", "dp=4,ep=2", "dp=4,ep=4"):
        assert (needed.parameters, needed.optimizer) == (held["parameters"], held["optimizer"])


@pytest.mark.parametrize(
    ("text", "precision", "parameters", "gradients", "optimizer", "initialization"),
    [  # bytes per parameter of the model
        ("dp=1", "fp32", 4, 8, 8, 4),
        ("dp=1", "bf16", 2, 8, 12, 4),
        ("dp=2,tp=2,pp=2", "fp32", 8, 16, 16, 32),
        ("zero=1,dp=4", "fp32", 16, 32, 8, 16),
        ("zero=2,dp=4", "fp32", 16, 8, 8, 16),
        ("zero=3,dp=8", "fp32", 4, 8, 8, 32),
        ("zero=3,dp=8,shard=2", "fp32", 16, 32, 32, 32),
        ("zero=3,dp=8,shard=2", "bf16", 0, 32, 48, 32),
        ("dp=3,sync=delayed", "fp32", 12, 48, 24, 12),
        ("dp=2,sync=local", "fp32", 8, 16, 32, 8),
        ("dp=2,sync=local,outer_momentum=0", "bf16", 4, 16, 32, 8),
        ("dp=3,sync=server,servers=2", "fp32", 16, 48, 8, 20),
        ("dp=3,sync=async", "bf16", 10, 36, 20, 16),
    ],
)
def test_bytes_of_a_layout(text, precision, parameters, gradients, optimizer, initialization):
    P = parameter_count(CONFIG.model)
    needed = memory_needed(replace(CONFIG, precision=precision), Layout.parse(text))
    found = needed.parameters, needed.gradients, needed.optimizer, needed.initialization
    assert found == (parameters * P, gradients * P, optimizer * P, initialization * P)
    assert needed.training == (parameters + gradients + optimizer) * P
    assert needed.most == max(needed.training, needed.initialization)
    assert memory_needed(replace(CONFIG, reduce_dtype="float32"), Layout()).gradients == 4 * P
    assert memory_needed(replace(CONFIG, optimizer="sgd"), Layout()).optimizer == 0
    assert memory_needed(replace(CONFIG, optimizer="sgd", precision="bf16"), Layout()).optimizer == 4 * P


@pytest.fixture
def available(monkeypatch):
    def be(count: int | None) -> None:
        monkeypatch.setattr(memory_check, "available_memory", lambda: count)

    return be


def test_what_is_needed_and_what_there_is_are_told_in_a_line(available):
    P = parameter_count(CONFIG.model)
    available(40 * P)
    check_memory(CONFIG, Layout(dp=2))
    available(40 * P - 1)
    with pytest.raises(ValueError, match="of memory available"):
        check_memory(CONFIG, Layout(dp=2))
    available(2_000_000)
    with pytest.raises(ValueError) as caught:
        check_memory(CONFIG, Layout(dp=2))
    assert str(caught.value) == (
        "the model has 59,584 parameters, and training it needs at least 2.4 MB for the 2 ranks of layout dp=2 "
        "together: parameters 476.7 kB, gradients 953.3 kB, optimizer state 953.3 kB. This machine has 2.0 MB of "
        "memory available. Choose fewer layers, a smaller width or context, or fewer ranks"
    )


def test_where_initialization_needs_the_most_it_is_named(available):
    P = parameter_count(CONFIG.model)
    available(32 * P - 1)
    with pytest.raises(
        ValueError, match=r"initializing it on every rank needs at least .* 8 ranks of layout dp=8,zero=3"
    ):
        check_memory(CONFIG, Layout.parse("zero=3,dp=8"))


def test_where_nobody_knows_nothing_is_refused(available):
    available(None)
    check_memory(TrainConfig(layers=10**9), Layout())


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--layers", "200000000"],
        ["train", "--width", "1000000", "--dp", "4"],
        ["verify", "--layers", "200000000"],
        ["verify", "dp=2", "--width", "1000000"],
        ["verify", "--matrix", "--width", "1000000"],
    ],
    ids=" ".join,
)
def test_commands_refuse_at_once(arguments, capfd):
    """Before a rank starts or a weight is drawn, either of which would take longer than this."""
    started = time.process_time()
    assert cli.main(arguments) == 2
    assert time.process_time() - started < 1
    err = capfd.readouterr().err
    assert err.startswith("minidist: the model has ") and err.count("\n") == 1 and "GB of memory available" in err
    assert "parameters, and training it needs at least" in err


@pytest.mark.long
def test_verify_refuses_a_layout_and_leaves_out_default_ones(available, capsys):
    sizes = ["--layers=1", "--heads=2", "--width=16", "--context=16", "--global-batch=8", "--micro-batch=1"]
    P = parameter_count(GPTConfig(layers=1, heads=2, width=16, context=16))
    available(25 * P)  # for one process, and not for two replicas
    assert cli.main(["verify", "dp=2", *sizes]) == 2
    assert "2 ranks of layout dp=2 together" in capsys.readouterr().err
    assert cli.main(["verify", *sizes, "--steps=1"]) == 0
    out = capsys.readouterr().out
    assert "tp=2 " in out and "dp=2 " not in out and "do not fit" in out


def test_the_matrix_refuses_before_its_first_run(available, capsys, monkeypatch):
    monkeypatch.setattr("minidist.cli.verify_matrix.run_all", lambda *_: pytest.fail("it runs"))
    P = parameter_count(GPTConfig(layers=4, heads=2, width=16, context=16))
    available(25 * P)
    sizes = ["--layers=4", "--heads=2", "--width=16", "--context=16", "--global-batch=8", "--micro-batch=1"]
    assert cli.main(["verify", "--matrix", "--max-ranks=2", "--experts=0", *sizes]) == 2
    assert "for the 2 ranks of layout" in capsys.readouterr().err


# No MemoryError ends in an empty message


def without_words(world):
    if world.rank == 1:
        raise MemoryError
    world.report(0)


def of_an_array(world):
    import numpy as np

    if world.rank == 0:
        np.empty((1 << 50,))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            without_words,
            "minidist: rank 1: out of memory: choose a smaller model, a smaller micro-batch or fewer ranks\n",
        ),
        (of_an_array, "minidist: rank 0: Unable to allocate 8.00 PiB for an array with shape"),
    ],
)
def test_a_rank_without_memory(function, message, monkeypatch, capsys):
    monkeypatch.setattr("minidist.cli.train.command.run", lambda cluster, *_: cluster.run(function, timeout=LIMIT))
    assert cli.main(["train", "--dp=2"]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "minidist: out of memory: choose a smaller model, a smaller micro-batch or fewer ranks\n"),
        (MemoryError("the queues need more"), "minidist: the queues need more\n"),
        (RuntimeError(), "minidist: RuntimeError\n"),
    ],
    ids=str,
)
def test_this_process_without_memory(error, message, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr("minidist.cli.train.command.run", fail)
    assert cli.main(["train", "--dp=1"]) == 2
    assert capsys.readouterr().err.endswith(message)


# What is available


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and cgroups are Linux's")
def test_what_linux_says_is_available():
    total = available_memory._physical()
    free, swap = available_memory._meminfo()
    assert 0 < free <= total and swap >= 0 and available_memory.available_memory() > 0


def test_meminfo(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:  300 kB\nSwapFree:  20 kB\nHugePages_Total: 0\n")
    assert available_memory._meminfo(str(file)) == (300 * 1024, 20 * 1024)
    file.write_text("MemTotal: 900 kB\n")  # an old kernel
    assert available_memory._meminfo(str(file)) is available_memory._meminfo("/no/such/file") is None


def cgroup(folder, limit: object, usage: int, cached: int, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, usage), strict=True):
        (folder / name).write_text(f"{value}\n")
    prefix = "" if version == 2 else "total_"
    (folder / "memory.stat").write_text(f"anon 1\n{prefix}active_file {cached}\n{prefix}inactive_file 10\n")


@pytest.mark.parametrize(("version", "line"), [(2, "0::/jobs/mine\n"), (1, "5:cpu:/\n4:hugetlb,memory:/jobs/mine\n")])
def test_the_tightest_limit_of_the_cgroups_around_counts(tmp_path, version, line):
    file, root = tmp_path / "cgroup", tmp_path / "fs"
    file.write_text(line)
    mounted = root if version == 2 else root / "memory"

    def left() -> int | None:
        return available_memory._left_by_cgroup(str(file), str(root))

    assert left() is None
    cgroup(mounted, "max" if version == 2 else 1 << 62, 500, 0, version)
    assert left() == (None if version == 2 else (1 << 62) - 490)
    cgroup(mounted / "jobs" / "mine", 5000, 1000, 90, version)
    assert left() == 4100
    cgroup(mounted / "jobs", 3000, 2000, 0, version)
    assert left() == 1010
    cgroup(mounted / "jobs", 3000, 4000, 0, version)
    assert left() == 0


def test_a_limit_counts_where_it_is_less(monkeypatch):
    monkeypatch.setattr(available_memory, "_meminfo", lambda: (1000, 50))
    for left, expected in ((None, 1050), (2000, 1050), (300, 350)):
        monkeypatch.setattr(available_memory, "_left_by_cgroup", lambda left=left: left)
        assert available_memory.available_memory() == expected
    monkeypatch.setattr(available_memory, "_meminfo", lambda: None)
    monkeypatch.setattr(available_memory, "_physical", lambda: 7)
    assert available_memory.available_memory() == 7


def test_bytes_are_written_in_units_that_people_read():
    texts = [written(count) for count in (0, 999, 1000, 999_949, 20_600_000_000, 2 * 10**14, 10**19)]
    assert texts == ["0 bytes", "999 bytes", "1.0 kB", "999.9 kB", "20.6 GB", "200.0 TB", "10,000.0 PB"]
