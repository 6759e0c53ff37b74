"""Watching what an answer calls, from inside its rank."""

from collections.abc import Callable

from minidist.comm.group import ProcessGroup


def watch_collectives(group: ProcessGroup, noted: Callable[[str, int, bool], None]) -> None:
    """From now on call ``noted(name, nbytes, async_op)`` whenever a collective of the group is called, before it runs.

    It stands here because errors leave out this room when they say where a call was made.
    """
    run_collective = group.run_collective

    def watched(description: str, nbytes: int, async_op: bool, body: Callable, kind: tuple | None = None):
        noted(description.partition("(")[0], nbytes, async_op)
        return run_collective(description, nbytes, async_op, body, kind)

    group.run_collective = watched
