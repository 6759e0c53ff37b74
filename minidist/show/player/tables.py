"""The shapes of a page, each different one once: the variants of dials, and scenes that compare, have most in common.

web/unpack.js is the way back. gzip finds repetitions within 32 kB alone, and columns of like things pack better.
"""

import json


def tabled(animation: dict) -> dict:
    """The animation of ``page.as_dict`` with tables of shapes.

    Returns:
        The same, but for each scene and variant "shapes" is four columns: kinds, numbers in the table of that kind,
        first and last frames; and "tables" is, for each kind, the columns of its parts.
    """
    tables: dict[str, dict[str, int]] = {}

    def of_scene(scene: dict) -> dict:
        rows = []
        for kind, first, last, *parts in scene["shapes"]:
            table = tables.setdefault(kind, {})
            rows.append((kind, table.setdefault(json.dumps(parts), len(table)), first, last))
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
        return scene | {"shapes": columns, "variants": [of_scene(one) for one in scene["variants"]]}

    scenes = [of_scene(scene) for scene in animation["scenes"]]
    columns = {kind: list(zip(*map(json.loads, table), strict=True)) for kind, table in tables.items()}
    return animation | {"scenes": scenes, "tables": columns}
