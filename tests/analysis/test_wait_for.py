"""The wait-for graph is what a real deadlock reports."""

import numpy as np
import pytest

import minidist as md
from minidist.analysis.wait_for import FINISHED, PATIENT, RUNNING, STUCK, edges, state_of


def test_edges_of_a_real_deadlock(ranks):
    with pytest.raises(md.Deadlock) as caught:
        ranks(3).run(lambda world: md.recv(np.zeros(1), (world.rank + 1) % 3, world), timeout=60)
    assert edges(caught.value.waiting) == {0: 1, 1: 2, 2: 0}


def test_edges_of_sends():
    assert edges({4: "send: waits for rank 12 to take 8,000 bytes, at a.py:7 in main"}) == {4: 12}


def test_states_follow_the_edges():
    waiting = {0: 1, 1: 0, 2: 0, 3: 4, 5: 6, 7: 3}
    states = [state_of(rank, waiting, {6}) for rank in range(8)]
    assert states == [STUCK, STUCK, STUCK, PATIENT, RUNNING, STUCK, FINISHED, PATIENT]
