"""The peak that utilization is measured against, and what ``minidist train`` makes of it."""

import json
from types import SimpleNamespace

import pytest
from choosing import long

from minidist.cli.main import main
from minidist.train.checkpoint.commit import name_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring import peak
from minidist.train.measuring.peak import SIZES, measured_peak, share_of_cores
from minidist.train.result import RunOptions
from minidist.train.trainer import run

FLAGS = "--layers=1 --width=16 --heads=2 --context=8 --global-batch=8".split()  # noqa: SIM905


def test_the_fastest_size_counts(monkeypatch):
    """One round of 256, 512, 1024, which take 1, 2 and 1,000 seconds."""
    monkeypatch.setattr(peak, "barrier", lambda world: None)
    monkeypatch.setattr(peak, "cores", lambda: 2)
    looks = iter([0.0, 1.0, 1.0, 3.0, 3.0, 1003.0])  # before and after each product
    clock = SimpleNamespace(seconds=lambda: next(looks))
    world = SimpleNamespace(size=8, transport=SimpleNamespace(clock=clock))
    assert measured_peak(world, seconds=0.0) == SIZES[1] ** 3 * 2 / 2.0 * 2 / 8
    assert list(looks) == []
    for ranks, cores, share in ((1, 2, 1), (2, 2, 1), (8, 2, 0.25), (3, 2, 2 / 3)):
        assert share_of_cores(ranks, cores) == share


def test_each_rank_brings_its_peak_back(ranks):
    config = TrainConfig(layers=1, heads=2, width=16, context=8, global_batch=4, steps=1)
    asked = run(ranks(2), config, Layout(dp=2), RunOptions(measure_peak=True))
    plain = run(ranks(2), config, Layout(dp=2))
    assert all(rank.peak_flops > 0 for rank in asked.ranks) and [rank.peak_flops for rank in plain.ranks] == [0, 0]
    assert asked.fingerprint == plain.fingerprint
    assert (asked.ranks[0].traffic.sent == plain.ranks[0].traffic.sent).all()  # its barrier is not the run's


@pytest.mark.parametrize(
    "flags",
    [
        long("--steps=3 --dp=2 --recompute=full"), long("--steps=2 --pp=2 --layers=3"),
        long("--steps=2 --dp=2 --ep=2 --experts=4 --expert-hidden=16"),
        long("--steps=2 --precision=fp16 --loss-scale=1099511627776"),
    ],
)  # fmt: skip
def test_train_shows_and_writes_utilization(capsys, tmp_path, flags):
    results = tmp_path / "results.json"
    assert main(["train", *FLAGS, *flags.split(), "--tables", f"--json={results}"]) == 0
    shown = capsys.readouterr().out
    assert "model FLOP/s, and their share of the measured peak" in shown
    assert "where the time of the last steps went" in shown
    used = json.loads(results.read_text())["utilization"]
    assert 0 < used["mfu"] <= used["hfu"] and used["peak_flops_per_second"] > 0
    assert used["model_flops"] == sum(rank["model_flops"] for rank in used["ranks"])
    assert (used["hfu"] > used["mfu"]) == ("--recompute=full" in flags)
    assert all(sum(rank["time"].values()) == pytest.approx(1) for rank in used["ranks"])


@pytest.mark.long
def test_a_run_that_goes_on_counts_its_own_steps(capsys, tmp_path):
    folder, results = tmp_path / "saved", tmp_path / "results.json"
    found = []
    for flags in (
        ["--steps=3", f"--save={folder}", "--save-every=1", "--keep=0", *FLAGS],
        [f"--resume={folder / name_of(2)}"], [f"--resume={folder}"],  # the last has ended already
    ):  # fmt: skip
        assert main(["train", *flags, f"--json={results}"]) == 0
        found.append(json.loads(results.read_text())["utilization"])
    whole, part, nothing = found
    assert part["model_flops"] * 3 == whole["model_flops"] and nothing is None
