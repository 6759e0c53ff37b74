"""Chapter 4: which gradients to send together, so that the least communication is left after backward."""

from collections.abc import Sequence

from minidist.analysis.steps import departures
from minidist.course.challenges.challenge import Challenge, geometric_mean, whole_numbers
from minidist.course.sandbox.student import Student

# (layers, width, ranks, alpha, beta, floating-point operations per second, tokens on each rank)
CASES = (
    (12, 768, 8, 20e-6, 1 / 10e9, 100e12, 8_192),
    (12, 768, 64, 20e-6, 1 / 25e9, 200e12, 8_192),
    (24, 1_024, 16, 5e-6, 1 / 50e9, 200e12, 16_384),
    (48, 512, 128, 10e-6, 1 / 25e9, 50e12, 4_096),
    (6, 2_048, 4, 50e-6, 1 / 1.25e9, 20e12, 8_192),
)
VOCABULARY = 50_304


def score(student: Student) -> float:
    """Milliseconds of communication after the end of backward, the geometric mean over models and networks."""
    return 1e3 * geometric_mean(_exposed(student, *case) for case in CASES)


def _exposed(
    student: Student, layers: int, width: int, ranks: int, alpha: float, beta: float, flops: float, tokens: int
) -> float:
    """Seconds from the end of backward to the end of the last all-reduce."""
    nbytes, completed = model(layers, width, flops, tokens)
    found = student.call("choose_buckets", list(nbytes), list(completed), ranks, alpha, beta)
    assert isinstance(found, list | tuple), f"expected a list of buckets, got {found!r:.60}"
    buckets = [whole_numbers(bucket, None, "a bucket") for bucket in found]
    assert all(buckets), "a bucket is empty"
    sent = sorted(number for bucket in buckets for number in bucket)
    assert sent == list(range(len(nbytes))), f"{len(nbytes)} gradients: each must be in one bucket, exactly once"
    end = 0.0
    for departure in departures(completed, buckets):
        size = sum(nbytes[number] for number in departure.parameters)
        end = max(end, departure.sent) + all_reduce_seconds(size, ranks, alpha, beta)
    return end - max(completed)


def all_reduce_seconds(nbytes: float, ranks: int, alpha: float, beta: float) -> float:
    """Seconds of a ring all-reduce of ``nbytes``."""
    return 2 * (ranks - 1) * (alpha + beta * nbytes / ranks)


def model(layers: int, width: int, flops: float, tokens: int) -> tuple[Sequence[int], Sequence[float]]:
    """Return a GPT's gradients in the order of its parameters: their bytes, and the second at which each is complete.

    Backward starts at 0 and goes from the last parameter to the first. The embedding, which is also the output layer,
    is the first parameter, and complete only at the end.
    """
    sizes = [VOCABULARY * width, 1_024 * width]
    for _ in range(layers):
        sizes += [width, width, 3 * width**2, width**2, width, width, 4 * width**2, 4 * width**2]
    sizes += [width, width]
    clock = 4 * tokens * VOCABULARY * width / flops  # the output layer comes first
    completed = []
    for size in reversed(sizes):
        clock += 4 * tokens * (size if size < VOCABULARY * width else 0) / flops
        completed.append(clock)
    return [2 * size for size in sizes], completed[::-1]


CHALLENGE = Challenge(
    chapter=4,
    name="buckets",
    what="choice of buckets",
    title="Buckets that hide the most communication behind backward",
    rule="Backward completes each gradient at a given time. A bucket is sent when it is full and the one before it has "
    "arrived; a ring all-reduce takes 2 (N-1) (alpha + beta M / N). The score is the communication that is left "
    "after backward, for several models and networks.",
    unit="ms",
    library=31.51,
    known=22.46,
    idea='Merge two gradients only where it ends sooner, by dynamic programming: Shi, Chu and Li, "MG-WFBP: Efficient '
    'Data Communication for Distributed Synchronous SGD Algorithms" (2019)',
    score=score,
)
