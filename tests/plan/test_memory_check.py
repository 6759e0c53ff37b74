"""What a run needs is known from arithmetic, agrees with real runs, and is told before anything is computed."""

import sys
from dataclasses import astuple, replace
from unittest.mock import Mock

import numpy as np
import pytest
from choosing import long

from minidist.cli import main as cli
from minidist.nn.config import GPTConfig, MoEConfig
from minidist.nn.models import model_of
from minidist.plan import memory_check
from minidist.plan.memory_check import check_memory, memory_needed, parameter_count
from minidist.plan.models import ModelShape
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

KINDS = ("parameters", "gradients", "optimizer")
CONFIG = TrainConfig(layers=4, heads=2, width=32, context=16, global_batch=8, micro_batch=1, steps=1, warmup=1)
SMALL = replace(CONFIG, layers=1, width=16)
FLAGS = "--layers=1 --heads=2 --width=16 --context=16 --global-batch=8 --micro-batch=1"
LAYOUTS = [  # bytes per parameter of the model: parameters, gradients, optimizer state, initialization
    ("dp=1", "bf16", 2, 8, 12, 4),
    ("zero=1,dp=4", "fp32", 16, 32, 8, 16),
    ("zero=2,dp=4", "fp32", 16, 8, 8, 16),
    ("zero=3,dp=4,shard=2", "bf16", 0, 16, 24, 16),
    ("tp=2,pp=2", "fp32", 4, 8, 8, 16),
    ("dp=3,sync=delayed", "fp32", 12, 48, 24, 12),
    ("dp=2,sync=local", "fp32", 8, 16, 32, 8),
    ("dp=2,sync=local,outer_momentum=0", "bf16", 4, 16, 32, 8),
    ("dp=3,sync=server,servers=2", "fp32", 16, 48, 8, 20),
    ("dp=3,sync=async", "bf16", 10, 36, 20, 16),
    ("dp=4,ep=2,zero=1", "fp32"),
    ("dp=4,ep=4", "fp32"),
]


