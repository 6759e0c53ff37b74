"""Figures for a notebook that is committed with its outputs: sharp, and small in bytes."""

import io

COLOURS = 128  # per picture: lines and flat areas need few, and a palette takes a third of the bytes of true colour


def png(figure, dpi: float) -> bytes:
    """Return a matplotlib Figure as a PNG file with a palette."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white", bbox_inches="tight")
    reduced = Image.open(buffer).convert("RGB").quantize(COLOURS)
    buffer = io.BytesIO()
    reduced.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def compact_figures(dpi: float = 84) -> None:
    """Show every Figure of this notebook by ``png`` from now on, whether or not pyplot made it."""
    from IPython import get_ipython
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    shell = get_ipython()
    if shell is None:
        return
    pyplot.switch_backend("module://matplotlib_inline.backend_inline")
    shell.display_formatter.formatters["image/png"].for_type(Figure, lambda figure: png(figure, dpi))
