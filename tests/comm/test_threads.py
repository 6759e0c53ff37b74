"""Ranks that are threads: the same results and errors without a process; what a rank has for itself stays its own."""

import os
import re
import sys
import threading
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from clusters import PatientCluster
from scripts import python

import minidist as md
from minidist import trace, turns
from minidist.cli import main as cli
from minidist.comm.runtime import threads
from minidist.comm.runtime.clusters import new_cluster
from minidist.nn.tensor import Tensor, grad_mode

SIZE = 3


@pytest.fixture(scope="module")
def cluster():
    with PatientCluster(SIZE, start_method="thread") as ready:
        yield ready


def everywhere(world):
    """Collectives, some in the background, of more than a queue holds."""
    small, large = np.full(5, world.rank, np.float32), np.full(3_000_000, world.rank, np.float32)
    works = [md.all_reduce(large, group=world, async_op=True), md.all_reduce(small, group=world, async_op=True)]
    for work in works:
        work.wait()
    return os.getpid(), threading.current_thread().name, float(small[0]), float(large[-1])


def test_they_run_in_this_process_and_leave_nothing(cluster):
    assert cluster.run(everywhere) == [(os.getpid(), f"rank {rank}", 3.0, 3.0) for rank in range(SIZE)]
    before = {*threading.enumerate()}
    with PatientCluster(2, start_method="thread") as one, PatientCluster(2, start_method="thread") as other:
        assert one.run(lambda world: world.rank) == other.run(lambda world: world.rank) == [0, 1]
    assert {*threading.enumerate()} == before
    assert cluster.run(lambda world: world.rank) == [0, 1, 2]  # the ranks are warm


def test_a_command_needs_no_process_and_no_shared_memory(tmp_path, capsys):
    """Whatever would start a process, or make memory that has a name, fails in this script."""
    script = """
import _posixshmem, _posixsubprocess, os, sys
from minidist.cli import main as cli
def refuse(*_, **__):
    raise PermissionError("refused")
os.fork = _posixshmem.shm_open = _posixsubprocess.fork_exec = refuse
sys.exit(cli.main(sys.argv[1:]))
"""
    command = (
        "train --dp 3 --zero 3 --layers 1 --heads 2 --width 8 --context 8 --global-batch 6 --micro-batch 1 --steps 2"
    )
    for method, works in (("spawn", False), ("thread", True)):
        environment = os.environ | {"MINIDIST_START_METHOD": method}
        done = python("-c", script, *command.split(), cwd=tmp_path, env=environment)
        assert (done.returncode == 0) == works, done.stderr
    assert cli.main(command.split()) == 0
    here, there = (re.search(r"fingerprint: (\w{64})", text)[1] for text in (capsys.readouterr().out, done.stdout))
    assert here == there


def test_what_each_prints_and_reports(cluster, capsys, monkeypatch):
    def tell(world):
        print("I am", world.rank)
        world.report(world.rank)

    told = []
    cluster.run(tell, on_report=lambda rank, thing: (told.append(thing), print("told", rank)))
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == ["I am 0", "I am 1", "I am 2", "told 0", "told 1", "told 2"] and sorted(told) == [0, 1, 2]
    monkeypatch.setattr(sys, "stdout", None)  # in a program without a console
    cluster.run(tell, on_report=lambda *_: print("told"))


def test_what_a_rank_sets_is_its_own(cluster):
    """A mode that stands on one rank, and a log, while the others take their turns."""

    def main(world):
        x = Tensor(np.ones(2), requires_grad=True)
        if world.rank == 1:
            trace.start()
        with grad_mode(world.rank != 2):
            md.barrier(world)
            y = x * 2
            md.barrier(world)
        return y.requires_grad, trace.log is not None

    for _ in range(2):
        assert cluster.run(main) == [(True, False), (True, True), (False, False)]
        assert trace.log is None and (Tensor(np.ones(1), requires_grad=True) * 2).requires_grad


