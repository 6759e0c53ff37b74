"""Runs that go on after failures: what is lost, what ends a run. (Who is named, and their bits: test_goes_on.py.)"""

import json
import os
import re
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from acting import train_acting
from choosing import long
from clusters import RUN_SECONDS, PatientCluster

import minidist as md
from minidist.cli.main import main as command_line
from minidist.parallel.tools.messages import all_gather_object
from minidist.train.checkpoint import peers
from minidist.train.checkpoint.commit import committed, saves
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.peers import PeerCopies, generations_of
from minidist.train.checkpoint.restore import check_files
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience import elastic as library
from minidist.train.resilience.elastic import Elasticity, run_elastic
from minidist.train.resilience.faults import Fault, order
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank

MEMORY, START = "the memory of peers", "the beginning"
CONFIG = TrainConfig(
    layers=1, heads=2, width=16, context=8, global_batch=10, micro_batch=2, steps=8, warmup=2, dropout=0.2, seed=3
)
FLAGS = "--layers 1 --heads 2 --width 16 --context 8 --global-batch 10 --steps 8 --warmup 2 --dropout 0.2 --seed 3"


@pytest.fixture(scope="module")
def expected(ranks):
    """The fingerprint of the run on one rank that nothing interrupts."""
    return run(ranks(1), CONFIG, Layout()).fingerprint


def sync(folder, every=2) -> Saving:
    return Saving(str(folder), every, keep=0, mode="sync")


def elastic(layout, *orders, how=None, rank_function=None, seen=lambda it: None, on_event=lambda *_: None, **options):
    """A run and its interruptions. ``how``: its Elasticity; ``options``: its RunOptions."""
    return run_elastic(
        CONFIG, Layout.parse(layout), RunOptions(faults=tuple(map(Fault.parse, orders)), **options),
        Elasticity(**{"patience": RUN_SECONDS} | (how or {})), start=PatientCluster, rank_function=rank_function,
        on_interruption=seen, on_event=on_event,
    )  # fmt: skip


def test_what_ends_a_run(tmp_path):
    def elastic_with(error, begin):
        seen, saving = [], sync(tmp_path / type(error).__name__)
        with pytest.raises(md.RankFailed, match=f"{type(error).__name__}: .*{error.args[0]}"):
            elastic("dp=2", saving=saving, rank_function=partial(train_acting, begin=begin), seen=seen.append)
        return [it.step for it in seen]

    errors = {KeyError("bug"): [3], FloatingPointError("diverged"): [], MemoryError("none"): [], ValueError("no"): []}
    for error, interruptions in errors.items():

        def raise_in_3(step, error=error):
            if step == 3:  # on every rank; an error of an unknown kind might have been a machine's fault, once
                raise error

        assert elastic_with(error, raise_in_3) == interruptions, error
    with pytest.raises(RuntimeError, match=r"^rank 0 of 1 was killed by SIGKILL.*, and no rank is left to go on$"):
        elastic("dp=1", "rank=0,step=1,kind=kill", saving=sync(tmp_path / "alone"))
    with pytest.raises(RuntimeError, match="and --max-restarts 0 allows no further restart"):
        elastic("dp=2", "rank=1,step=1,kind=kill", saving=sync(tmp_path / "limit"), how={"max_restarts": 0})


def test_what_is_not_to_be_relied_on_stays_so_when_going_back_fails_too(tmp_path, monkeypatch, expected):
    """A rank dies while the survivors are asked what they hold. Of checkpoints after 4 and 5 steps nobody can tell."""
    asked, failures, seen = library.survey, [md.RankFailed("rank 0 of 2 died", 0, "died")], []

    def survey(*arguments):
        if failures:
            raise failures.pop()
        return asked(*arguments)

    monkeypatch.setattr(library, "survey", survey)
    saving, copies, how = sync(tmp_path, 1), PeerCopies(1), {"on_failure": "restart"}
    order = "rank=1,step=3,kind=flip:weights"
    result, _ = elastic("dp=3", order, saving=saving, peer_copies=copies, check_replicas=3, how=how, seen=seen.append)
    assert [it.resumed for it in seen] == [3] and not failures and result.fingerprint == expected


