"""One run of a cluster must not affect the next, and only the parent handles Ctrl-C."""

import os
import signal
import sys
import threading
from contextlib import suppress

import multiprocess
import numpy as np
import pytest

import minidist as md

LIMIT = 120  # seconds, of each wait
unix = pytest.mark.skipif(sys.platform == "win32", reason="signals as on Unix")


@unix
def test_a_rank_that_has_not_begun_does_not_count_as_finished():
    """Rank 1 is stopped between two runs. Rank 0 waits for it meanwhile, which is no deadlock: rank 1 will go on."""

    def receive(world):
        if world.rank == 1:
            md.send(np.ones(1), 0, world)
            return None
        x = np.zeros(1)
        md.recv(x, 1, world)
        return x[0]

    with md.Cluster(2) as cluster:
        pids = cluster.run(lambda world: os.getpid(), timeout=LIMIT)
        os.kill(pids[1], signal.SIGSTOP)

        def go_on() -> None:
            with suppress(ProcessLookupError):  # a failed run has ended it
                os.kill(pids[1], signal.SIGCONT)

        timer = threading.Timer(1.0, go_on)  # many times as long as a deadlock takes to be found
        timer.start()
        try:
            assert cluster.run(receive, timeout=LIMIT) == [1.0, None]
        finally:
            timer.cancel()
            go_on()


@unix
def test_a_rank_ignores_the_interrupt_that_a_terminal_sends_to_all():
    """Idle or at work: the parent hears of it too, and decides."""

    def interrupted(world):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # Python calls a handler between two bytecodes
            pass
        return os.getpid()

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
    try:
        for method in multiprocess.get_all_start_methods():
            with md.Cluster(2, start_method=method) as cluster:
                pids = cluster.run(interrupted, timeout=LIMIT)
                for pid in pids:
                    os.kill(pid, signal.SIGINT)
                assert cluster.run(interrupted, timeout=LIMIT) == pids
    finally:
        signal.signal(signal.SIGINT, handler)
