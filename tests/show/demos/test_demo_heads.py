"""The scene of attention by heads: what it shows is what two real ranks held, and the parts join to one process."""

import numpy as np
import pytest
from frames import boxes, check_inside, labels

from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.demos.tensor_parallel import attention
from minidist.show.demos.tensor_parallel.attention.run import (
    HEAD,
    TOKENS,
    WIDTH,
    matches,
    numbers_of,
    split,
    weights_of,
    whole,
)
from minidist.show.demos.tensor_parallel.attention.scene import text_of
from minidist.show.palette import of_rank

SEED = 3


@pytest.fixture(scope="module")
def found():
    """The numbers; one process; two ranks, right and with g skipped; and both scenes."""
    numbers = numbers_of(SEED)
    with warm_ranks() as warm:
        return (
            numbers,
            whole(warm, numbers),
            split(warm, numbers),
            split(warm, numbers, True),
            attention.scenes(warm, SEED),
        )


def test_the_heads_join_to_the_bits_of_one_process(found):
    _, one, ranks, bad, _ = found
    assert matches(ranks, one) and not matches(bad, one)
    assert [held.o.tobytes() for held in ranks] == [one.o[rank : rank + 1].tobytes() for rank in (0, 1)]
    assert [held.o.tobytes() for held in bad] == [held.o.tobytes() for held in ranks]  # wrong from g on alone
    assert [held.sent for held in ranks] == [8 * TOKENS * WIDTH] * 2  # one all-reduce of float64, and nothing else
    assert [held.sent for held in bad] == [0, 0]


def test_what_a_rank_held_is_attention_of_its_head(found):
    """Against NumPy, by the formula."""
    numbers, _, ranks, _, _ = found
    total = np.zeros((TOKENS, WIDTH))
    for rank, held in enumerate(ranks):
        q, k, v = (numbers.x @ numbers.qkv[rank][:, HEAD * i : HEAD * (i + 1)] for i in range(3))
        assert (held.q[0] == q).all() and (held.k[0] == k).all() and (held.v[0] == v).all()
        weights = weights_of(q[None], k[None])[0]
        assert np.allclose(weights.sum(1), 1) and not np.triu(weights, 1).any()
        assert np.allclose(held.o[0], weights @ v, atol=1e-6)  # float32
        total += weights @ v @ numbers.out[rank]
    assert np.allclose(ranks[0].y, total, atol=1e-5)


def test_sums_are_right_as_shown(found):
    _, _, ranks, _, (right, _) = found
    for row, column in np.ndindex(TOKENS, WIDTH):
        terms = [float(text_of(held.partial[row, column])) for held in ranks]
        assert sum(terms) == pytest.approx(float(text_of(ranks[0].y[row, column])))
    left = [text_of(held.partial[-1, 0]) for held in ranks]
    assert f"bottom left: {' + '.join(left)} = {text_of(ranks[0].y[-1, 0])}" in labels(right.frames[-1])


def test_numbers_as_texts():
    assert [text_of(number) for number in (0, -2, 0.25, 0.96, 1.04, -0.04, 12)] == [
        "0",
        "−2",
        ".2",
        "1",
        "1",
        "0",
        "12",
    ]


def test_each_rank_has_its_own_head_and_no_message_comes_before_g(found):
    _, _, ranks, _, (right, _) = found
    *early, last = right.frames
    assert all(frame.facts["collectives"] == "0" for frame in early) and last.facts["collectives"] == "1"
    assert last.facts["bytes a rank has sent"] == str(ranks[0].sent)
    for rank, held in enumerate(ranks):
        for heading, array in (("Q", held.q), ("K", held.k), ("V", held.v), ("O", held.o)):
            cells = [box for box in boxes(last, fill=of_rank(rank)) if box.id.startswith(f"{heading}[")]
            assert [box.text for box in cells] == [text_of(number) for number in array[0].ravel()]
        weights = [box.text for box in boxes(last, fill=of_rank(rank)) if box.id.startswith("P[")]
        assert weights == [text_of(held.weights[0][row, column]) for row in range(TOKENS) for column in range(row + 1)]


def test_the_broken_scene_is_the_same_but_for_the_sum(found):
    _, one, _, bad, (right, broken) = found
    assert (
        broken.bug == attention.BUG
        and broken.twin == right.name == attention.NAME
        and len(broken.frames) == len(right.frames)
    )
    assert [frame.shapes for frame in broken.frames[:-1]] == [frame.shapes for frame in right.frames[:-1]]
    wrong = [box.text for box in boxes(broken.frames[-1], fill="wrong")]
    assert wrong == [text_of(number) for held in bad for number in held.y[held.y != one.y]] and wrong
    assert f"wrong in {len(wrong)} of {2 * TOKENS * WIDTH} cells" in broken.verdict
    assert broken.first_wrong == len(broken.frames) - 1 and right.first_wrong is None
    assert not any(boxes(frame, fill="wrong") for frame in right.frames)


@pytest.mark.parametrize("seed", range(5))
def test_everything_is_in_the_picture(seed):
    with warm_ranks() as warm:
        for one in attention.scenes(warm, seed):
            check_inside(one, note=90)
            assert one.cues and (one.questions or one.twin)


@pytest.mark.parametrize("seed", range(12))
def test_numbers_are_drawn_so_that_sums_are_right_as_shown(seed):
    numbers = numbers_of(seed)
    q, k, v = np.split(numbers.x @ numbers.qkv, 3, axis=2)
    partial = weights_of(q, k) @ v @ numbers.out
    for row, column in np.ndindex(TOKENS, WIDTH):
        shown = [float(text_of(terms[row, column])) for terms in partial]
        assert sum(shown) == pytest.approx(float(text_of(partial[:, row, column].sum())))
