"""Every call that is refused says why: the first line of each error is in refusals.json, to be read when it changes."""

import json
import threading
from pathlib import Path

import multiprocess
import numpy as np
from calls import available

import minidist as md
from minidist.comm.nodes.cost import seconds
from minidist.comm.nodes.placement import check_node_size, node_grid
from minidist.comm.runtime.mpi.job import check_agreement
from minidist.launched import Launched, launched

EXPECTED = json.loads(Path(__file__).with_name("refusals.json").read_text(encoding="utf-8"))
ROWS = (0, 0, 1)  # the nodes of three ranks


def alone(w):
    return w.new_group([w.rank])


def mesh(w):
    return md.init_device_mesh((1, 2), mesh_dim_names=("dp", "tp"), group=w)


BY_RANKS = {  # of two ranks: rank 0's is in the file
    "a list": lambda w: md.all_reduce([1, 2], group=w),
    "a masked array": lambda w: md.all_reduce(np.ma.zeros(3), group=w),
    "a tag that is no number": lambda w: md.send(np.zeros(3), 1 - w.rank, w, tag="a"),
    "a negative tag": lambda w: md.send(np.zeros(3), 1 - w.rank, w, tag=-1),
    "a root that is no integer": lambda w: md.broadcast(np.zeros(3), 0.5, w),
    "an array of text": lambda w: md.all_reduce(np.array(["a"]), group=w),
    "bytes in another order": lambda w: md.all_reduce(np.zeros(3, ">f8"), group=w),
    "gaps": lambda w: md.all_reduce(np.zeros((4, 4)).T[:2], group=w),
    "read-only": lambda w: md.all_reduce(np.broadcast_to(np.zeros(1), 1), group=w),
    "an operation by name": lambda w: md.all_reduce(np.zeros(3), "sum", group=w),
    "an average of integers": lambda w: md.all_reduce(np.zeros(3, int), md.ReduceOp.AVG, group=w),
    "the largest complex number": lambda w: md.all_reduce(np.zeros(3, complex), md.ReduceOp.MAX, group=w),
    "an algorithm": lambda w: md.all_reduce(np.zeros(3), group=w, algorithm="magic"),
    "no group": lambda w: md.all_reduce(np.zeros(3)),
    "no group for a barrier": lambda w: md.barrier(None),
    "a root": lambda w: md.broadcast(np.zeros(3), 2, group=w),
    "a message to oneself": lambda w: md.send(np.zeros(3), w.rank, group=w),
    "a peer": lambda w: md.recv(np.zeros(3), 5, group=w),
    "too small an output": lambda w: md.all_gather_into_tensor(np.zeros(5), np.zeros(3), group=w),
    "too small an input": lambda w: md.reduce_scatter_tensor(np.zeros(2), np.zeros(3), group=w),
    "two dtypes": lambda w: md.reduce_scatter_tensor(np.zeros(2, "f"), np.zeros(4), group=w),
    "rows that do not divide": lambda w: md.all_to_all_single(np.zeros(3), np.zeros(3), group=w),
    "splits": lambda w: md.all_to_all_single(np.zeros(3), np.zeros(3), [1, 2], [5, 5], w),
    "splits of one's own": lambda w: md.all_to_all_single(np.zeros(3), np.zeros(3), [1, 2][:: 1 - 2 * w.rank],
                                                           [2, 1][:: 1 - 2 * w.rank], w),
    "too short a list": lambda w: md.scatter(np.zeros(3), [np.zeros(3)], w.rank, w),
    "a list too many": lambda w: md.gather(np.zeros(3), [np.zeros(3)] * 2, 1 - w.rank, w),
    "two sizes": lambda w: md.gather(np.zeros(3), [np.zeros(3), np.zeros(2)], w.rank, w),
    "a batch of numbers": lambda w: md.batch_isend_irecv([1]),
    "a rank twice": lambda w: w.new_group([0, 0]),
    "a mesh of three": lambda w: md.init_device_mesh((3,), mesh_dim_names=("dp",), group=w),
    "a mesh with one name": lambda w: md.init_device_mesh((1, 2), mesh_dim_names=("dp",), group=w),
    "dimensions that are no neighbours": lambda w: mesh(w).flatten(("tp", "dp"), "both"),
    "a dimension": lambda w: mesh(w).get_group("pp"),
    "waiting for nothing": lambda w: md.wait_any([]),
    "waiting for a collective": lambda w: md.wait_any([md.all_reduce(np.zeros(1), group=alone(w), async_op=True)]),
    "nodes of a part": lambda w: md.place_on_nodes(alone(w), 1),
    "nodes that are not full": lambda w: md.place_on_nodes(w, 4),
    "GPUs of a part": lambda w: md.find_gpus(alone(w)),
}  # fmt: skip
HERE = {
    "3 to the node of 8": lambda: check_node_size(3, 8),
    "4 to the node of 6": lambda: check_node_size(4, 6),
    "5 to the node of 12": lambda: check_node_size(5, 12),
    "4 to the node of 2": lambda: check_node_size(4, 2),
    "2 to the node of 7": lambda: check_node_size(2, 7),
    "0 to the node": lambda: check_node_size(0, 4),
    "-2 to the node": lambda: check_node_size(-2, 4),
    "a grid of uneven nodes": lambda: node_grid((7, 3, 7, 3, 3)),
    "the cost of an unknown collective": lambda: seconds("all_sum", "ring", 8, (0, 0)),
    "the cost of an unknown algorithm": lambda: seconds("reduce", "ring", 8, (0, 0)),
    "the cost on uneven nodes": lambda: seconds("all_reduce", "hierarchical", 8, ROWS),
    "no ranks": lambda: md.Cluster(0),
    "too many ranks": lambda: md.Cluster(65),
    "half a rank": lambda: md.launch(len, 0.5),
    "queues": lambda: md.Cluster(2, queue_bytes=1000),
    "no function": lambda: md.Cluster(2).run(7),
    "a rank of srun alone": lambda: check_agreement(Launched(1, 4, "srun", "here"), 0, 1),
    "a rank of torchrun alone": lambda: check_agreement(Launched(1, 4, "torchrun", "here"), 0, 1),
    "a rank of mpiexec alone": lambda: check_agreement(Launched(1, 4, "mpiexec", "here"), 0, 1),
    "a rank of three": lambda: check_agreement(Launched(1, 4, "srun", "here"), 1, 3),
    "another rank": lambda: check_agreement(Launched(1, 4, "mpiexec", "here"), 2, 4),
    **{
        f"PMI says {rank!r} of {size!r}": lambda rank=rank, size=size: launched({"PMI_RANK": rank, "PMI_SIZE": size})
        for rank, size in (("4", "4"), ("-1", "4"), ("0", "0"), ("x", "4"), ("0", ""), ("0.5", "2"), ("1", "four"))
    },
}


