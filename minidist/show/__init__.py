"""Pictures, tables and demonstrations, made of traces, schedules and real runs.

``show.ring(ranks=4)`` runs a demonstration and returns its animation, which Jupyter displays as a player. There is one
of each name that ``minidist demo`` lists, with an underscore for its dash.
"""

from importlib.util import find_spec


def __getattr__(name: str):
    if find_spec(f"{__name__}.{name}") is not None:  # a picture's file, which the import that asks is about to load
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} yet")
    from minidist.show.demos import DEMONSTRATIONS  # not before somebody asks: it imports all of training

    try:
        return DEMONSTRATIONS[name.replace("_", "-")]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
