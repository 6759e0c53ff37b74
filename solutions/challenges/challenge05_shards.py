"""Challenge 5: the least traffic of a sharded model that fits into a given memory.

This file begins as the library's answer. Change whatever you like, and see what it brings: ``minidist challenge 5``.

A model consists of units, and a step of m micro-batches on each of N ranks. For a unit of P parameters:

    weights     whole: 2 P bytes, all-gathered once a step          sharded: 2 P / N, all-gathered twice a micro-batch
    gradients   whole: 2 P bytes, reduce-scattered once a step      sharded: 2 P / N, reduce-scattered every micro-batch
    optimizer   always sharded: 12 P / N bytes

A rank also needs room for the largest unit whose weights are sharded, gathered: 2 P bytes; and for the largest whose
gradients are sharded, before they are reduced: 2 P. An all-gather or reduce-scatter of a unit sends 2 P (N-1) / N
bytes. The score is the bytes that a rank sends in a step: the geometric mean over several models.
"""

from collections.abc import Sequence

WHOLE, SHARDED = 0, 1


def choose_shards(parameters: Sequence[int], ranks: int, micro_batches: int, memory: int) -> list[tuple[int, int]]:
    """Choose what each unit shards.

    Args:
        parameters: P of each unit.
        ranks: N.
        micro_batches: m.
        memory: the bytes of a rank; the most sharded model fits.

    Returns:
        For each unit (weights, gradients), each of them WHOLE or SHARDED.
    """
    stages = [(WHOLE, WHOLE), (WHOLE, SHARDED), (SHARDED, SHARDED)]  # ZeRO 1, 2, 3: the same for every unit
    for weights, gradients in stages:
        held = sum(parameters) * (12 / ranks + 2 / ranks**weights + 2 / ranks**gradients)
        if held + 2 * max(parameters) * (weights + gradients) <= memory:
            break
    return [(weights, gradients)] * len(parameters)
