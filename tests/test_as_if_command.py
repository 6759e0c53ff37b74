"""``minidist train --as-if``: what it prints and writes; tests/plan/refusals.txt has what it refuses."""

import json
from dataclasses import replace

import pytest

from minidist.analysis.replay import as_if
from minidist.analysis.report import report
from minidist.cli import main as cli
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
    found, told = json.loads(path.read_text())["as_if"], capsys.readouterr().out
    assert found["cluster"] == "h100:2x2" and len(found["ranks"]) == 4 and "its fullest links" in told
    assert f"one step would take {found['seconds_per_step'] * 1e6:,.1f} µs on h100:2x2" in told
    for rank in found["ranks"]:
        assert rank["computing"] + rank["waiting"] == pytest.approx(found["seconds_per_step"])
    links = found["links"]
    assert [link["utilization"] for link in links] == sorted((link["utilization"] for link in links), reverse=True)
    uplinks = [link["nbytes"] for link in links if link["link"] in ("leaf0 -> spine", "leaf1 -> spine")]
    assert sum(uplinks) == found["bytes_between_nodes"] > 0 and png.stat().st_size > 10_000
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and event["name"] == "step 1"]
    taken = max(step["ts"] + step["dur"] for step in steps) - min(step["ts"] for step in steps)
    assert taken == pytest.approx(found["seconds_per_step"] * 1e6, abs=2e-3)  # a trace has whole nanoseconds


@pytest.mark.long
def test_chips_without_float32_networks_of_ones_own_one_rank_and_runs_that_were_over(tmp_path, capsys):
    net, png, saved = tmp_path / "net.toml", tmp_path / "out.png", tmp_path / "saved"
    assert train("--pp", "2", "--precision", "bf16", "--as-if", "tpu-v4:2", "--png", str(png)) == 0  # drawn as a grid
    net.write_text('ranks = ["a", "b"]\n[[link]]\nbetween = ["a", "b"]\nbandwidth = 1e9\nlatency = 1e-3\n')
    assert train("--dp", "2", "--as-if", f"h100:2,network={net}") == 0
    assert "a -> b" in capsys.readouterr().out
    assert train("--as-if", "h100:1") == 0
    told = capsys.readouterr().out
    assert "its fullest links" not in told and "µs on h100:1x1, 100% of it computing" in told
    assert train("--dp", "2", "--node-size", "1", "--save", str(saved), "--save-every", "1") == 0
    resume = ["train", "--as-if", "h100:2", "--resume"]  # on other nodes than before
    assert cli.main([*resume, str(saved / "step-000001")]) == 0 and "µs on h100:1x2" in capsys.readouterr().out
    png.unlink()  # no step is left to replay, but there are results
    assert cli.main([*resume, str(saved), "--png", str(png), "--json", str(path := tmp_path / "out.json")]) == 2
    told = capsys.readouterr()
    assert "fingerprint:" in told.out and "there is none to replay: leave --as-if out" in told.out and not png.exists()
    assert "no step was left to take after step" in told.out and "in one step" not in told.out
    assert json.loads(path.read_text())["as_if"] is None


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
    shared = as_if(logs, "h100:2x2,oversubscription=8")
    first, last = (report(shared, name) for name in ("step 0", "step 1"))
    assert last == report(shared) and last.slowed == pytest.approx(first.slowed) and first.slowed > 1.5
    assert last.bytes_between_nodes == pytest.approx(first.bytes_between_nodes, rel=1e-3)  # of one step each
    served = run(ranks(3), replace(config, steps=3), Layout(dp=2, sync="server"), RunOptions(trace=True)).ranks
    assert len(as_if([rank.log for rank in served], "h100:3").steps) == 3  # a step's weights come in the next
