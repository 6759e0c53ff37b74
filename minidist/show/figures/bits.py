"""One number in several floating-point formats (nn/precision/formats.py), bit by bit."""

from collections.abc import Sequence

import numpy as np

from minidist.show.palette import MEANINGS

SIGN, EXPONENT, MANTISSA = (MEANINGS[part] for part in ("sign", "exponent", "mantissa"))
FLOAT32 = "float32"


def fields(code: int, exponent: int, mantissa: int) -> tuple[str, str, str]:
    """Return sign, exponent and mantissa of a code as strings of bits."""
    text = f"{code:0{1 + exponent + mantissa}b}"
    return text[0], text[1 : 1 + exponent], text[1 + exponent :]


def rows(value: float, formats: Sequence) -> list[tuple[str, tuple[str, str, str], float]]:
    """Return, for float32 and each format: name, fields of its number nearest to ``value``, and that number."""
    whole = np.asarray([value], np.float32)
    found = [(FLOAT32, fields(int(whole.view(np.uint32)[0]), 8, 23), float(whole[0]))]
    for format in formats:
        code = format.encode(whole)
        found.append(
            (format.name, fields(int(code[0]), format.exponent, format.mantissa), float(format.decode(code)[0]))
        )
    return found


def draw(value: float, formats: Sequence, title: str):
    """Return a matplotlib Figure with a row for each format: a box for each bit, and the number at the end."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    lines = rows(value, formats)
    figure = Figure(figsize=(11, 0.75 + 0.44 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for row, (name, parts, nearest) in enumerate(lines):
        left = -len(parts[0]) - len(parts[1])  # the mantissa begins at 0 in every row
        axes.text(-9.6, row, name, ha="right", va="center", fontsize=10)
        for part, colour in zip(parts, (SIGN, EXPONENT, MANTISSA), strict=True):
            for bit in part:
                axes.add_patch(Rectangle((left, row - 0.4), 1, 0.8, facecolor=colour, edgecolor="white", linewidth=1.2))
                white = colour == SIGN
                axes.text(
                    left + 0.5, row, bit, ha="center", va="center", fontsize=9, color="white" if white else "black"
                )
                left += 1
        axes.text(23.5, row, f"{nearest:.9g}", va="center", fontsize=10)
    for x, name, colour in ((-8.5, "sign", SIGN), (-4, "exponent", "#2A7FB0"), (11.5, "mantissa", "#8A7F1E")):
        axes.text(x, -0.75, name, ha="center", va="bottom", fontsize=9, color=colour)
    axes.set_xlim(-13, 28)
    axes.set_ylim(len(lines) - 0.4, -1.15)
    axes.set_title(title, loc="left", fontsize=11)
    axes.axis("off")
    return figure
