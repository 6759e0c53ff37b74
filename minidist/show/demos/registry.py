"""All demonstrations, in the order of the menu."""

from collections.abc import Callable
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
    expert_parallel,
    failure,
    flash,
    menu,
    parameter_server,
    pipeline,
    recompute,
    tensor_parallel,
    zero,
)
from minidist.show.demos.collectives import kinds
from minidist.show.demos.demonstration import Demonstration
from minidist.show.demos.shared.runs import RANKS


def _collective(kind: kinds.Kind, about: str) -> Demonstration:
    return Demonstration(
        kind.name, about, partial(collectives.animation, kind), 4, 4, "numbers in each chunk", most=10**4
    )


def _lanes(name: str, about: str, animation: Callable) -> Demonstration:
    return Demonstration(name, about, animation, RANKS, 96, "the model's width")


def _memory(name: str, about: str, animation: Callable, ranks: int) -> Demonstration:
    return Demonstration(name, about, animation, ranks, 32, "the model's width")


DEMONSTRATIONS = {
    demonstration.name: replace(
        demonstration, group=menu.GROUP_OF[demonstration.name], scenes=menu.SCENES[demonstration.name]
    )
    for demonstration in (
        _collective(kinds.BROADCAST, "rank 0's array on every rank: tree, naive, ring"),
        _collective(kinds.ALL_REDUCE, "the ring all-reduce, chunk by chunk"),
        _collective(kinds.REDUCE_SCATTER, "one chunk of the sum on each rank"),
        _collective(kinds.ALL_GATHER, "every rank's chunk on every rank"),
        _collective(kinds.ALL_TO_ALL, "a different chunk from every rank to every other"),
        _lanes("dp", "all-reduces hidden under backward: overlapped, bucketed, naive", data_parallel.animation),
        _memory("zero", "what each rank holds during a step, in every stage", zero.animation, 4),
        _lanes("tp", "heads split over ranks: two all-reduces per block in each pass", tensor_parallel.tp),
        _lanes("sp", "tokens split over ranks as well: less activation memory", tensor_parallel.sp),
        Demonstration(
            "cp", "tokens split in every layer: ring attention, and zigzag", context_parallel.animation, 4, 8,
            "tokens in each chunk of zigzag", most=context_parallel.MOST,
        ),
        Demonstration(
            "ep", "tokens travel to their experts and back; balance on and off", expert_parallel.animation, 4, 2,
            "tokens on each rank", most=expert_parallel.MOST,
        ),
        Demonstration(
            "pp", "pipelines: five schedules and their bubbles", pipeline.animation, pipeline.RANKS, 8, "micro-batches"
        ),
        _memory("recompute", "activations during a step: all kept, or recomputed", recompute.animation, 2),
        _memory("bf16", "the bits of a master weight, and those stored and sent", bf16.animation, 2),
        Demonstration(
            "flash", "attention tile by tile: what is read and written", flash.animation, 1, 48, "tokens",
            least_ranks=1, most_ranks=1, most=flash.MOST,
        ),
        Demonstration(
            "async", "a parameter server: who waits, and how stale gradients are", parameter_server.animation, 4, 4,
            "how many times slower the last worker is", least_ranks=3, most_ranks=6,
            most=parameter_server.MOST,
        ),
        Demonstration(
            "compress", "gradients in few bytes: what is sent, what waits, what is lost", compress.animation, 4, 16,
            "the numbers that are drawn", most=compress.MOST,
        ),
        Demonstration(
            "deadlock", "which rank waits for which", deadlock.animation, 4, 2000, "numbers in a message",
            most=deadlock.MOST,
        ),
        Demonstration(
            "cluster", "one step on three clusters, wire by wire; tp across nodes", cluster.animation, 8, 384,
            "the model's width", least_ranks=4, most=cluster.MOST,
        ),
        Demonstration(
            "failure", "a rank dies, and the run goes on; a save survives a power cut", failure.animation, 4, 4,
            "steps between two checkpoints", most=failure.MOST,
        ),
    )
}  # fmt: skip
