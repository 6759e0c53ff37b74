import numpy as np
from figures.ch11 import load_share


def test_imbalance_is_one_if_even_and_the_number_of_experts_at_worst():
    counts = np.array([[4, 4, 4, 4], [16, 0, 0, 0], [8, 8, 0, 0]])
    assert load_share.imbalance(counts).tolist() == [1, 4, 2]


def test_a_band_for_each_expert_and_bands_fill_the_panel():
    counts = np.random.default_rng(0).integers(1, 9, (12, 4))
    figure = load_share.draw({"none": counts, "loss": counts})
    assert [len(axes.collections) for axes in figure.axes] == [4, 4]
    top = figure.axes[0].collections[-1].get_paths()[0].vertices[:, 1].max()
    assert np.isclose(top, 1)
