import numpy as np
from figures.ch11 import load_share


def test_a_band_for_each_expert_and_bands_fill_the_panel():
    tokens = np.random.default_rng(0).integers(1, 9, (12, 4))
    figure = load_share.draw({"none": tokens, "loss": tokens})
    assert [axes.get_title() for axes in figure.axes] == ["none", "loss"]
    assert [len(axes.collections) for axes in figure.axes] == [4, 4]
    top = figure.axes[0].collections[-1].get_paths()[0].vertices[:, 1].max()
    assert np.isclose(top, 1)
