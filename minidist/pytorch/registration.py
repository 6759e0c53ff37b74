"""Tells torch of the backend and whose collectives it runs, and lets the ranks of a group find each other."""

import os
import sys
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]  documented

from minidist import overrides
from minidist.comm.background import SWITCH_SECONDS
from minidist.comm.collectives import COLLECTIVES
from minidist.comm.failures import add_plumbing
from minidist.comm.runtime.sweep import sweep
from minidist.comm.transports.shared_memory import MAX_RANKS, Segment
from minidist.course.learner.implementations import implementations_of, install
from minidist.pytorch.channel import Channel
from minidist.pytorch.process_group import ProcessGroup

add_plumbing(os.path.dirname(os.path.abspath(__file__)))


def register(algorithm: str = "auto", impl: str | None = None) -> list[str]:
    """Register "minidist" as a backend of torch.distributed, in this process: every rank calls it.

    Groups made from now on use it: ``dist.init_process_group("minidist")``. It takes tensors on the CPU.

    Args:
        algorithm: algorithm of minidist's collectives. A collective that has none of this name takes "auto".
        impl: source of the collectives: "exercises", "solutions" or a folder of chNN_*.py files. Minidist's own run for
            those that are still stubs there. None changes nothing: minidist's own run, or the overrides in force.

    Returns:
        The names of the functions that come from ``impl``. ``minidist.overrides.calls`` counts their calls.

    Raises:
        ValueError: if no collective has that algorithm, there is no such folder, or all its collectives are stubs.
    """
    known = {name for collective in COLLECTIVES.values() for name in collective.algorithms}
    if algorithm != "auto" and algorithm not in known:
        raise ValueError(f"register: unknown algorithm {algorithm!r}; choose auto, {', '.join(sorted(known))}")

    own = []
    if impl is not None:
        all_of_them = [(overrides.OVERRIDABLE[each.name].__module__, each) for each in implementations_of(impl)]
        # torch does the rest of the training itself
        implementations = [each for module, each in all_of_them if module.startswith("minidist.comm.")]
        own = [each.name for each in implementations if each.source is not None]
        if not own:
            raise ValueError(f"register: no collective in {impl} is solved yet; leave impl= out to run minidist's own")
        install(implementations)

    def create(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
        channel = Channel(meet(store, rank, size, timeout), rank, timeout.total_seconds())
        return ProcessGroup(channel, algorithm)

    dist.Backend.register_backend("minidist", create, devices=["cpu"])
    sys.setswitchinterval(SWITCH_SECONDS)  # the background thread must not wait long for the interpreter
    return own


def meet(store: Store, rank: int, size: int, timeout: timedelta) -> Segment:
    """Return the shared memory of a group's ranks, which find each other through torch's store, a table for all ranks.

    Processes that torchrun started have no parent that hands them the memory's name, so rank 0 creates the memory and
    writes its name into the store. The name is gone once rank 0 returns, so the memory never outlives the processes.

    Args:
        store: store of this group alone; torch gives each group a prefix of its own.

    Raises:
        ValueError: for more ranks than the shared memory serves. DistStoreError: if a rank does not come in time.
    """
    if size > MAX_RANKS:
        raise ValueError(f"a minidist group has at most {MAX_RANKS} ranks, but this one has {size}")
    if rank > 0:
        name = _wait_for(store, "segment", timeout)
        try:
            segment = Segment(size, name=name)
        except FileNotFoundError:
            raise RuntimeError(
                f"the shared memory {name} of rank 0 is not on this machine. The ranks of a minidist group are "
                "processes of one machine that share /dev/shm: across machines use another backend, such as gloo"
            ) from None
        segment.disown()
        if store.add("attached", 1) == size - 1:
            store.set("all attached", "")
        return segment
    sweep()
    segment = Segment(size)
    try:
        store.set("segment", segment.name)
        if size > 1:
            _wait_for(store, "all attached", timeout)
    finally:
        segment.unlink()
    return segment


def _wait_for(store: Store, key: str, timeout: timedelta) -> str:
    store.wait([key], timeout)
    return store.get(key).decode()
