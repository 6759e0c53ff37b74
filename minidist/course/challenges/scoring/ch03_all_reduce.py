"""Chapter 3: an all-reduce of 8 ranks, recorded from a real run and replayed on several networks."""

import numpy as np

from minidist.analysis.replay import flights
from minidist.course.authoring.assertions import observe_collectives
from minidist.course.challenges.challenge import Challenge, geometric_mean, new_seed, random_words
from minidist.course.sandbox.forbidden import no_side_channels
from minidist.course.sandbox.student import Student

RANKS = 8
NETWORKS = ((50e-6, 1 / 1.25e9), (5e-6, 1 / 50e9), (1e-6, 1 / 450e9))  # (alpha, beta): Ethernet, InfiniBand, NVLink
ELEMENTS = (16, 5_000, 131_072)  # of 8 bytes
OTHERS = ((1, 5), (3, 1), (6, 1_001), (8, 0), (8, 3), (8, 1_001))  # (ranks, elements), checked but not scored


def score(student: Student) -> float:
    """Microseconds of an all-reduce, the geometric mean over networks and sizes."""
    for ranks, elements in OTHERS:
        _seconds(student, ranks, elements, *NETWORKS[1])
    return 1e6 * geometric_mean(
        _seconds(student, RANKS, elements, *network) for network in NETWORKS for elements in ELEMENTS
    )


def _seconds(student: Student, ranks: int, elements: int, alpha: float, beta: float) -> float:
    """Return the seconds of one all-reduce on a network. Assert that every rank ends with the sum."""
    seeds = [new_seed() for _ in range(ranks)]
    expected = sum(random_words(seed, elements) for seed in seeds)
    seen = student.on_ranks(ranks, run_all_reduce, seeds, elements, alpha, beta)
    for rank, result in enumerate(seen):
        right = isinstance(result.value, np.ndarray) and np.array_equal(result.value, expected)
        assert right, f"rank {rank} of {ranks}, {elements} elements: the result is not the sum of all ranks' arrays"
    messages = flights([result.log for result in seen], lambda nbytes: alpha + beta * nbytes)
    sent, least = sum(message.nbytes for message in messages), 2 * (ranks - 1) * 8 * elements
    assert sent >= least, (
        f"{ranks} ranks, {elements} elements: the messages total {sent} bytes, but no correct all-reduce sends "
        f"less than {least} (Patarasuk and Yuan, 2009)"
    )
    return max((message.end for message in messages), default=0.0)


def run_all_reduce(world, answers, seeds: list[int], elements: int, alpha: float, beta: float) -> np.ndarray:
    """Run the answer on a rank: return the array after the all-reduce."""
    flat = random_words(seeds[world.rank], elements)
    seeds.clear()  # no rank knows what the others hold
    observe_collectives(world, refuse_background)
    with no_side_channels():
        answers.fast_all_reduce(flat, alpha, beta, world)
    return flat


def refuse_background(name: str, nbytes: int, async_op: bool) -> None:
    """Refuse collectives in the background: they have no place in program order, so replays would differ."""
    assert not async_op, f"{name} runs in the background: leave async_op out; isend and irecv may overlap"


CHALLENGE = Challenge(
    chapter=3,
    name="all_reduce",
    what="all-reduce",
    title="The fastest all-reduce of 8 ranks, on any network",
    rule="Your all-reduce runs on 8 real ranks, and its messages are replayed on networks of a given alpha and beta, "
    "which it is told. It is scored with arrays of several sizes, small and large, and must be right for any number of "
    "ranks.",
    unit="us",
    library=57.8,
    known=35.4,
    idea="Recursive halving and doubling, ended by one exchange as soon as that is cheaper: Thakur, Rabenseifner and "
    'Gropp, "Optimization of Collective Communication Operations in MPICH" (2005)',
    score=score,
)
