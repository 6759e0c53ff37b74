"""The collectives of a step: calls and bytes are summed by kind, and bars are as long as their bytes."""

from figures.ch06.calls import COLOURS, draw, sums


def row(axis, name, calls, nbytes):
    return {"axis": axis, "name": name, "dtype": "float32", "elements": 1, "calls": calls, "bytes_sent": nbytes}


ROWS = [row("dp", "all_reduce", 1, 5000), row("tp", "all_reduce", 4, 2000), row("tp", "all_reduce", 2, 1000)]


def test_sums():
    assert sums(ROWS) == {("tp", "all_reduce"): (6, 3000), ("dp", "all_reduce"): (1, 5000)}
    assert list(sums(ROWS)) == [("tp", "all_reduce"), ("dp", "all_reduce")]
    assert sums([*ROWS, row("world", "broadcast", 1, 7)])["world", "broadcast"] == (1, 7)


def test_bars():
    (axes,) = draw({"one": ROWS, "other": ROWS[:1]}).axes
    bars = [(bar.get_x(), bar.get_width(), round(bar.get_y() + 0.33)) for bar in axes.patches if bar.get_width()]
    assert bars == [(0, 3, 0), (3, 5, 0), (0, 5, 1)]
    assert {"6 calls", "1 call", "8 kB"} <= {text.get_text() for text in axes.texts}
    assert len(COLOURS) == len(set(COLOURS.values()))
