"""Ranks that fail: the error says what each of them did, ends all, leaves nothing, and the next run works.

On shared memory; test_mpi_failures.py has some of the same failures on MPI, where each ends a job.
"""

import ctypes
import inspect
import os
import re
import signal
import sys
import time

import numpy as np
import pytest
from failing import FAILURES, SIZE

import minidist as md
from minidist.comm.runtime import deadlock
from minidist.comm.runtime.worker import RankProcess

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as on Unix")
LIMIT = 300  # seconds, of each run


def test_the_error_says_what_each_rank_did(ranks):
    for name, failure in FAILURES.items():
        patience = 0.5 if failure.kind == "Hang" else None
        with pytest.raises((md.RankFailed, md.Deadlock, md.Hang)) as caught:
            ranks(SIZE).run(failure.run, patience=patience, timeout=LIMIT)
        text = str(caught.value)
        assert type(caught.value).__name__ == failure.kind, f"{name}: {text}"
        assert "worker.py" not in text and text.count("Traceback") < 2, f"{name}: {text}"
        for pattern in failure.says:
            assert re.search(pattern, text, re.DOTALL), f"{name}: {pattern} is not in:\n{text}"
        for attribute, value in failure.about.items():
            assert getattr(caught.value, attribute) == value, name
        if failure.kind == "Deadlock":
            assert {*map(str, caught.value.waiting)} == {*re.findall(r"rank (\d) is in", text)}, name
    assert ranks(SIZE).run(lambda world: world.rank) == [0, 1, 2]


@pytest.mark.long
def test_waiting_is_no_deadlock_and_a_time_limit_is_told_as_one(ranks, monkeypatch):
    def computes(world, seconds: float, compiled: bool = False):
        end, x = time.monotonic() + seconds * (world.rank == 2), np.ones(300_000)
        while time.monotonic() < end:
            ctypes.PyDLL(None).sleep(600 * compiled)  # compiled code lets no other thread of the rank answer
        md.all_reduce(x, group=world)
        return x[0]

    assert ranks(SIZE).run(computes, 1.0) == [3.0] * 3
    clocks, where = set(), RankProcess.where

    def noted(rank, over):
        clocks.add(inspect.getclosurevars(over).nonlocals["clock"])
        return where(rank, over)

    monkeypatch.setattr(RankProcess, "where", noted)
    for compiled, place in ((False, r"rank 2 is at .*in computes"), (True, "rank 2 is at compiled code")):
        clocks.clear()
        with pytest.raises(TimeoutError, match=r"did not end within 0\.7 s:") as caught:
            ranks(SIZE).run(computes, 600, compiled, timeout=0.7)
        assert len(clocks) == 1  # waits for ranks that cannot answer do not add up
        assert re.search(place, str(caught.value)) and "rank 0 is in all_reduce(SUM" in str(caught.value)
    monkeypatch.setattr(deadlock, "SETTLE_SECONDS", float("inf"))
    with pytest.raises(md.Deadlock):  # although the limit comes before it has settled
        ranks(SIZE).run(FAILURES["both_receive_while_another_computes"].run, timeout=2)


def test_a_killed_rank_is_noticed_although_its_child_lives_on(ranks):
    def main(world):
        if world.rank == 1:
            if (child := os.fork()) == 0:
                time.sleep(600)
            world.report(child)
            os.kill(os.getpid(), signal.SIGKILL)
        md.barrier(world)

    children = []
    with pytest.raises(md.RankFailed) as caught:
        ranks(SIZE).run(main, on_report=lambda _, child: children.append(child), timeout=LIMIT)
    os.kill(*children, signal.SIGKILL)
    assert caught.value.exitcode == -signal.SIGKILL


def test_prints_and_results_come_whole(ranks, capsys, monkeypatch):
    """This holds also if a print prints, if a rank closes its standard output, and if they are large."""

    def main(world, x):
        import gc

        class Noisy:
            def __init__(self):
                self.me = self  # only the garbage collector can end it

            def __del__(self):
                print("gone")

        gc.set_threshold(5, 2, 2)
        for _ in range(300):
            Noisy()
            print("here")
        gc.set_threshold(700, 10, 10)
        gc.collect()
        print("no newline", end="")
        world.report(("step", world.rank))
        with open(os.devnull, "w", encoding="utf-8") as sys.stdout:
            print("hello")
        return x + world.rank

    seen, x = [], np.arange(3_000_000)
    results = ranks(2).run(main, x, on_report=lambda rank, thing: seen.append((rank, thing)))
    assert all((result == x + rank).all() for rank, result in enumerate(results))
    assert sorted(seen) == [(0, ("step", 0)), (1, ("step", 1))]
    out = capsys.readouterr().out
    assert out.count("no newline") == 2
    assert sorted(out.replace("no newline", "").split()) == ["gone"] * 600 + ["here"] * 600
    monkeypatch.setattr(sys, "stdout", None)  # in a program without a console
    assert ranks(2).run(lambda world: print(world.rank)) == [None, None]
