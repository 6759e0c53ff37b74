"""What a rank's collectives add up to, from the rows of ``RankResult.collectives``."""

from collections.abc import Sequence

AXES = ("pp", "dp", "tp")
# Groups inside an axis of the mesh. Those that exchange tokens, "ep", are inside dp too, and count by themselves.
AXIS_OF = {"shard": "dp", "replicate": "dp", "dp_cp": "dp", "edp": "dp", "embedding": "pp"}


def by_kind(rows: Sequence[dict]) -> dict[tuple[str, str], tuple[int, int]]:
    """(axis, name) -> calls and bytes sent, over all sizes and dtypes."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        kind = row["axis"], row["name"]
        calls, nbytes = found.get(kind, (0, 0))
        found[kind] = calls + row["calls"], nbytes + row["bytes_sent"]
    return found


def by_axis(rows: Sequence[dict]) -> dict[str, int]:
    """The bytes that a rank sent along each axis of the mesh."""
    found = dict.fromkeys(AXES, 0)
    for row in rows:
        axis = AXIS_OF.get(row["axis"], row["axis"])
        found[axis] = found.get(axis, 0) + row["bytes_sent"]
    return found
