"""All demonstrations in their groups, in the order of the menu."""

from dataclasses import replace
from functools import partial

from minidist.show.demos import (
    bf16,
    cluster,
    collectives,
    compress,
    context_parallel,
    data_parallel,
    deadlock,
    documents,
    exact,
    expert_parallel,
    failure,
    flash,
    parameter_server,
    pipeline,
    recompute,
    tensor_parallel,
    zero,
)
from minidist.show.demos.collectives import kinds
from minidist.show.demos.demonstration import Demonstration
from minidist.show.demos.shared.runs import RANKS


def _collective(kind: kinds.Kind, about: str, *scenes: str) -> Demonstration:
    animation = partial(collectives.animation, kind)
    return Demonstration(kind.name, about, scenes, animation, 4, 4, "numbers in each chunk", most=10**4)


GROUPS = {
    "collectives": (
        _collective(kinds.BROADCAST, "GPU 0's array on every GPU: tree, naive, ring", "tree", "naive", "ring"),
        _collective(
            kinds.ALL_REDUCE, "the ring all-reduce, chunk by chunk", "ring", "naive", "halving-doubling", "training"
        ),
        _collective(kinds.REDUCE_SCATTER, "one chunk of the sum on each GPU", "ring", "training"),
        _collective(kinds.ALL_GATHER, "every GPU's chunk on every GPU", "ring", "training"),
        _collective(kinds.ALL_TO_ALL, "a different chunk from every GPU to every other", "pairwise"),
    ),
    "parallelism": (
        Demonstration(
            "dp", "all-reduces hidden under backward: overlapped, bucketed, naive", ("race", "measured", "weights"),
            data_parallel.animation, RANKS, 96, "the model's width",
        ),
        Demonstration(
            "zero", "what each rank holds during a step, in every stage", ("16 bytes", "two steps"),
            zero.animation, 4, 32, "the model's width",
        ),
        Demonstration(
            "tp", "heads split over GPUs: two all-reduces per block in each pass",
            ("MLP", "heads", "step", "measured"), tensor_parallel.tp, RANKS, 96, "the model's width",
        ),
        Demonstration(
            "sp", "tokens split over GPUs as well: less activation memory", ("MLP", "step", "measured"),
            tensor_parallel.sp, RANKS, 96, "the model's width",
        ),
        Demonstration(
            "cp", "tokens split in every layer: ring attention, and zigzag", ("ring", "zigzag", "backward", "Ulysses"),
            context_parallel.animation, 4, 8, "tokens in each chunk of zigzag", most=context_parallel.MOST,
        ),
        Demonstration(
            "ep", "tokens travel to their experts and back; balance on and off", ("routes", "balance", "capacity"),
            expert_parallel.animation, 4, 2, "tokens on each GPU", most=expert_parallel.MOST,
        ),
        Demonstration(
            "pp", "pipelines: five schedules and their bubbles",
            ("race", "naive", "GPipe", "1F1B", "interleaved", "ZB-H1", "measured"),
            pipeline.animation, pipeline.RANKS, 8, "micro-batches",
        ),
    ),
    "data": (
        Demonstration(
            "documents", "documents in packs: skipped tiles, and one mean over all",
            ("packs", "tiles", "count", "loss"), documents.animation, 4, 64, "places in a sample",
            most_ranks=4, most=documents.MOST,
        ),
    ),
    "memory and precision": (
        Demonstration(
            "recompute", "activations during a step: all kept, or recomputed", ("step",),
            recompute.animation, 2, 32, "the model's width",
        ),
        Demonstration(
            "bf16", "a master weight, and the number that is stored and sent", ("bf16", "fp16"),
            bf16.animation, 2, 32, "the model's width",
        ),
        Demonstration(
            "exact", "a sum in three orders: as floats, and on one grid", ("sum", "product"),
            exact.animation, 1, 6, "numbers in the sum", least_ranks=1, most_ranks=1, most=exact.MOST, on_gpu=True,
        ),
        Demonstration(
            "flash", "attention tile by tile: what is read and written", ("causal", "no mask", "standard"),
            flash.animation, 1, 48, "tokens", least_ranks=1, most_ranks=1, most=flash.MOST,
        ),
    ),
    "loosened steps": (
        Demonstration(
            "async", "a parameter server: who waits, and how stale gradients are",
            ("synchronous", "asynchronous", "bounded", "evidence"), parameter_server.animation, 4, 4,
            "how many times slower the last worker is", least_ranks=3, most_ranks=6, most=parameter_server.MOST,
        ),
        Demonstration(
            "compress", "gradients in few bytes: what is sent, what waits, what is lost",
            ("top-k", "1 bit", "low rank", "loss"), compress.animation, 4, 16, "numbers that are drawn",
            most=compress.MOST,
        ),
    ),
    "clusters and failures": (
        Demonstration(
            "deadlock", "which rank waits for which", ("send first", "odd recv first", "posted together"),
            deadlock.animation, 4, 2000, "numbers in a message", most=deadlock.MOST,
        ),
        Demonstration(
            "cluster", "one step on three clusters, wire by wire; tp across nodes",
            ("two nodes", "congested uplink", "one node"), cluster.animation, 8, 384, "the model's width",
            least_ranks=4, most=cluster.MOST,
        ),
        Demonstration(
            "failure", "a rank dies, and the run goes on; a save survives a power cut", ("die, go on", "save"),
            failure.animation, 4, 4, "steps between two checkpoints", most=failure.MOST,
        ),
    ),
}  # fmt: skip
DEMONSTRATIONS = {one.name: replace(one, group=group) for group, those in GROUPS.items() for one in those}