def test_the_formula_counts_the_parameters_of_a_real_model():
    """Both formulas do: the check's, and for dense models the planner's."""
    for sizes in (
        {"vocab": 1, "context": 1, "layers": 1, "heads": 1, "width": 1},
        {"vocab": 257, "heads": 6, "width": 24, "layers": 3},  # a vocabulary that is padded to 258
        {"heads": 2, "width": 8, "layers": 5, "moe": MoEConfig(6, moe_every=2, expert_hidden=10, shared_expert=4)},
        {"arch": "llama", "heads": 6, "width": 36, "kv_heads": 2, "vocab": 257, "hidden": 18},
        {"arch": "llama", "tied": 1},
        {"arch": "llama", "heads": 2, "width": 8, "moe": MoEConfig(6, shared_expert=4)},
    ):
        config = GPTConfig(**sizes)
        real = sum(parameter.size for parameter in model_of(config).parameters())
        assert parameter_count(config) == real, sizes
        vocab = -(-config.vocab // config.heads) * config.heads
        llama = config.arch == "llama"
        parts = {"gated": llama, "biases": not llama, "learned_positions": not llama, "norm_vectors": 2 - llama}
        parts |= {"tied": bool(config.tied) or not llama, "kv_heads": config.groups, "hidden": config.hidden_units}
        dense = ModelShape("", config.layers, config.width, config.heads, vocab, config.context, **parts)
        assert config.moe or dense.parameters == dense.active_parameters == real, sizes


@pytest.mark.parametrize(
    ("text", "precision", "bytes_each"),
    [
        (long if number % 4 else pytest.param)(text, precision, each, id=f"{text} {precision}")
        for number, (text, precision, *each) in enumerate(LAYOUTS)
    ],
)
def test_no_run_holds_less_than_is_said_to_be_needed(ranks, text, precision, bytes_each):
    layout = Layout.parse(text)
    config = replace(CONFIG, precision=precision, experts=4 if layout.ep > 1 else 0)
    needed = memory_needed(config, layout)
    if bytes_each:
        assert [*astuple(needed)] == [each * parameter_count(config.model) for each in bytes_each]
        assert needed.most == max(needed.training, needed.initialization)
    result = run(ranks(layout.world_size), config, layout)
    held = {kind: sum(rank.memory[kind] for rank in result.ranks) for kind in KINDS}
    assert all(getattr(needed, kind) <= held[kind] for kind in KINDS), (needed, held)
    assert needed.optimizer > 0.8 * held["optimizer"]
    if layout.zero < 2:  # after that the units in flight weigh as much as the shards of so small a model
        assert needed.gradients > 0.5 * held["gradients"] and needed.parameters > 0.8 * held["parameters"]
    if layout.sync == "overlapped" and layout.world_size == layout.dp and not layout.zero:
        assert (needed.parameters, needed.optimizer) == (held["parameters"], held["optimizer"])


@pytest.fixture
def available(monkeypatch):
    return lambda count: monkeypatch.setattr(memory_check, "available_memory", lambda: count)


def test_what_is_needed_and_what_there_is_are_told_in_a_line(available):
    P, two = parameter_count(CONFIG.model), Layout(dp=2)
    assert memory_needed(replace(CONFIG, reduce_dtype="float32"), Layout()).gradients == 4 * P
    assert memory_needed(replace(CONFIG, optimizer="sgd", precision="bf16"), Layout()).optimizer == 4 * P
    for enough in (40 * P, None):  # where nobody knows, nothing is refused
        available(enough)
        check_memory(CONFIG, two)
    available(32 * P - 1)
    with pytest.raises(ValueError, match=r"initializing it on every rank needs at least .* layout dp=8,zero=3"):
        check_memory(CONFIG, Layout.parse("zero=3,dp=8"))


def test_commands_refuse_before_a_rank_starts_or_a_weight_is_drawn(capfd, monkeypatch, available):
    for place in ("cli.train.command.new_cluster", "nn.gpt.GPT.__init__", "cli.verify_matrix.run_all"):
        monkeypatch.setattr(f"minidist.{place}", lambda *_, **__: pytest.fail("it begins"))
    for count, command in (
        (10**12, "train --width 1000000 --dp 4"),
        (10**12, "verify dp=2 --width 1000000"),
        (25 * parameter_count(SMALL.model), f"verify dp=2 {FLAGS}"),  # for one process, not for two
        (25 * parameter_count(SMALL.model), f"verify --matrix --max-ranks=2 --experts=0 {FLAGS}"),
    ):
        available(count)
        assert cli.main(command.split()) == 2
        err = capfd.readouterr().err
        assert err.startswith("minidist: the model has ") and err.count("\n") == 1 and "of memory available" in err


@pytest.mark.long
def test_verify_leaves_out_default_layouts_that_do_not_fit(available, capsys):
    available(25 * parameter_count(SMALL.model))
    assert cli.main(["verify", *FLAGS.split(), "--steps=1"]) == 0
    out = capsys.readouterr().out
    assert "tp=2 " in out and "dp=2 " not in out and "do not fit" in out


def allocating(cluster, *_):
    cluster.run(lambda world: world.rank or np.empty((1 << 50,)), timeout=300)


def test_no_memory_error_ends_in_an_empty_message(monkeypatch, capsys):
    for failing, message in (
        (allocating, "rank 0: Unable to allocate 8.00 PiB for an array"),
        (MemoryError(), "out of memory: choose a smaller model, a smaller micro-batch or fewer ranks\n"),
        (RuntimeError(), "minidist: RuntimeError\n"),
    ):
        monkeypatch.setattr("minidist.cli.train.command.run", Mock(side_effect=failing))
        assert cli.main(["train", "--dp=2"]) == 2
        err = capsys.readouterr().err
        assert message in err and "Traceback" not in err


def test_the_tightest_limit_counts_of_the_machine_and_of_the_cgroups_around(tmp_path, monkeypatch):
    if sys.platform == "linux":
        assert 0 < memory_check._meminfo()[0] <= memory_check._physical()
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:  300 kB\nSwapFree:  20 kB\nHugePages_Total: 0\n")
    assert memory_check._meminfo(str(file)) == (300 * 1024, 20 * 1024)
    file.write_text("MemTotal: 900 kB\n")  # an old kernel
    assert memory_check._meminfo(str(file)) is memory_check._meminfo("/no/such/file") is None
    for root, line, names, endless, total in (
        ("v2", "0::/jobs/mine\n", ("memory.max", "memory.current"), "max", ""),
        ("v1/memory", "5:cpu:/\n4:hugetlb,memory:/jobs/mine\n", ("memory.limit_in_bytes", "memory.usage_in_bytes"),
         1 << 62, "total_"),
    ):  # fmt: skip
        file.write_text(line)
        arguments = str(file), str(tmp_path / root[:2])
        left = [memory_check._left_by_cgroup(*arguments)]
        tree = ("", endless, 500, 0), ("jobs/mine", 5000, 1000, 90), ("jobs", 3000, 2000, 0), ("jobs", 3000, 4000, 0)
        for path, limit, usage, cached in tree:
            folder = tmp_path / root / path
            folder.mkdir(parents=True, exist_ok=True)
            statistics = f"anon 1\n{total}active_file {cached}\n{total}inactive_file 10"
            for name, value in zip((*names, "memory.stat"), (limit, usage, statistics), strict=True):
                (folder / name).write_text(f"{value}\n")
            left.append(memory_check._left_by_cgroup(*arguments))
        assert left == [None, None if endless == "max" else (1 << 62) - 490, 4100, 1010, 0]
    for memory, left, expected in (((1000, 50), None, 1050), ((1000, 50), 2000, 1050), ((9, 50), 3, 53), (None, 1, 7)):
        for name, value in (("_physical", 7), ("_meminfo", memory), ("_left_by_cgroup", left)):
            monkeypatch.setattr(memory_check, name, Mock(return_value=value))
        assert memory_check.available_memory() == expected
