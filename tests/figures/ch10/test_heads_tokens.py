"""Who has which head of which token, before and after Ulysses' all-to-all."""

from figures.ch10 import heads_tokens


def test_owners():
    assert heads_tokens.owners(2, 4, 2, "tokens") == [[0, 0, 1, 1]] * 2
    assert heads_tokens.owners(2, 4, 2, "heads") == [[0] * 4, [1] * 4]


def test_three_grids_and_two_exchanges():
    axes = heads_tokens.draw(4, 8, 2).axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("all-to-all") == 2 and texts.count("0") == texts.count("1") == 3
    assert len(axes.patches) == 3 * 4 * 8 + 2
