"""A recorded step as GPUs would run it: on the cluster's clock, for every position of the viewer's dial.

On a laptop the ranks' cores compute and carry messages too, so that hiding a message under compute gains little. A GPU
has a network that needs no core. The demonstrations train tiny models, and an H100 would be done with them in
microseconds, nearly all of them latency. So the chip and the links here are scaled down as much as the models are: what
counts is how long a message takes compared with a product.
"""

from collections.abc import Sequence

from minidist.analysis.replay import Pace, Replayed, replay
from minidist.analysis.steps import kind_of
from minidist.comm.placement import Link
from minidist.plan.cluster.hardware import Accelerator
from minidist.plan.cluster.topologies import single_switch
from minidist.show.stage.story import Dial
from minidist.trace import Begin, Event
from minidist.train.result import Run

GIGABYTES = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10)  # GB/s of each rank's link in each direction
LATENCY, CHIP, RIDGE = 1e-5, 1e11, 20  # seconds; FLOP/s; FLOPs per byte: an H100's, in float32
LINK = Dial("link", tuple(f"{speed:g} GB/s" for speed in GIGABYTES), 6)
DROPPED = "dropped"  # the first word in the name of a collective that an injected bug skips


def on_gpus(logs: Sequence[list], gigabytes: float) -> Replayed:
    """Replay a recorded run on GPUs behind one switch; ``logs`` are the logs of its ranks (``RankResult.log``)."""
    accelerator = Accelerator("a chip", 1e12, CHIP / RIDGE, {"fp32": CHIP}, "scaled down")
    switch = single_switch(len(logs), Link(gigabytes * 1e9, LATENCY))
    return replay(logs, switch, Pace(accelerator).seconds)


def replays(run: Run) -> list[Sequence[list]]:
    """Return the ranks' logs of a run's last step: on GPUs for every position of the dial, then as measured here."""
    logs = [last_step_of(rank.log) for rank in run.ranks]
    return [*(on_gpus(logs, speed).logs for speed in GIGABYTES), logs]


def last_step_of(log: list) -> list:
    """Return a rank's log from its last step on: the steps before would make every replay longer."""
    return log[max(i for i, entry in enumerate(log) if isinstance(entry, Begin) and entry.track == "step") :]


def communications(log: Sequence[Event]) -> list[Event]:
    """Return one rank's collectives in order, including skipped ones."""
    return sorted((event for event in log if kind_of(event) == "communication"), key=lambda event: event.start)


def is_dropped(event: Event) -> bool:
    return event.name.startswith(DROPPED)
