from figures.ch13 import step_bars


def test_computing_and_waiting_add_up_to_the_step():
    figure = step_bars.draw({"tp=4": {"one node": (2e-6, 1e-6), "two": (8e-6, 1e-6)}})
    (axes,) = figure.axes
    heights = [round(bar.get_height(), 6) for bar in axes.patches]
    assert heights == [1, 1, 1, 7]
    assert [text.get_text() for text in axes.texts] == ["1.00x", "4.00x"]
