"""``minidist train --as-if``: what it prints and writes; tests/plan/refusals.txt has what it refuses."""

import json

import pytest

from minidist.analysis.clock.as_if import as_if
from minidist.analysis.clock.report import Busy, RankTime, StepReport, report
from minidist.cli import main as cli
from minidist.cli.train.as_if import limit
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

SMALL = "--layers 2 --heads 2 --width 8 --context 8 --global-batch 4 --steps 2 --micro-batch 1".split()  # noqa: SIM905


def train(*flags: str) -> int:
    return cli.main(["train", *SMALL, *flags])


@pytest.mark.long
def test_what_it_prints_and_writes(tmp_path, capsys):
    path, trace, png = tmp_path / "out.json", tmp_path / "trace.json", tmp_path / "out.png"
    files = ["--json", str(path), "--trace", str(trace), "--png", str(png)]
    assert train("--dp", "2", "--tp", "2", "--as-if", "h100:2x2", *files) == 0
    told = capsys.readouterr().out
    assert "one step as if on h100:2x2, microseconds" in told and "its fullest links" in told
    found = json.loads(path.read_text())["as_if"]
    assert found["cluster"] == "h100:2x2" and len(found["ranks"]) == 4
    assert f"one step would take {found['seconds_per_step'] * 1e6:,.1f} µs on h100:2x2" in told
    for rank in found["ranks"]:
        assert rank["computing"] + rank["waiting"] == pytest.approx(found["seconds_per_step"])
    links = found["links"]
    assert [link["utilization"] for link in links] == sorted((link["utilization"] for link in links), reverse=True)
    uplinks = [link["nbytes"] for link in links if link["link"] in ("leaf0 -> spine", "leaf1 -> spine")]
    assert sum(uplinks) == found["bytes_between_nodes"] > 0
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and event["name"] == "step 1"]
    taken = max(step["ts"] + step["dur"] for step in steps) - min(step["ts"] for step in steps)
    assert taken == pytest.approx(found["seconds_per_step"] * 1e6, abs=2e-3)  # a trace has whole nanoseconds
    assert png.stat().st_size > 10_000


@pytest.mark.long
def test_a_pipeline_on_a_chip_without_float32_is_drawn_as_a_grid(tmp_path, capsys):
    """The optimizer's kernels have no FLOPs that count, so only their bytes take time."""
    png = tmp_path / "out.png"
    assert train("--pp", "2", "--precision", "bf16", "--as-if", "tpu-v4:2", "--png", str(png)) == 0
    assert png.stat().st_size > 10_000 and "one step would take" in capsys.readouterr().out


@pytest.mark.long
def test_a_network_of_ones_own_and_a_checkpoint_that_moves_to_other_nodes(tmp_path, capsys):
    net = tmp_path / "net.toml"
    net.write_text('ranks = ["a", "b"]\n[[link]]\nbetween = ["a", "b"]\nbandwidth = 1e9\nlatency = 1e-3\n')
    assert train("--dp", "2", "--as-if", f"h100:2,network={net}") == 0
    assert "a -> b" in capsys.readouterr().out
    assert train("--dp", "4", "--as-if", f"h100:4,network={net}") == 2
    assert "net.toml has 2 ranks and h100:1x4" in capsys.readouterr().err
    assert train("--dp", "2", "--node-size", "1", "--save", str(tmp_path / "saved"), "--save-every", "1") == 0
    capsys.readouterr()
    assert cli.main(["train", "--resume", str(tmp_path / "saved" / "step-000001"), "--as-if", "h100:2"]) == 0
    assert "µs on h100:1x2" in capsys.readouterr().out
    png = tmp_path / "out.png"  # a run that was over has no step to replay
    assert cli.main(["train", "--resume", str(tmp_path / "saved"), "--as-if", "h100:2", "--png", str(png)]) == 2
    told = capsys.readouterr()
    assert "fingerprint:" in told.out and "there is none to replay: leave --as-if out" in told.out
    assert "--png draws the last steps, and this run took none" in told.err and not png.exists()


@pytest.mark.long
def test_one_rank_has_no_links_and_a_run_that_cannot_be_replayed_still_brings_its_results(
    capsys, monkeypatch, tmp_path
):
    assert train("--as-if", "h100:1") == 0
    told = capsys.readouterr().out
    assert "its fullest links" not in told and "µs on h100:1x1, 100% of it computing" in told

    def fail(*_):
        raise ValueError("no such luck")

    monkeypatch.setattr("minidist.cli.train.command.on_cluster", fail)
    path = tmp_path / "out.json"
    assert train("--as-if", "h100:1", "--json", str(path)) == 2
    told = capsys.readouterr().out
    assert "fingerprint:" in told and "--as-if h100:1x1: no such luck" in told
    assert json.loads(path.read_text())["as_if"] is None


def test_shared_links_are_the_limit_only_if_they_are_in_use_for_long():
    """One small message that shares a link in an idle network is no reason for a long step."""
    for in_use, told in ((0.05, "no link carried more than 5% of what it could"), (0.3, "4.0 times as long as alone")):
        links = [Busy(("leaf0", "spine"), in_use, nbytes=1, utilization=in_use)]
        ranks = [RankTime(0.1, 0.9, 0.9, 0.0)]
        assert told in limit(StepReport(1.0, ranks, links, slowed=4.0, bytes_between_nodes=1))


def test_from_python_a_slower_network_only_makes_ranks_wait(ranks):
    config = TrainConfig(layers=2, heads=2, width=8, context=8, global_batch=4, micro_batch=1, steps=2)
    logs = [rank.log for rank in run(ranks(4), config, Layout(dp=2, tp=2), RunOptions(trace=True)).ranks]
    told = [report(as_if(logs, spec)) for spec in ("h100:4", "h100:2x2", "h100:2x2,oversubscription=8")]
    assert told[0].seconds < told[1].seconds < told[2].seconds
    computing = [sum(rank.computing for rank in one.ranks) for one in told]
    assert computing == pytest.approx([computing[0]] * 3)
    assert told[0].bytes_between_nodes == 0 < told[1].bytes_between_nodes == told[2].bytes_between_nodes
    fast, slow = (report(as_if(logs, "a100:4", share, share)) for share in (0.8, 0.4))
    assert slow.ranks[0].computing == pytest.approx(2 * fast.ranks[0].computing)  # of half the efficiency
    found = as_if(logs, "h100:2x2")
    assert report(found).seconds < found.seconds  # of two steps, the last
    with pytest.raises(ValueError, match="has 3 ranks"):
        as_if(logs[:3], "h100:2x2")
    with pytest.raises(ValueError, match="there is no 'step 9' in the log: choose from step 0, step 1"):
        report(found, "step 9")
