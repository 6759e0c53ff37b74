"""How the ranks of a torch group find each other: through torch's store, a small table that all of them can read.

Under ``minidist.launch`` the parent creates the shared memory and hands its name to the ranks. Processes that torchrun
started have no such parent, so rank 0 creates it and writes its name into the store.
"""

from datetime import timedelta

import torch.distributed as dist

from minidist.comm.runtime.sweep import sweep
from minidist.comm.transports.shared_memory import MAX_RANKS, Segment, queue_capacity


def meet(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Segment:
    """The shared memory of the group's ranks. It has no name any longer once rank 0 returns, so it never outlives them.

    Args:
        store: store of this group alone; torch gives each group a prefix of its own.

    Raises:
        ValueError: for more ranks than the shared memory serves. DistStoreError: if a rank does not come in time.
    """
    if size > MAX_RANKS:
        raise ValueError(f"a minidist group has at most {MAX_RANKS} ranks, but this one has {size}")
    if rank > 0:
        segment = _attach(size, _wait_for(store, "segment", timeout))
        if store.add("attached", 1) == size - 1:
            store.set("all attached", "")
        return segment
    sweep()
    segment = Segment(size, queue_capacity(size))
    try:
        store.set("segment", segment.name)
        if size > 1:
            _wait_for(store, "all attached", timeout)
    finally:
        segment.unlink()
    return segment


def _wait_for(store: dist.Store, key: str, timeout: timedelta) -> str:
    store.wait([key], timeout)
    return store.get(key).decode()


def _attach(size: int, name: str) -> Segment:
    try:
        segment = Segment(size, queue_capacity(size), name)
    except FileNotFoundError:
        raise RuntimeError(
            f"the shared memory {name} of rank 0 is not on this machine. The ranks of a minidist group are processes "
            "of one machine that share /dev/shm: across machines use another backend, such as gloo"
        ) from None
    segment.disown()
    return segment
