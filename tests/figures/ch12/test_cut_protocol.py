from figures.ch12 import cut_protocol
from matplotlib.colors import to_hex


def test_a_loss_has_a_colour_of_its_own():
    outcomes = {"killed": ["old", "old", "new"], "power": ["old", cut_protocol.NOTHING, "old or new"]}
    figure = cut_protocol.draw(["write", "rename", "flush"], outcomes, {1: "commits"})
    (axes,) = figure.axes
    colours = {(round(p.get_x(), 1), int(p.get_y())): to_hex(p.get_facecolor()) for p in axes.patches}
    assert len(colours) == 6
    lost = [place for place, colour in colours.items() if colour == cut_protocol.BROKEN.lower()]
    assert lost == [(6.6, 1)]
    assert len(set(colours.values())) == 4  # old, new, one of both, nothing
    assert "commits" in {text.get_text() for text in axes.texts}
