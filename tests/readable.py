"""Are the texts of a picture large enough where it is shown?"""

POINTS = 8  # the smallest text
INCHES = 11.5  # JupyterLab shrinks what is wider in a window of 1,000 pixels, with the 80 dots per inch of the chapters


def check_readable(figure) -> None:
    """Fails if a text of a matplotlib Figure is below 8 points, as wide as a notebook shows it."""
    from matplotlib.text import Text

    figure.draw_without_rendering()  # makes the labels of ticks
    shrunk = min(1, INCHES / figure.get_figwidth())
    small = {
        text.get_text(): round(shrunk * text.get_fontsize(), 1)
        for text in figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_visible())
        if text.get_text().strip() and shrunk * text.get_fontsize() < POINTS
    }
    assert not small, f"too small in points: {small}"
