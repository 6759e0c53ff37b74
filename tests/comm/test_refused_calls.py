"""Every call that is refused says why: refused_calls.txt has the first line of each, to be read when it changes."""

import threading
from pathlib import Path

import multiprocess
import numpy as np

import minidist as md
from minidist.comm.cost import seconds
from minidist.comm.placement import check_node_size, node_grid
from minidist.comm.runtime.job import check_agreement
from minidist.launched import Launched, launched

HERE = (check_node_size, node_grid, seconds, check_agreement, Launched, launched)
NAMES = {"np": np, "md": md} | {each.__name__: each for each in HERE}
PARTS = Path(__file__).with_name("refused_calls.txt").read_text(encoding="utf-8").split("# ")[1:]
OF_RANKS, OF_THIS_PROCESS = (dict(line.split(" => ") for line in part.splitlines()[1:]) for part in PARTS)


def refusal(call, *arguments) -> str:
    """The kind of the error and its first line."""
    try:
        call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "accepted"


def of_ranks(world, sources: list[str]) -> tuple[list[str], list]:
    """All refusals; the result of a call after them, what they have sent, and the nodes that they must not change."""
    before = world.traffic
    mesh = md.init_device_mesh((1, 2), mesh_dim_names=("dp", "tp"), group=world)
    names = NAMES | {"w": world, "alone": world.new_group([world.rank]), "mesh": mesh}
    texts = [refusal(eval, source, names) for source in sources]
    sent, x = int((world.traffic - before).sent.sum()), np.full(1, world.rank + 1.0)
    md.all_reduce(x, group=world)
    return texts, [x[0], sent, world.nodes]


def of_uneven_nodes(world) -> tuple[str, int]:
    """The refusal of an algorithm that ranks 0, 1, 2 on nodes of two cannot run, and the bytes sent."""
    md.place_on_nodes(world, 2)
    group, before = world.new_group([0, 1, 2]) or world.new_group([3]), world.traffic
    text = refusal(lambda: md.all_reduce(np.ones(3), group=group, async_op=True, algorithm="hierarchical"))
    return text, int((world.traffic - before).sent.sum())


def test_calls_are_refused_before_anything_moves_and_ranks_go_on(ranks):
    (texts, after), (others, _) = ranks(2).run(of_ranks, [*OF_RANKS])
    assert [text.split(":")[0] for text in others] == [text.split(":")[0] for text in texts]
    assert after == [3.0, 0, ranks(2).run(lambda world: world.nodes)[0]]
    now = dict(zip(OF_RANKS, texts, strict=True)) | {name: refusal(eval, name, NAMES) for name in OF_THIS_PROCESS}
    different = [f"{name} => {now[name]}" for name, text in (OF_RANKS | OF_THIS_PROCESS).items() if now[name] != text]
    assert not different, "refused_calls.txt says otherwise:\n" + "\n".join(different)
    uneven = OF_THIS_PROCESS['seconds("all_reduce", "hierarchical", 8, (0, 0, 1))']
    assert ranks(4).run(of_uneven_nodes) == [(uneven, 0)] * 3 + [("accepted", 0)]


def kept(world) -> list[str]:
    """Return the refusal in another thread, and what is there for the next run."""
    errors, work = [], md.irecv(np.zeros(1), 1 - world.rank, world)
    thread = threading.Thread(target=lambda: errors.extend([refusal(md.barrier, world), refusal(work.wait)]))
    thread.start()
    thread.join()
    md.send(np.zeros(1), 1 - world.rank, world)
    assert work.wait() is True
    md.kept = world, md.irecv(np.zeros(1), 1 - world.rank, world)
    return errors


def of_an_earlier_run(world) -> list[str]:
    return [refusal(md.barrier, md.kept[0]), refusal(md.kept[1].wait)]


def test_other_threads_earlier_runs_and_ranks_of_ranks_are_refused(ranks):
    for run, words in (
        (kept, "RuntimeError: only the thread that runs the rank's function may send and receive"),
        (of_an_earlier_run, "RuntimeError: this group belongs to a run that has ended; use the world that this run's"),
    ):
        assert all(text.startswith(words) for text in ranks(2).run(run)[0])
    for method in multiprocess.get_all_start_methods():
        (text,) = md.launch(lambda world: refusal(md.launch, len, 1), 1, timeout=60, start_method=method)
        assert text.startswith("RuntimeError: this process is a rank and cannot start ranks: use new_group")


def test_a_cluster_that_is_closed_or_busy_is_refused(ranks):
    cluster, closed, told = ranks(2), md.Cluster(1), []
    cluster.run(lambda world: world.report(1), on_report=lambda *_: told.append(refusal(cluster.run, len)))
    closed.close()
    for text, words in (
        (told[0], "RuntimeError: this Cluster is running a function already; use a second Cluster to run another at "),
        (refusal(closed.run, len), "RuntimeError: this Cluster is closed; make a new one, or call run inside its with"),
        (refusal(md.Cluster, 2, "clone"), "ValueError: start_method 'clone' is not available here; choose from "),
    ):
        assert text.startswith(words)