def test_a_patch_is_the_ranks_own(cluster):
    """Entered and left in any order, in a module, a class or nowhere before."""

    def main(world):
        own = (trace.span, Tensor.backward)
        with (
            patch("minidist.trace.span", world.rank), patch.object(Tensor, "backward", world.rank),
            patch.object(Tensor, "nobody_has_it", world.rank, create=True),
        ):  # fmt: skip
            values = []
            for turn in range(SIZE):
                if world.rank == turn:
                    md.send(np.zeros(1), (turn + 1) % SIZE, world)
                if world.rank == (turn + 1) % SIZE:
                    md.recv(np.zeros(1), turn, world)
                values += [trace.span, Tensor.backward, Tensor.nobody_has_it]
        return {*values} == {world.rank} and own == (trace.span, Tensor.backward)

    before = trace.span, Tensor.backward
    for _ in range(2):
        assert cluster.run(main) == [True] * SIZE
        assert before == (trace.span, Tensor.backward) and not hasattr(Tensor, "nobody_has_it")


def test_errors_are_those_of_processes(cluster):
    def fail(world):
        if world.rank == 1:
            raise ValueError("this rank fails")
        md.barrier(world)

    def wait_in_a_ring(world):
        md.recv(np.empty(1), (world.rank + 1) % SIZE, world)

    def compute_for_ever(world):
        while world.rank == 2:
            pass

    with pytest.raises(md.RankFailed, match="rank 1 of 3 failed: ValueError: this rank fails"):
        cluster.run(fail)
    with pytest.raises(md.Deadlock, match="rank 2 is in recv: waits for a message from rank 0"):
        cluster.run(wait_in_a_ring)
    with pytest.raises(TimeoutError, match=r"rank 2 is at .* in compute_for_ever"):
        cluster.run(compute_for_ever, timeout=1)
    assert cluster.run(lambda world: world.rank) == [0, 1, 2]
    assert sum(thread.name.startswith("rank") for thread in threading.enumerate()) == SIZE


def test_the_process_has_its_own_values_back_before_another_run_begins(cluster, monkeypatch):
    """Whatever putting them back raises, another may begin then."""

    def end(seconds):
        with pytest.raises(RuntimeError, match="one function at a time"):
            cluster_of_one.run(len)
        turns.end(seconds)
        raise ValueError("after the end")

    with PatientCluster(1, start_method="thread") as cluster_of_one:
        monkeypatch.setattr(threads, "turns", SimpleNamespace(end=end))
        with pytest.raises(ValueError, match="after the end"):
            cluster.run(lambda world: world.rank)
        monkeypatch.undo()
        assert cluster_of_one.run(lambda world: world.rank) == [0]


def test_what_threads_cannot_do_is_refused(cluster):
    told = []

    def refusal(make):
        with pytest.raises((RuntimeError, ValueError)) as error:
            make()
        told.append(str(error.value))

    with PatientCluster(1, start_method="thread") as other:
        cluster.run(lambda world: world.report(0), on_report=lambda *_: told or refusal(lambda: other.run(len)))
    refusal(lambda: md.Cluster(2, start_method="thread", keep_survivors=True))
    assert "one function at a time" in told[0] and "keep_survivors needs processes" in told[1]
    with pytest.raises(md.RankFailed, match="this process is a rank and cannot start ranks"):
        cluster.run(lambda world: md.launch(len, np.int64(1), start_method="thread"))


def test_an_environment_variable_chooses_them(monkeypatch):
    monkeypatch.setenv("MINIDIST_START_METHOD", "thread")
    with new_cluster(2) as chosen:
        assert chosen.run(lambda world: os.getpid()) == [os.getpid()] * 2
    monkeypatch.setenv("MINIDIST_START_METHOD", "threads")
    with pytest.raises(ValueError, match=r"start_method 'threads' is not available here; choose from .*thread"):
        new_cluster(2)
