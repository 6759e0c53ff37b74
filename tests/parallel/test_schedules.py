"""Schedules as data: what is proved of each, and when its actions happen. (What the checker refuses: refusals.txt.)"""

import itertools

import pytest

from minidist.parallel.tools.schedule_check import bubble, check_schedule, in_flight, timeline
from minidist.parallel.tools.schedules import SCHEDULES, Action, schedule, written

RANKS, MICRO_BATCHES = range(1, 9), range(1, 17)


def all_schedules():
    """(name, ranks, micro-batches, virtual) of every schedule that there is, of these sizes."""
    for ranks, count in itertools.product(RANKS, MICRO_BATCHES):
        yield from ((name, ranks, count, 1) for name in SCHEDULES if name != "interleaved")
        if count % ranks == 0:
            yield from (("interleaved", ranks, count, virtual) for virtual in (1, 2, 3))


def test_every_schedule_is_proved():
    tried = list(all_schedules())
    assert len(tried) > 600
    for name, ranks, count, virtual in tried:
        actions = schedule(name, ranks, count, virtual)
        check_schedule(actions, count)
        backward = 2 if name == "zb-h1" else 1
        assert [len(rank) for rank in actions] == [count * virtual * (1 + backward)] * ranks


def test_bubbles_are_those_of_the_formulas():
    """(p-1)/(m+p-1) with a forward of 1 and a backward of 2; the other values beside it."""
    for name, p, m, v in all_schedules():
        expected = {
            "naive": (p - 1) / p,
            "gpipe": (p - 1) / (m + p - 1),
            "1f1b": (p - 1) / (m + p - 1),
            "interleaved": (p - 1) / (v * m + p - 1),  # a stage takes 1/v of the time
            "zb-h1": (p - 1) / (3 * m + p - 1),  # idle for F + I - W, and not for F + I + W, p - 1 times
        }[name]
        if name == "zb-h1" and m < p:
            continue  # too few micro-batches to fill the gaps with
        assert bubble(timeline(schedule(name, p, m, v))) == pytest.approx(expected, abs=1e-12), (name, p, m, v)


def test_micro_batches_in_flight():
    for name, p, m, v in all_schedules():
        found = [in_flight(rank) for rank in schedule(name, p, m, v)]
        if name == "naive":
            assert found == [1] * p
        elif name == "gpipe":
            assert found == [m] * p
        elif name == "1f1b" or (name == "interleaved" and v == 1):
            assert all(count <= 2 * (p - rank) for rank, count in enumerate(found))
            if name == "1f1b":
                assert found == [min(m, p - rank) for rank in range(p)]
        elif name == "zb-h1":
            assert max(found) <= min(p, m)  # no more than 1F1B's first rank
        else:  # in stages, each 1/v of a rank's layers
            assert all(count <= min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) for rank, count in enumerate(found))


def test_as_the_papers_write_them():
    assert written(schedule("gpipe", 2, 3)[1]) == "1F0 1F1 1F2 1B0 1B1 1B2"
    assert [written(rank) for rank in schedule("1f1b", 3, 4)] == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]
    # Megatron-LM's figure: 2 ranks, 2 stages each; a round through the first stage, then the second
    assert written(schedule("interleaved", 2, 4, 2)[0]).startswith("0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1")
    assert written(schedule("zb-h1", 3, 4)[2]) == "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3"
    for text in ("0F0", "12B3", "2I10", "7W0"):
        assert str(Action.parse(text)) == text
