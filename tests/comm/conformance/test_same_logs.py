"""What a rank records does not depend on what carries its messages: traces, counters, results and leftovers."""

from collections import defaultdict

import numpy as np
import pytest

import minidist as md
from minidist import trace

LIMIT = 300  # seconds, of a run that takes one
ALGORITHMS = ("naive", "tree", "ring", "two_shot", "direct", "halving_doubling", "double_tree")


def program(world):
    """Messages and collectives, in the foreground and in the background of two groups. Returns what was recorded."""
    md.place_on_nodes(world, world.size)  # on all transports alike
    other = world.new_group(list(range(world.size))[::-1])
    before, counted = world.traffic, world.collectives
    trace.start()
    results = []
    for n in (0, 1, 1000, 200_000):
        x = np.random.default_rng(world.rank).standard_normal(n).astype(np.float32)
        for algorithm in ALGORITHMS:
            y = x.copy()
            md.all_reduce(y, group=world, algorithm=algorithm)
            results.append(y)
        box = np.empty_like(x)
        right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        works = md.batch_isend_irecv([md.P2POp(md.isend, x, right, world), md.P2POp(md.irecv, box, left, world)])
        for work in works:
            work.wait()
        y, z = x.copy(), x.copy()
        in_background = [
            md.all_reduce(y, group=world, async_op=True, algorithm="ring"),
            md.all_reduce(z, md.ReduceOp.MAX, group=other, async_op=True, algorithm="direct"),
        ]
        md.send(np.ones(3), right, world, tag=2)
        md.recv(np.empty(3), left, world, tag=2)
        for work in in_background:
            work.wait()
        results += [box, y, z]
    entries = trace.stop()
    traffic = (world.traffic - before).as_dict()
    return [x.tobytes() for x in results], in_order(entries), traffic, (world.collectives - counted).as_list()


def in_order(entries) -> dict:
    """What is the same in every run, by stream: all but times, waits, and the order of the messages' ends."""
    found = defaultdict(list)
    for entry in entries:
        if isinstance(entry, trace.Event):
            if entry.track != "wait":
                found[entry.stream].append((entry.name, entry.track, entry.details))
        elif isinstance(entry, trace.Message):
            found["ends of messages"].append((entry.kind, entry.source, entry.destination, entry.nbytes))
        elif not (isinstance(entry, trace.Begin) and entry.track == "wait"):
            fields = {name: getattr(entry, name) for name in entry.__slots__}
            fields.pop("number", None)  # of messages from one rank to another: streams take turns
            found[entry.stream].append((type(entry).__name__, fields))
    found["ends of messages"].sort()
    return dict(found)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_program_records_what_it_does_on_shared_memory(ranks, size, monkeypatch):
    monkeypatch.delenv("PMI_RANK", raising=False)  # this one process of a job may start ranks of its own
    if size == 1:
        size, function = 2, alone
    else:
        function = program
    here = ranks(size).run(function)
    with md.Cluster(size) as shared_memory:
        there = shared_memory.run(function, timeout=LIMIT)
    for rank in range(size):
        for name, ours, theirs in zip(
            ("results", "trace", "traffic", "collectives"), here[rank], there[rank], strict=True
        ):
            assert ours == theirs, f"{name} of rank {rank}"


def alone(world):
    """Each rank in a group of its own: nothing is sent."""
    before, counted = world.traffic, world.collectives
    trace.start()
    x = np.ones(3)
    group = world.new_group([world.rank])
    for algorithm in ALGORITHMS:
        md.all_reduce(x, group=group, algorithm=algorithm)
    return (
        [x.tobytes()],
        in_order(trace.stop()),
        (world.traffic - before).as_dict(),
        (world.collectives - counted).as_list(),
    )
