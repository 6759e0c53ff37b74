"""The flat unit: parameters side by side, shards below them, the padding where the parameters end."""

from figures.ch05.shards import PARAMETERS, draw, spans
from matplotlib.colors import to_hex

from minidist.parallel.tools.units import shard_slice
from minidist.show.palette import RANKS

SIZES = [("weight", 20), ("bias", 3)]
SHARDS = [shard_slice(23, rank, 4) for rank in range(4)]


def test_arrays_are_side_by_side():
    assert spans([3, 0, 4]) == [(0, 3), (3, 3), (3, 7)]


def test_shards_and_padding_are_in_their_places():
    (axes,) = draw(SIZES, SHARDS, "a unit").axes
    bars = {to_hex(bar.get_facecolor()).upper(): (bar.get_x(), bar.get_width()) for bar in axes.patches}
    assert [bars[RANKS[rank]] for rank in range(4)] == [(0, 6), (6, 6), (12, 6), (18, 6)]
    assert bars["#FFFFFF"] == (23, 1)  # padding
    parameters, _ = draw(SIZES, SHARDS[:1], "a unit").axes[0].patches[:2]
    assert (parameters.get_x(), to_hex(parameters.get_facecolor()).upper()) == (20, PARAMETERS[1])


def test_labels_at_one_height_do_not_overlap():
    names = [(f"a.parameter.of.block.{i}", 1) for i in range(4)] + [("large", 200)]
    (axes,) = draw(names, [slice(0, 204)], "many small ones").axes
    heights = [text.get_position()[1] for text in axes.texts if "block" in text.get_text()]
    assert len(set(heights)) == 4
