"""The clock of a rank's computing, fed with made-up times and waits for a core."""

from minidist.comm.transports.compute_clock import ComputeClock


def test_waits_for_ranks_and_for_cores_are_told_apart(monkeypatch):
    now = [10.0, 5.0]  # seconds; and of them, since the thread began, without a core
    monkeypatch.setattr(ComputeClock, "_look", lambda self: tuple(now))

    def passes(seconds: float, delay: float = 0.0) -> None:
        now[0] += seconds
        now[1] += delay

    clock = ComputeClock()
    passes(4.0, delay=1.0)
    assert clock.seconds() == 3.0 and clock.seconds_without_core() == 1.0
    with clock.paused():
        passes(7.0, delay=2.0)
        with clock.paused():
            passes(1.0)
    assert clock.seconds() == 3.0 and clock.seconds_without_core() == 1.0
    passes(2.0, delay=0.5)
    assert clock.seconds() == 4.5 and clock.seconds_without_core() == 1.5


def test_a_short_wait_counts_as_a_pause_does(monkeypatch):
    now = [10.0, 5.0]
    monkeypatch.setattr(ComputeClock, "_look", lambda self: tuple(now))
    clock = ComputeClock()
    clock._schedule = object()  # as on Linux
    now[:] = [14.0, 6.5]  # 4 s, of which 1.5 without a core
    clock.count_wait(3.0, delay=1.0)
    assert clock.seconds() == 0.5 and clock.seconds_without_core() == 0.5
    clock._schedule = None  # elsewhere the clock sees no delay, so all of a wait was waiting
    clock.count_wait(0.25, delay=0.125)
    assert clock.seconds() == 0.25 and clock.seconds_without_core() == 0.5
