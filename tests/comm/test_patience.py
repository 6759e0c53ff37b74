"""The clock of a run's time limit, fed with made-up looks at the ranks."""

import pytest

from minidist.comm.runtime import patience
from minidist.comm.runtime.patience import PatientClock


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([(0, 0.0)] * 4, 3.0),  # all sleep: as any clock
        ([(1, 0.0), (1, 1.0), (1, 2.0), (1, 3.0)], 3.0),  # one computes and has a core
        ([(1, 0.0), (1, 0.25), (1, 0.5), (1, 0.75)], 0.75),  # one computes, on a quarter of a core
        ([(4, 0.0), (4, 2.0), (4, 4.0), (4, 6.0)], 3.0),  # four share two cores, and have them to themselves
        ([(4, 0.0), (4, 1.0), (4, 2.0), (4, 3.0)], 1.5),  # and have half of them
        ([(1, 0.0)] * 4, 3 / patience.PATIENCE),  # nothing moves: it ends all the same, some day
        ([(1, 0.0), (1, 9.0), (1, 9.0), (1, 9.0)], 1 + 2 / patience.PATIENCE),  # never faster than time
        ([(1, 0.0), (1, 0.5), (0, 0.5), (0, 0.5)], 2.5),
    ],
)
def test_seconds(monkeypatch, looks, seconds):
    replies, now = iter(looks), iter(range(len(looks)))
    monkeypatch.setattr(PatientClock, "_look", lambda self: next(replies))
    monkeypatch.setattr(patience.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(patience, "cores", lambda: 2)
    clock = PatientClock([])
    assert [clock.seconds() for _ in looks[1:]][-1] == pytest.approx(seconds)