def test_a_run_goes_on_without_what_a_smaller_layout_cannot_have(tmp_path, expected):
    never = "rank=1,step=4,kind=raise"
    for orders, asked in ((), {"rebalance": True}), ((), {"check_replicas": 1, "check_by": "vote"}), ((never,), {}):
        notes, saving = [], sync(tmp_path / "-".join(["in", *asked]), 1)
        note = lambda _, event, notes=notes: notes.append(event[1]) if event[0] == "note" else None  # noqa: E731
        result, _ = elastic("dp=2", "rank=1,step=2,kind=kill", *orders, saving=saving, on_event=note, **asked)
        assert result.fingerprint == expected and result.layout == Layout()
        assert len(notes) == 1 and "going on without this: --" in notes[0]


def two_die(first, second, step):
    """A rank function in which the first of two ranks takes the second with it in this step, of five ranks."""

    def rank_function(world, *arguments):
        pids = all_gather_object(str(os.getpid()), world)

        def begin(now):
            if (world.size, world.rank, now) == (5, first, step):
                os.kill(int(pids[second]), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

        return train_acting(world, *arguments, begin=begin)

    return rank_function


@pytest.mark.long
def test_what_was_checked_counts_for_that_attempt_alone(tmp_path, expected):
    """Steps 5 and 6 were right, and lost; computed again, a number is wrong, and a rank dies before the next check."""

    def rank_function(world, config, layout, options):
        if world.size == 3:
            orders = "rank=0,step=4,kind=flip:weights", "rank=1,step=5,kind=kill"
            options = replace(options, faults=tuple(map(Fault.parse, orders)))
        return two_die(1, 2, 7)(world, config, layout, options)

    settings = {"saving": sync(tmp_path, 4), "peer_copies": PeerCopies(5), "check_replicas": 3}
    result, found = elastic("dp=5", rank_function=rank_function, **settings)
    assert [it.resumed for it in found] == [4, 4] and result.fingerprint == expected


def test_a_second_order_for_a_rank_that_is_dead_does_not_strike_the_next_one_of_its_number(tmp_path, expected):
    order(tmp_path, 1, "kill")
    again = lambda rank, event: event[0] == "fault" and order(tmp_path, 1, "kill")  # noqa: E731  a double click
    how = {"on_failure": "restart"}
    result, found = elastic("dp=2", how=how, peer_copies=PeerCopies(1), live=str(tmp_path), on_event=again)
    assert [it.ranks for it in found] == [(1,)] and result.fingerprint == expected


@pytest.mark.long
def test_a_trained_model_may_be_run_for_longer_than_the_patience(tmp_path, expected):
    """Only one rank runs it, and the others wait for nobody: it reports now and then."""
    events = []
    options = {"saving": sync(tmp_path), "validate": True, "sample": 100}
    result, found = elastic("dp=2", on_event=lambda *event: events.append(event), **options)
    assert events.count((0, ("evaluating",))) > 100 and not found and result.fingerprint == expected


@pytest.mark.long
def test_the_command_line(tmp_path, capsys, expected):
    path = tmp_path / "run.json"
    flags = ["--peer-copies", "1", "--save-every", "2", "--fault", "rank=2,step=5,kind=kill", "--json", str(path)]
    assert command_line(["train", "--dp", "3", *FLAGS.split(), "--elastic", *flags]) == 0
    shown = capsys.readouterr()
    assert expected in shown.out and "interruptions, and the seconds that each cost" in shown.out
    told = r"step 5: rank 2 of 3 was killed by SIGKILL .*; going on in (\S+) from the memory of peers, 1 step again"
    after = re.search(told, shown.err)[1]
    document = json.loads(path.read_text())
    [interruption] = document["interruptions"]
    assert document["layout"] == interruption["after"] == after and interruption["ranks"] == [2]
    assert len(document["utilization"]["ranks"]) == len(document["traffic"])  # those of the last attempt


def test_the_command_line_tells_of_wrong_numbers_and_of_the_last_attempts_checkpoints(tmp_path, capsys, expected):
    """Every rank raises the error, and any may be the first: the rank named is that with the wrong numbers."""
    flags = f"--save {tmp_path} --save-every 2 --save-mode sync --elastic "  # so that step 2 is there, however slow
    flags += "--check-replicas 2 --fault rank=1,step=3,kind=flip:weights"
    assert command_line(["train", "--dp", "3", *FLAGS.split(), *flags.split()]) == 0
    shown = capsys.readouterr()
    assert "step 4: rank 1 holds numbers after step 3 that differ from those of ranks that must" in shown.err
    assert "or before; going on in " in shown.err and expected in shown.out
    assert "checkpoints: 3 saved since step 2; " in shown.out
    assert "CorruptedNumbers" not in shown.out + shown.err


# In the memory of peers

LOST = re.compile(
    r"no rank holds the snapshots after 4 steps of rank 1 of dp=5,zero=1: [\d,]+ elements of .+ are lost; "
    r"no rank holds the snapshots after 2 steps of rank 1 of dp=5,zero=1: .+ are lost"
)


@pytest.mark.parametrize(
    ("second", "copies", "disk", "source"),
    [(2, 1, True, "step-000004"), long(2, 1, False, START), long(3, 1, True, MEMORY), long(2, 2, False, MEMORY)],
)
def test_two_ranks_die_together(tmp_path, expected, second, copies, disk, source):
    """State lost with a rank and its peer is named. Two that are no neighbours, or have two copies, lose nothing."""
    result, [it] = elastic(
        "dp=5,zero=1", saving=sync(tmp_path) if disk else None, peer_copies=PeerCopies(2, copies),
        rank_function=two_die(1, second, 5),
    )  # fmt: skip
    assert sorted(it.ranks) == [1, second] and result.layout.world_size == 3 and result.fingerprint == expected
    assert (Path(it.source).name, it.resumed) == (source, 0 if source == START else 4)
    assert it.lost == "" if source == MEMORY else LOST.fullmatch(it.lost)


def test_a_rank_that_dies_while_copies_are_under_way(expected):
    """The rank has taken its own snapshot already; the generation before is whole."""

    def rank_function(world, *arguments):
        def begin(step):
            if (world.size, world.rank, step) == (4, 0, 3):  # the copies are those of the end of this step
                patch.start()

        patch = mock.patch.object(peers, "sendrecv_object", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        return train_acting(world, *arguments, begin=begin)

    result, [it] = elastic("dp=4,zero=1", peer_copies=PeerCopies(2), rank_function=rank_function)
    assert (it.source, it.resumed) == (MEMORY, 2) and result.fingerprint == expected
    assert "after 4 steps of rank 0 of dp=4,zero=1" in it.lost


def test_the_memory_has_the_steps_of_one_run(ranks, expected):
    """Whoever goes back forgets what it passed over: a rank that dies next would go on from there."""
    steps_in = lambda world: [generation.progress.step for generation in generations_of(world)]  # noqa: E731
    for options, steps in (
        (RunOptions(peer_copies=PeerCopies(2)), [4, 6]),
        (RunOptions(peer_copies=PeerCopies(8), recover=4), [4, 4]),  # as it was found, and taken at once
        (RunOptions(), []),
    ):
        assert run(ranks(1), CONFIG, Layout(), options).fingerprint == expected
        assert ranks(1).run(steps_in) == [steps]


@pytest.mark.long
def test_a_writer_of_the_run_before_does_not_disturb_the_next(tmp_path, expected):
    """Step 4 is being written when a rank dies, slowly, by threads that live on in the survivors. The run goes on from
    step 3, comes to step 4 in another layout, and writes files of the same names."""

    def rank_function(world, *arguments):
        write = world.kept.setdefault("write", Disk.write)

        def slowly(self, path, content):
            if "step-000004" in str(path):
                time.sleep(2)
            write(self, path, content)

        Disk.write = slowly if world.size == 4 else write
        result = train_rank(world, *arguments)
        for thread in threading.enumerate():
            if thread.name.startswith("save"):
                thread.join()
        return result

    result, [it] = elastic(
        "dp=4,zero=1", "rank=1,step=4,kind=kill", saving=Saving(str(tmp_path), 2, keep=0), peer_copies=PeerCopies(3),
        rank_function=rank_function,
    )  # fmt: skip
    assert it.resumed == 3 and result.fingerprint == expected
    names = committed(Disk(), tmp_path)
    assert names[-3:] == ["step-000004", "step-000006", "step-000008"] and names == saves(Disk(), tmp_path)
    for name in names:
        check_files(tmp_path / name, Manifest.read(Disk(), tmp_path / name))
