"""Observes which collectives an answer calls, from inside its rank."""

from collections.abc import Callable

from minidist.comm.group import ProcessGroup


def observe_collectives(group: ProcessGroup, on_call: Callable[[str, int, bool], None]) -> None:
    """Call ``on_call(name, nbytes, async_op)`` whenever a collective of this group is called, before it runs."""
    run_collective = group.run_collective

    def observed(description: str, nbytes: int, async_op: bool, body: Callable, kind: tuple | None = None):
        on_call(description.partition("(")[0], nbytes, async_op)
        return run_collective(description, nbytes, async_op, body, kind)

    group.run_collective = observed
