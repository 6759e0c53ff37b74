"""Parts of each parameter that every rank of a layout has."""

import minidist as md
from minidist.train.share import Share


def parts_here(world, config, layout):
    """Return this rank's parts: parameter name -> runs (start, stop) in the full array laid flat."""
    model = Share.of(world, config, layout).model
    regions = model.regions()
    return {parameter.name: regions[parameter.name].runs for parameter in model.trained}


def parts_of(cluster, config, layout: str) -> list[dict]:
    """Return the parts of every rank of a layout."""
    return cluster.run(parts_here, config, md.Layout.parse(layout))
