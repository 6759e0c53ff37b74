"""A recorded step as GPUs would run it: on the cluster's clock, for every position of the viewer's dials.

On a laptop the ranks' cores compute and carry messages too, so that hiding a message under compute gains little. A GPU
has a network that needs no core. The demonstrations train tiny models, and an H100 would be done with them in
microseconds, nearly all of them latency. So the chips and links here are scaled down as much as the models are: what
counts is how long a message takes beside a product.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

from minidist.analysis.replay import Pace, Replayed, replay
from minidist.comm.placement import Link
from minidist.plan.cluster.hardware import Accelerator
from minidist.plan.cluster.topologies import single_switch
from minidist.show.player.scene import Dial, Scene
from minidist.trace import Begin

LINKS = {"0.1 GB/s": 1e8, "0.3 GB/s": 3e8, "1 GB/s": 1e9, "10 GB/s": 1e10}  # of each rank, in each direction
LATENCIES = {"1 µs": 1e-6, "10 µs": 1e-5, "100 µs": 1e-4}
CHIPS = {"0.1 TFLOP/s": 1e11, "1 TFLOP/s": 1e12}
RIDGE = 20  # FLOPs per byte: an H100's, in float32

DIALS = (Dial("link", tuple(LINKS), 2), Dial("latency", tuple(LATENCIES), 1), Dial("chip", tuple(CHIPS), 0))


def on_gpus(logs: Sequence[list], link: str, latency: str, chip: str) -> Replayed:
    """A recorded run on a cluster whose ranks share a switch; the words are those of the dials.

    Args:
        logs: trace of each rank (``RankResult.log``).
    """
    return on_links(logs, Link(LINKS[link], LATENCIES[latency]), chip)


def on_links(logs: Sequence[list], link: Link, chip: str) -> Replayed:
    """Replay logs with any link of each rank to the switch."""
    accelerator = Accelerator("a chip", 1e12, CHIPS[chip] / RIDGE, {"fp32": CHIPS[chip]}, "scaled down")
    return replay(logs, single_switch(len(logs), link), Pace(accelerator).seconds)


class OnDemand(Sequence):
    """The scenes of all positions of some dials, each made when it is looked at: a terminal shows few of them.

    Args:
        make: (a word for each dial) -> the scene.
    """

    def __init__(self, dials: Sequence[Dial], make: Callable[..., Scene]) -> None:
        self.positions, self.make = list(product(*(dial.values for dial in dials))), cache(make)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, number):
        if isinstance(number, slice):
            return tuple(self.make(*words) for words in self.positions[number])
        return self.make(*self.positions[number])


def variants_of(logs: Sequence[list], scene_of: Callable[[Replayed], Scene]) -> Sequence[Scene]:
    """The last step's scene for every position of DIALS: what ``Scene(dials=DIALS, variants=...)`` takes."""
    steps = [last_step_of(log) for log in logs]  # the steps before it would make every replay longer
    return OnDemand(DIALS, lambda *words: scene_of(on_gpus(steps, *words)))


def last_step_of(log: list) -> list:
    """What a rank traced from the beginning of its last step on."""
    return log[max(i for i, entry in enumerate(log) if isinstance(entry, Begin) and entry.track == "step") :]


def at_start(variants: Sequence[Scene], dials: Sequence[Dial] = DIALS) -> Scene:
    """The variant that the dials begin with, with the dials on it."""
    number = 0
    for dial in dials:
        number = number * len(dial.values) + dial.start
    return replace(variants[number], dials=tuple(dials), variants=variants)
