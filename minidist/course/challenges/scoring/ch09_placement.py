"""Chapter 9: which rank runs on which node, so that the least is sent between nodes."""

from math import prod

import numpy as np

from minidist.analysis.traffic import inside_and_between
from minidist.course.challenges.challenge import Challenge, geometric_mean, whole_numbers
from minidist.course.sandbox.student import Student

# (the mesh, the megabytes that a rank sends along each axis, ranks in a node)
CASES = (
    ((4, 2, 4), (9, 40, 12), 8),
    ((3, 4, 4), (30, 8, 14), 6),
    ((2, 6, 3), (10, 25, 20), 4),
    ((5, 3, 4), (16, 11, 13), 8),
    ((4, 4, 4), (10, 11, 12), 8),
)
SEED = 9  # of the order in which a scheduler numbers the ranks of a shuffled job


def score(student: Student) -> float:
    """Megabytes that cross nodes in a step, the geometric mean over jobs."""
    return geometric_mean(
        _between(student, shuffled(sent) if shuffle else sent, per_node)
        for shuffle in (False, True)
        for sent, per_node in ((traffic(shape, along), per_node) for shape, along, per_node in CASES)
    )


def _between(student: Student, sent: np.ndarray, per_node: int) -> float:
    found = student.call("place_ranks", sent.copy(), per_node)
    order = whole_numbers(found.tolist() if isinstance(found, np.ndarray) else found, len(sent), "the order of ranks")
    assert sorted(order) == list(range(len(sent))), f"{len(sent)} ranks: each must have one place"
    return inside_and_between(sent[np.ix_(order, order)], per_node)[1]


def traffic(shape: tuple[int, ...], along: tuple[int, ...]) -> np.ndarray:
    """Return the megabytes that each rank of a mesh sends to each other.  (N, N)

    The first axis is a pipeline, the others are rings.
    """
    ranks = np.arange(prod(shape)).reshape(shape)
    sent = np.zeros((ranks.size, ranks.size), np.int64)
    for axis, megabytes in enumerate(along):
        groups = np.moveaxis(ranks, axis, -1).reshape(-1, shape[axis])
        for group in groups:
            for here, there in zip(group, np.roll(group, -1), strict=True):
                sent[here, there] += megabytes
            if axis == 0:  # no ring: forward to the next stage, and the gradient back
                sent[group[-1], group[0]] = 0
                sent[group[1:], group[:-1]] += megabytes
    return sent


def shuffled(sent: np.ndarray) -> np.ndarray:
    """Return the job with its ranks numbered at random."""
    order = np.random.default_rng(SEED).permutation(len(sent))
    return sent[np.ix_(order, order)]


CHALLENGE = Challenge(
    chapter=9,
    name="placement",
    what="placement",
    title="A placement of ranks that sends the least between nodes",
    rule="You get a job's traffic, from each rank to each other, and place its ranks on nodes of a given size. The "
    "score is the megabytes that cross nodes, for several jobs; in some of them ranks are numbered without any order.",
    unit="MB",
    library=1617,
    known=874.9,
    idea="Swap ranks as long as it helps, from many starts: Kernighan and Lin, "
    '"An Efficient Heuristic Procedure for Partitioning Graphs" (1970); for MPI: Hoefler and Snir, "Generic Topology '
    'Mapping Strategies for Large-Scale Parallel Architectures" (2011)',
    score=score,
)
