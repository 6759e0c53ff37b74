"""The bits in the picture are those of the number."""

from minidist.nn.precision.formats import BFLOAT16, E4M3, FLOAT16
from minidist.show.figures.bits import EXPONENT, MANTISSA, SIGN, draw, rows


def test_fields_of_known_numbers():
    assert rows(-1.5, [BFLOAT16, E4M3]) == [
        ("float32", ("1", "01111111", "1" + 22 * "0"), -1.5),
        ("bfloat16", ("1", "01111111", "1000000"), -1.5),
        ("e4m3", ("1", "0111", "100"), -1.5),
    ]


def test_the_nearest_number_is_given():
    (_, _, whole), (_, (_, _, mantissa), near) = rows(0.1, [FLOAT16])
    assert abs(whole - 0.1) < 1e-8 and near == 0.0999755859375 and len(mantissa) == 10


def test_a_box_for_each_bit():
    (axes,) = draw(0.1, [BFLOAT16], "0.1").axes
    boxes = [(box.get_x(), box.get_facecolor()) for box in axes.patches]
    assert len(boxes) == 32 + 16
    assert [text.get_text() for text in axes.texts].count("float32") == 1
    assert len({colour for _, colour in boxes}) == len({SIGN, EXPONENT, MANTISSA})
    assert min(x for x, _ in boxes) == -9 and max(x for x, _ in boxes) == 22  # the mantissas begin at 0
