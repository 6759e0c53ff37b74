"""Layouts on several nodes: what is refused, which groups their algorithm meets, and what a run tells of them."""

import json
from unittest import mock

import pytest

from minidist.cli import main as cli
from minidist.comm.collectives import Call
from minidist.train.checks.nodes import gradient_groups
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.shrink import best_layout
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees

CONFIG = TrainConfig(
    layers=2, heads=2, width=8, context=8, global_batch=4, micro_batch=1, steps=2, warmup=1, lr=1e-2, sequence_chunks=2,
    experts=4, expert_hidden=8, moe_every=2,
)  # fmt: skip
SIZES = ["--layers", "1", "--heads", "2", "--width", "8", "--context", "8", "--global-batch", "4", "--micro-batch", "1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp=6,node_size=4", "6 ranks do not fill nodes of 4. Choose node_size 3 or 6, or 4 or 8 ranks"),
        ("dp=2,tp=2,node_size=3", "4 ranks do not fill nodes of 3. Choose node_size 2 or 4, or 3 or 6 ranks"),
        ("dp=2,node_size=-1", "node_size=-1: how many ranks share a node; 0 for all of them"),
        (
            "dp=3,tp=2,pp=2,node_size=4,algorithm=hierarchical",
            "with node_size=4 the ranks 0, 2, 4, which sum gradients, are 2, 1 on theirs: choose node_size from "
            "1, 2, 6, 12, or another algorithm, such as auto",
        ),
        ("dp=6,cp=2,zero=1,shard=3,node_size=2,algorithm=hierarchical", "the ranks 0, 1, 2, which sum gradients"),
        ("dp=6,ep=2,node_size=4,algorithm=hierarchical", "6 ranks do not fill nodes of 4"),
        ("dp=6,ep=2,tp=2,node_size=6,algorithm=hierarchical", "are 2, 1 on theirs: choose node_size from 1, 2, 4, 12"),
    ],
)
def test_layouts_that_do_not_fit_their_nodes(text, message):
    with pytest.raises(ValueError) as caught:
        Layout.parse(text)
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def one_process(ranks):
    return run(ranks(1), CONFIG, Layout())


def recording(world, config, layout, options):
    """Train, and bring back the groups whose collectives were given the layout's algorithm."""
    seen, choose = set(), Call.choose

    def watched(self, *arguments):
        if self.algorithm == layout.algorithm and self.group.size > 1:
            seen.add(self.group.ranks)
        return choose(self, *arguments)

    with mock.patch.object(Call, "choose", watched):
        result = train_rank(world, config, layout, options)
    result.log = sorted(seen)
    return result


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "dp=2,tp=2,node_size=2",
        "dp=2,cp=2,node_size=2",
        "dp=2,pp=2,node_size=2",
        "dp=4,ep=2,node_size=2",
        "dp=4,zero=3,shard=2,node_size=2",
        "dp=2,cp=2,zero=2,node_size=1",
        "dp=4,ep=2,zero=1,node_size=1",
    ],
)
def test_the_groups_that_are_checked_are_those_that_sum_gradients(ranks, one_process, text):
    layout = Layout.parse(f"{text},algorithm=hierarchical")
    result = run(ranks(4), CONFIG, layout, rank_function=recording)
    found = {group for rank in result.ranks for group in rank.log}
    assert found == {tuple(group) for group in gradient_groups(layout) if len(group) > 1}
    assert agrees(one_process, result)


def test_a_run_that_loses_ranks_goes_on_without_nodes_that_they_do_not_fill():
    config = TrainConfig(heads=4, global_batch=12, micro_batch=1)
    layout = Layout(dp=6, node_size=3, algorithm="hierarchical")
    after = best_layout(config, layout, 5)
    assert after.node_size in (0, after.world_size) or after.world_size % after.node_size == 0
    assert best_layout(config, layout, 3).node_size == 3


def trained(capsys, tmp_path, *flags) -> tuple[str, dict]:
    path = tmp_path / "run.json"
    assert cli.main(["train", *SIZES, "--steps", "2", *flags, "--json", str(path)]) == 0
    return " ".join(capsys.readouterr().out.split()), json.loads(path.read_text())


@pytest.mark.long
def test_the_command_counts_bytes_between_nodes(capsys, tmp_path):
    _, one = trained(capsys, tmp_path, "--dp", "4", "--algorithm", "ring")
    out, two = trained(capsys, tmp_path, "--dp", "4", "--algorithm", "ring", "--node-size", "2")
    assert "between" in out and one["fingerprint"] == two["fingerprint"]
    assert [rank["bytes_between_nodes"] for rank in one["traffic"]] == [0] * 4
    for number, rows in enumerate(two["collectives"]):  # of gradients, and of the loss, for which auto chooses
        for row in (row for row in rows if row["elements"] > 1):  # the last rank of a node sends all to the next one
            assert row["bytes_between_nodes"] == (number % 2) * row["bytes_sent"]
    _, less = trained(capsys, tmp_path, "--dp", "4", "--algorithm", "hierarchical", "--node-size", "2")
    sums = [
        sum(row["bytes_between_nodes"] for row in run["collectives"][1] if row["elements"] > 1) for run in (two, less)
    ]
    assert sums[0] == 3 * sums[1]  # 2 (N-1)/N M, and 2 (n-1)/n M/L: 3/2 and 1/2


@pytest.mark.long
def test_one_node_has_no_column_for_others(capsys, tmp_path):
    assert "between nodes" not in trained(capsys, tmp_path, "--dp", "2")[0]
    assert "between nodes" not in trained(capsys, tmp_path, "--dp", "2", "--node-size", "2")[0]


def test_bad_node_sizes_are_refused_before_any_rank_starts(capsys):
    assert cli.main(["train", *SIZES, "--dp", "4", "--node-size", "3"]) == 2
    assert "Choose node_size 2 or 4" in capsys.readouterr().err
