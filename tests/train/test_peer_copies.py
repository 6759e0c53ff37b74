"""Runs that go on from what the surviving ranks hold: without a disk, in any layout, to the same fingerprint."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from clusters import RUN_SECONDS, PatientCluster
from multiprocess import active_children

import minidist as md
from minidist.cli.main import main as command_line
from minidist.train import trainer
from minidist.train.checkpoint import peers, recovery
from minidist.train.checkpoint.commit import committed, saves
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import Manifest, Progress
from minidist.train.checkpoint.peers import Generation, PeerCopies
from minidist.train.checkpoint.restore import check_files
from minidist.train.checkpoint.saver import Saving
from minidist.train.checkpoint.snapshot import Part
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import Elasticity, run_elastic
from minidist.train.resilience.faults import Fault
from minidist.train.result import RunOptions
from minidist.train.trainer import run

STEPS = 8
MEMORY = "the memory of peers"
CONFIG = TrainConfig(
    layers=1, heads=2, width=16, context=8, global_batch=14, micro_batch=2, steps=STEPS, warmup=2, dropout=0.2, seed=3
)
references = {}


@pytest.fixture(autouse=True)
def nothing_is_left(ranks):
    """No process of an attempt outlives the run. (``ranks`` loads what ranks import.)"""
    ranks(1).run(lambda world: None)
    before = len(active_children())
    yield
    assert len(active_children()) == before


def reference(ranks, config=CONFIG):
    """The fingerprint of the run on one rank that nothing interrupts."""
    if config not in references:
        references[config] = run(ranks(1), config, Layout()).fingerprint
    return references[config]


def elastic(layout, *faults, config=CONFIG, every=2, copies=1, folder=None, rank_function=None, **how):
    options = RunOptions(
        peer_copies=PeerCopies(every, copies),
        saving=None if folder is None else Saving(str(folder), 3, mode="sync"),
        faults=tuple(map(Fault.parse, faults)),
    )
    how = Elasticity(**{"patience": RUN_SECONDS} | how)
    return run_elastic(
        config, Layout.parse(layout), options, how, start=PatientCluster, rank_function=rank_function
    )  # fmt: skip


@pytest.mark.parametrize(
    "layout",
    [
        "dp=3",
        pytest.param("dp=3,zero=3", marks=pytest.mark.long),
        pytest.param("dp=5,zero=1", marks=pytest.mark.long),
        pytest.param("dp=7,zero=2", marks=pytest.mark.long),
    ],
)
def test_any_one_rank_may_die(ranks, layout):
    """One after another: each time a new rank takes the place, and fetches its share from the others."""
    size = Layout.parse(layout).world_size
    config = replace(CONFIG, steps=size + 2)
    faults = [f"rank={rank},step={rank + 1},kind=kill" for rank in range(size)]
    result, interruptions = elastic(layout, *faults, config=config, every=1, on_failure="restart")
    assert result.fingerprint == reference(ranks, config)
    assert [it.ranks for it in interruptions] == [(rank,) for rank in range(size)]
    assert [(it.source, it.resumed) for it in interruptions] == [(MEMORY, step + 1) for step in range(size)]
    assert [rank.bytes_read for rank in result.ranks] == [0] * size  # of files


EXPERTS = {"experts": 4, "expert_hidden": 8, "bias_rate": 0.01}


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "after", "settings"),
    [
        pytest.param("dp=5,zero=1", "dp=4,zero=1", {}, marks=pytest.mark.long),
        ("dp=3,zero=3", "tp=2", {"precision": "bf16"}),  # 7 micro-batches on 2 ranks: 3.5, not 4
        pytest.param("dp=2,tp=2,zero=2", "dp=3,zero=2", {}, marks=pytest.mark.long),
        pytest.param("pp=2,tp=2", "dp=3", {"precision": "fp16", "layers": 2}, marks=pytest.mark.long),
        pytest.param("dp=4,ep=2,zero=1", "dp=3,zero=1", EXPERTS, marks=pytest.mark.long),
    ],
)
def test_what_is_left_goes_on_in_another_layout(ranks, layout, after, settings):
    """Rank 0 dies, which alone holds what is no parameter."""
    config = replace(CONFIG, **settings)
    result, [interruption] = elastic(layout, "rank=0,step=5,kind=kill", config=config)
    assert result.fingerprint == reference(ranks, config) and str(result.layout) == after
    assert (interruption.source, interruption.resumed, interruption.lost) == (MEMORY, 4, "")


def test_survivors_that_have_no_place_hand_over_what_they_hold(ranks):
    """Two micro-batches and two heads occupy 2 of the 3 ranks that are left. The third alone has a snapshot."""
    config = replace(CONFIG, global_batch=4)
    result, [interruption] = elastic("dp=2,tp=2", "rank=0,step=5,kind=kill", config=config)
    assert result.layout.world_size == 2 and result.fingerprint == reference(ranks, config)
    assert (interruption.source, interruption.resumed) == (MEMORY, 4)


@pytest.mark.long
def test_down_to_one_rank(ranks):
    """Rank by rank: after each failure the copies are complete again before the next."""
    result, interruptions = elastic(
        "dp=4,zero=1", "rank=1,step=3,kind=kill", "rank=2,step=4,kind=raise", "rank=0,step=7,kind=kill"
    )
    assert result.fingerprint == reference(ranks) and str(result.layout) == "dp=1"
    assert [(it.source, it.resumed) for it in interruptions] == [(MEMORY, 2), (MEMORY, 4), (MEMORY, 6)]


@pytest.mark.long
def test_before_the_first_snapshot_it_begins_again(ranks):
    result, [interruption] = elastic("dp=3", "rank=1,step=1,kind=kill")
    assert result.fingerprint == reference(ranks)
    assert (interruption.source, interruption.resumed, interruption.lost) == ("the beginning", 0, "")


@pytest.mark.long
def test_a_rank_that_hangs(ranks):
    result, [interruption] = elastic("dp=3,zero=1", "rank=1,step=5,kind=hang", patience=3.0)
    assert result.fingerprint == reference(ranks) and (interruption.ranks, interruption.resumed) == ((1,), 4)
    assert interruption.source == MEMORY


def two_die(first, second):
    """A rank function in which, as the first is ordered to die, it takes the second with it."""

    def rank_function(world, config, layout, options):
        from minidist.parallel.tools.scalars import texts_of_all
        from minidist.train import trainer
        from minidist.train.resilience import faults

        pids = texts_of_all(str(os.getpid()), world)

        def strike(self, fault):
            os.kill(int(pids[second]), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        faults.Faults.strike = strike
        return trainer.train_rank(world, config, layout, options)

    return rank_function


LOST = re.compile(
    r"of the snapshots after 4 steps nobody has those of rank 1 of dp=5,zero=1: [\d,]+ elements of .+ are lost; "
    r"of the snapshots after 2 steps nobody has those of rank 1 of dp=5,zero=1: .+ are lost"
)


@pytest.mark.long
def test_a_rank_and_its_peer_die_together(ranks):
    """What was lost is named, and without a disk there is nothing but the beginning."""
    result, [interruption] = elastic("dp=5,zero=1", "rank=1,step=5,kind=kill", rank_function=two_die(1, 2))
    assert sorted(interruption.ranks) == [1, 2] and result.layout.world_size == 3
    assert (interruption.source, interruption.resumed) == ("the beginning", 0)
    assert LOST.fullmatch(interruption.lost)
    assert result.fingerprint == reference(ranks)


@pytest.mark.long
def test_then_a_checkpoint_on_the_disk_is_next(ranks, tmp_path):
    result, [interruption] = elastic(
        "dp=5,zero=1", "rank=1,step=5,kind=kill", rank_function=two_die(1, 2), folder=tmp_path
    )
    assert (Path(interruption.source).name, interruption.resumed) == ("step-000003", 3)
    assert LOST.fullmatch(interruption.lost) and result.fingerprint == reference(ranks)


@pytest.mark.long
@pytest.mark.parametrize(("second", "copies"), [(3, 1), (2, 2)])
def test_two_that_are_no_neighbours_or_have_two_copies_may_die(ranks, second, copies):
    result, [interruption] = elastic(
        "dp=5,zero=1", "rank=1,step=5,kind=kill", rank_function=two_die(1, second), copies=copies
    )
    assert (interruption.source, interruption.resumed, interruption.lost) == (MEMORY, 4, "")
    assert result.fingerprint == reference(ranks) and result.layout.world_size == 3


@pytest.mark.long
@pytest.mark.parametrize(("every", "source"), [(2, MEMORY), (5, "step-000003")])
def test_the_newer_of_memory_and_disk_counts(ranks, tmp_path, every, source):
    """Checkpoints come every 3 steps, and a rank dies in step 4."""
    result, [interruption] = elastic("dp=3", "rank=1,step=4,kind=kill", every=every, folder=tmp_path)
    assert Path(interruption.source).name == source and result.fingerprint == reference(ranks)


def dies_while_copying(rank, step):
    """A rank function in which a rank dies in the midst of an exchange, after it has taken its own snapshot."""

    def rank_function(world, config, layout, options):
        from minidist.train import trainer
        from minidist.train.checkpoint import peers

        exchange = peers.Peers.take

        def take(self, progress):
            if (self.world.size, self.world.rank, progress.step) == (layout_size, rank, step):
                peers.sendrecv = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            return exchange(self, progress)

        layout_size = 4
        peers.Peers.take = take
        return trainer.train_rank(world, config, layout, options)

    return rank_function


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_rank_that_dies_while_copies_are_under_way(ranks, rank):
    """The generation before is whole."""
    result, [interruption] = elastic("dp=4,zero=1", rank_function=dies_while_copying(rank, 4))
    assert (interruption.source, interruption.resumed) == (MEMORY, 2)
    assert f"after 4 steps nobody has those of rank {rank} of dp=4,zero=1" in interruption.lost
    assert result.fingerprint == reference(ranks)


@pytest.mark.long
def test_another_failure_during_recovery(ranks):
    """The second rank dies as the first attempt to go on begins."""

    def rank_function(world, config, layout, options):
        from minidist.train import trainer

        if options.recover and world.size == 4 and world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return trainer.train_rank(world, config, layout, options)

    result, interruptions = elastic("dp=5,zero=1", "rank=4,step=5,kind=kill", rank_function=rank_function)
    assert [it.ranks for it in interruptions] == [(4,), (1,)] and result.layout.world_size == 3
    assert [(it.source, it.resumed) for it in interruptions] == [(MEMORY, 4), (MEMORY, 4)]
    assert result.fingerprint == reference(ranks)


@pytest.mark.long
def test_another_failure_before_the_next_snapshot(ranks):
    """What the first dead rank held has two holders again by then."""

    def rank_function(world, config, layout, options):
        from minidist.train import share, trainer

        if world.size == 3 and world.rank == 0:
            share.train_step = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        return trainer.train_rank(world, config, layout, options)

    result, interruptions = elastic("dp=4,zero=1", "rank=1,step=5,kind=kill", rank_function=rank_function)
    assert [(it.source, it.resumed, it.lost) for it in interruptions] == [(MEMORY, 4, "")] * 2
    assert result.layout.world_size == 2 and result.fingerprint == reference(ranks)


@pytest.mark.long
def test_a_writer_of_the_run_before_does_not_disturb_the_next(ranks, tmp_path):
    """As a rank dies, step 4 is being written, slowly, by threads that live on in the survivors. The run goes on from
    step 3, comes to step 4 in another layout, and writes files of the same names."""

    def rank_function(world, config, layout, options):
        import threading
        import time

        write = Disk.write

        def slowly(self, path, content):
            if "step-000004" in str(path):
                time.sleep(2)
            write(self, path, content)

        if world.size == 4:
            Disk.write = slowly
        elif "write" in world.kept:
            Disk.write = world.kept["write"]
        world.kept.setdefault("write", write)
        result = trainer.train_rank(world, config, layout, options)
        for thread in threading.enumerate():
            if thread.name.startswith("save"):
                thread.join()
        return result

    options = RunOptions(
        peer_copies=PeerCopies(3), saving=Saving(str(tmp_path), 2, keep=0),
        faults=(Fault.parse("rank=1,step=4,kind=kill"),),
    )  # fmt: skip
    result, [interruption] = run_elastic(
        CONFIG, Layout(dp=4, zero=1), options, start=PatientCluster, rank_function=rank_function
    )
    assert interruption.resumed == 3 and result.fingerprint == reference(ranks)
    names = committed(Disk(), tmp_path)
    assert names[-3:] == ["step-000004", "step-000006", "step-000008"] and names == saves(Disk(), tmp_path)
    for name in names:
        check_files(tmp_path / name, Manifest.read(Disk(), tmp_path / name))


def test_a_run_leaves_nothing_to_the_next_on_the_same_ranks(ranks):
    """But for what it was asked to keep, and that for no longer than until the next run."""

    def held(world):
        return [generation.progress.step for generation in peers.generations_of(world)]

    with md.Cluster(2) as cluster:
        run(cluster, CONFIG, Layout(dp=2), RunOptions(peer_copies=PeerCopies(3)))
        assert cluster.run(held) == [[3, 6]] * 2
        run(cluster, CONFIG, Layout(dp=2))
        assert cluster.run(held) == [[]] * 2


@pytest.mark.long
def test_each_rank_fetches_only_what_it_does_not_hold(ranks):
    """In the same layout with all ranks there: nothing at all."""

    def again(world, config, layout):
        from minidist.train.checkpoint.recovery import recover
        from minidist.train.share import Share

        share = Share.of(world, config, layout)
        before = world.traffic
        sizes = []
        whole = recovery.packed
        recovery.packed = lambda arrays: (sizes.append(sum(array.nbytes for array in arrays)), whole(arrays))[1]
        progress = recover(world, 6, share)
        recovery.packed = whole
        return progress.step, sizes, (world.traffic - before).as_dict()["bytes_sent"]

    layout = Layout(dp=3, zero=3)
    with md.Cluster(3) as cluster:
        run(cluster, CONFIG, layout, RunOptions(peer_copies=PeerCopies(3)))
        for step, sizes, sent in cluster.run(again, CONFIG, layout):
            assert (step, sizes) == (6, [0, 0]) and sent > 0  # descriptions


def test_what_is_newer_than_the_recovered_step_is_forgotten(ranks):
    def back(world, config, layout):
        from minidist.train.share import Share

        recovery.recover(world, 3, Share.of(world, config, layout))
        return [generation.progress.step for generation in peers.generations_of(world)]

    layout = Layout(dp=2)
    with md.Cluster(2) as cluster:
        run(cluster, CONFIG, layout, RunOptions(peer_copies=PeerCopies(3)))
        assert cluster.run(back, CONFIG, layout) == [[3]] * 2


def generation(step, owners, held, shape=(4,)):
    arrays = {"w": (shape, "float32"), "b": ((2,), "float32")}
    return Generation(Progress(step, (0.0,) * step, step), owners, arrays, dict(held))


def part(start, stop):
    return {"runs": [[start, stop]], "shape": [4], "dtype": "float32"}


def surveyed(*ranks, not_after=None):
    return recovery.survey(SimpleNamespace(run=lambda _, patience: list(ranks)), not_after)


def test_a_survey_by_hand():
    a = {"a": {"w": part(0, 3), "b": {"runs": [[0, 2]], "shape": [2], "dtype": "float32"}}}
    b = {"b": {"w": part(3, 4)}}
    owners = ["a", "b"]
    assert surveyed([generation(2, owners, a)], [generation(2, owners, b)]) == (2, "")
    assert surveyed([], []) == (None, "")
    step, lost = surveyed([generation(2, owners, a | b), generation(4, owners, b)], [])
    assert step == 2
    assert lost == "of the snapshots after 4 steps nobody has those of a: 5 elements of w, b are lost"
    assert surveyed([generation(2, owners, a), generation(4, owners, a | b)], not_after=3) == (
        None, "of the snapshots after 2 steps nobody has those of b: 1 elements of w are lost"
    )  # fmt: skip
    assert surveyed([generation(4, owners, a)], [generation(4, ["c"], {"c": {"w": part(2, 4)}})]) == (4, "")


def test_packing_keeps_dtypes_and_shapes():
    parts = {
        "x": Part(np.arange(3, dtype=np.int8), ((1, 4),), (5,)),
        "y": Part(np.arange(4, dtype=np.float32), ((0, 2), (4, 6)), (2, 3)),
        "z": Part(np.empty(0, np.float32), (), (0,)),
    }
    content = peers.packed([one.values for one in parts.values()])
    found = peers.unpacked(content, {name: one.described() for name, one in parts.items()})
    for name, one in parts.items():
        assert (found[name].runs, found[name].shape) == (one.runs, one.shape)
        assert found[name].values.dtype == one.values.dtype and (found[name].values == one.values).all()
    assert peers.packed([]).size == 0


def test_settings_that_cannot_be(capsys):
    with pytest.raises(ValueError, match="a snapshot is taken every 1 step or more, not every 0: change --save-every"):
        PeerCopies(0)
    with pytest.raises(ValueError, match="--peer-copies must be 0, for none, or more, but is -1"):
        PeerCopies(1, -1)
    for flags, message in {
        ("--peer-copies", "1"): "--peer-copies are for ranks that survive a failure: add --elastic",
        ("--elastic", "--peer-copies", "2"): "needs as many ranks beside each, and layout dp=2 has 2 in all",
        ("--elastic",): "add --save DIR or --peer-copies 1",
    }.items():
        assert command_line(["train", "--dp", "2", "--steps", "2", *flags]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.long
def test_the_command_line(ranks, capsys):
    arguments = [
        "train", "--dp", "3", "--steps", "8", "--layers", "1", "--heads", "2", "--width", "16", "--context", "8",
        "--global-batch", "14", "--warmup", "2", "--dropout", "0.2", "--seed", "3", "--elastic", "--peer-copies", "1",
        "--save-every", "2", "--fault", "rank=2,step=5,kind=kill",
    ]  # fmt: skip
    assert command_line(arguments) == 0
    shown = capsys.readouterr()
    assert reference(ranks) in shown.out
    assert "going on in tp=2 from the memory of peers, 1 step again" in shown.err
