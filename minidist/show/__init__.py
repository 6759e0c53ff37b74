"""Pictures and demonstrations, made from traces, schedules and real runs.

``show.ring(ranks=4)`` runs a demonstration and returns its animation, which Jupyter displays as a player. Every name
that ``minidist demo`` lists is available, with underscores for dashes.
"""

from importlib.util import find_spec


def __getattr__(name: str):
    if find_spec(f"{__name__}.{name}") is not None:  # a submodule, which the import statement is about to load
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} yet")
    from minidist.show.demos import DEMONSTRATIONS  # only on demand: it imports all of training

    try:
        return DEMONSTRATIONS[name.replace("_", "-")]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
