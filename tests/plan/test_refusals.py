"""What the planner says of input that cannot be: every line of refusals.txt."""

from pathlib import Path

from planned import HARDWARE, NETWORK
from refusals import check_refusals

from minidist.plan.batches import BatchExperiment, Run
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.toml_tables import from_table
from minidist.plan.cluster.topologies import from_toml, topology_of
from minidist.plan.cluster.topology import Topology
from minidist.plan.models import model_of
from minidist.plan.published_runs import PublishedRun
from minidist.plan.scaling.laws import Training

FILE = Path(__file__).with_name("refusals.txt")
TWELVE = model_of("layers=12,width=960,heads=12,vocab=1000,context=240")
RUNS = [Training(10.0**size, 10.0**tokens, 30.0 - size - tokens) for size in (8, 9, 10) for tokens in (9, 10, 11)]


def hardware(before: str, after: str, size: str = "") -> ClusterSpec:
    """A cluster of one's own file, in which one text has become another."""
    assert before in HARDWARE
    Path("own.toml").write_text(HARDWARE.replace(before, after, 1) if before else HARDWARE + after)
    return ClusterSpec.parse(f"own.toml{size}")


def network(before: str, after: str) -> Topology:
    """One's own graph, in which one text has become another."""
    assert before in NETWORK
    Path("ring.toml").write_text(NETWORK.replace(before, after, 1))
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


def test_what_cannot_be_is_named_with_the_nearest_that_can(tmp_path, monkeypatch):
    monkeypatch.setattr("minidist.cli.train.command.new_cluster", None)  # whoever starts ranks fails
    check_refusals(FILE, dict(globals()), monkeypatch, tmp_path)
