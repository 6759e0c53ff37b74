"""Chapter 6: the two products of an MLP on several ranks, with the fewest bytes sent."""

import numpy as np

from minidist.course.challenges.challenge import Challenge, geometric_mean, new_seed, random_words
from minidist.course.sandbox.forbidden import no_side_channels
from minidist.course.sandbox.student import Student

# (tokens, width, hidden width, ranks)
CASES = ((16, 64, 256, 4), (160, 32, 64, 4), (512, 16, 64, 4), (48, 128, 8, 4), (4, 64, 64, 4), (96, 64, 16, 4))
OTHERS = ((6, 9, 12, 3), (5, 8, 8, 1))  # checked but not scored


def score(student: Student) -> float:
    """Bytes that the busiest rank sends, the geometric mean over shapes."""
    for case in OTHERS:
        _sent(student, *case)
    return geometric_mean(_sent(student, *case) for case in CASES)


def _sent(student: Student, tokens: int, width: int, hidden: int, ranks: int) -> int:
    x = random_words(new_seed(), tokens * width).reshape(tokens, width)
    a = random_words(new_seed(), width * hidden).reshape(width, hidden)
    b = random_words(new_seed(), hidden * width).reshape(hidden, width)
    what = f"{tokens} tokens, width {width}, hidden width {hidden}, {ranks} ranks"
    placed = [_placed(student, a, b, tokens, rank, ranks, what) for rank in range(ranks)]
    seen = student.on_ranks(ranks, run_mlp, np.array_split(x, ranks), placed, (tokens, width, hidden))
    expected = np.array_split(np.maximum(x @ a, 0) @ b, ranks)
    for rank, result in enumerate(seen):
        right = isinstance(result.value, np.ndarray) and np.array_equal(result.value, expected[rank])
        assert right, f"{what}: rank {rank} does not return its rows of relu(x a) b"
    sent = [int(result.traffic.sent[:, 0].sum()) for result in seen]
    received = np.sum([result.traffic.sent[:, 0] for result in seen], axis=0)
    assert ranks == 1 or min(received) > 0, f"{what}: a rank receives nothing, but every rank needs weights of others"
    return max(sent)


def _placed(student: Student, a: np.ndarray, b: np.ndarray, tokens: int, rank: int, ranks: int, what: str) -> list:
    """Return the arrays that a rank holds at the start, chosen in another process than the one that uses them."""
    placed = student.call("place_weights", a, b, tokens, rank, ranks)
    arrays = isinstance(placed, list | tuple) and all(isinstance(array, np.ndarray) for array in placed)
    assert arrays, f"{what}: expected place_weights to return a list of arrays, got {placed!r:.60}"
    share = (a.size + b.size) / ranks
    held = sum(array.nbytes for array in placed) / 8
    assert held <= share, f"{what}: rank {rank} holds {held:g} elements; its share of the weights is {share:g}"
    return list(placed)


def run_mlp(world, answers, rows: list, placed: list, shape: tuple[int, int, int]) -> np.ndarray:
    """Run the answer on a rank: return its rows of the output."""
    x, mine = rows[world.rank].copy(), placed[world.rank]
    rows.clear()  # no rank knows what the others hold
    placed.clear()
    with no_side_channels():
        return answers.mlp(x, mine, *shape, world)


CHALLENGE = Challenge(
    chapter=6,
    name="mlp",
    what="MLP",
    title="An MLP on several ranks that sends the fewest bytes",
    rule="Each rank has its rows of x and wants its rows of relu(x a) b. You choose what each rank holds of the "
    "weights, at most its equal share, and then what the ranks send each other. The score is the bytes that the "
    "busiest rank sends in forward, over shapes that differ widely.",
    unit="bytes",
    library=32774,
    known=10947,
    idea="Move what is smaller, activations or weights, and cut along either dimension: Pope et al., "
    '"Efficiently Scaling Transformer Inference" (2022), section 3.2',
    score=score,
)