def refusal(call, *arguments) -> str:
    """The kind of the error and its first line."""
    try:
        call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "accepted"


def of_ranks(world) -> tuple[dict, list, int]:
    """All refusals, the result of a call after them, and the nodes that an error must not change."""
    before = world.traffic
    found = {name: refusal(call, world) for name, call in BY_RANKS.items()}
    sent, x = int((world.traffic - before).sent.sum()), np.full(3, world.rank + 1.0)
    md.all_reduce(x, group=world)
    return found, [*x, len(set(world.nodes))], sent


def of_uneven_nodes(world) -> tuple[dict, float]:
    """Of ranks 0, 1 and 2 on nodes of two; "auto" takes an algorithm that can."""
    md.place_on_nodes(world, 2)
    found, x = {}, np.full(1000, world.rank + 1.0)
    if (group := world.new_group([0, 1, 2])) is not None:
        for way in (False, True):
            how = {"group": group, "async_op": way, "algorithm": "hierarchical"}
            found[f"all_reduce {way}"] = refusal(lambda: md.all_reduce(np.ones(3), **how))  # noqa: B023
            found[f"broadcast {way}"] = refusal(lambda: md.broadcast(np.ones(3), 0, **how))  # noqa: B023
        assert group.traffic.sent.sum() == 0
        md.all_reduce(x, group=group)
    return found, x[0]


def kept(world) -> list[str]:
    """Of another thread, and what is there for the next run."""
    errors, work = [], md.irecv(np.zeros(1), 1 - world.rank, world)

    def talk() -> None:
        errors.extend([refusal(md.barrier, world), refusal(work.wait)])

    thread = threading.Thread(target=talk)
    thread.start()
    thread.join()
    md.send(np.zeros(1), 1 - world.rank, world)
    assert work.wait() is True
    md.kept = world, md.irecv(np.zeros(1), 1 - world.rank, world)
    return errors


def of_an_earlier_run(world) -> list[str]:
    return [refusal(md.barrier, md.kept[0]), refusal(md.kept[1].wait)]


def test_calls_are_refused_before_anything_moves_and_ranks_go_on(ranks):
    (found, after, sent), (others, *_) = ranks(2).run(of_ranks)
    assert {name: text.split(":")[0] for name, text in others.items()} == {n: t.split(":")[0] for n, t in found.items()}
    assert after[:3] == [3.0] * 3 and sent == 0
    found |= {name: refusal(call) for name, call in HERE.items()}
    found |= dict(zip(("a thread", "a wait in a thread"), ranks(2).run(kept)[0], strict=True))
    found |= dict(zip(("a run that has ended", "its work"), ranks(2).run(of_an_earlier_run)[0], strict=True))
    different = {name: text for name, text in found.items() if EXPECTED.get(name) != text}
    assert different == {} and found.keys() == EXPECTED.keys(), "refusals.json says otherwise"
    if available(4):
        for errors, total in ranks(4).run(of_uneven_nodes)[:3]:
            assert len(errors) == 4 and set(errors.values()) == {EXPECTED["the cost on uneven nodes"]} and total == 6.0


def test_ranks_start_no_ranks_whatever_their_start_method():
    for method in multiprocess.get_all_start_methods():
        (found,) = md.launch(lambda world: refusal(md.launch, len, 1), 1, timeout=60, start_method=method)
        assert (
            found
            == "RuntimeError: this process is a rank, which starts no ranks of its own: use new_group for some of them"
        )


def test_a_cluster_that_is_closed_or_busy_is_refused(ranks):
    cluster, closed, told = ranks(2), md.Cluster(1), []
    cluster.run(lambda world: world.report(1), on_report=lambda *_: told.append(refusal(cluster.run, len)))
    closed.close()
    for found, words in (
        (told[0], "RuntimeError: this Cluster is running a function already; use a second Cluster to run another at "),
        (refusal(closed.run, len), "RuntimeError: this Cluster is closed; make a new one, or call run inside its with"),
        (refusal(md.Cluster, 2, "clone"), "ValueError: start_method 'clone' is not available here; choose from "),
    ):
        assert found.startswith(words)
