import numpy as np
from figures.ch11 import dispatch


def test_each_copy_goes_once_to_the_rank_of_its_expert():
    chosen = np.random.default_rng(0).permuted(np.tile(np.arange(8), (4, 3, 1)), axis=2)[:, :, :2]
    rows = dispatch.rows_of(chosen, 8)
    assert len(set(rows)) == len(rows) == 24
    assert all(row.rank == row.expert // 2 and row.expert in chosen[row.source, row.token] for row in rows)
    for rank in range(4):
        mine = [row for row in rows if row.rank == rank]
        assert [row.place for row in mine] == list(range(len(mine)))
        assert mine == sorted(mine, key=lambda row: (row.expert, row.source, row.token))


def test_an_expert_without_tokens_is_drawn_too():
    chosen = np.array([[[0], [1]], [[0], [1]]])
    figure = dispatch.draw(chosen, 4)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"expert 2", "expert 3", "rank 0", "rank 1"} <= set(texts)
    assert texts.count("a") == 3  # at home, at its expert, and back
