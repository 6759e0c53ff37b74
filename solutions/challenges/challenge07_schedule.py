"""Challenge 7: the smallest bubble within a limit on activations.

This file begins as the library's answer. Change whatever you like, use whatever minidist offers, and see what it
brings: ``minidist challenge 7``.

A rank's layers are one stage, or are cut into v stages, the same number v on every rank, 1 to 4. Any rank may have any
stages. The actions of a stage are F, B, I and W, as in chapter 7: F, I and W take 1 / v slots, B takes 2 / v. Messages
take no time. From F to B, or to W, a stage holds the activations of a micro-batch, 1 / v of what a rank's layers need.
The score is the bubble, the share of all ranks' time in which they are idle: the mean over several pipelines.
"""

from minidist.parallel.tools.schedule_check import bubble, check_schedule, in_flight, timeline
from minidist.parallel.tools.schedules import Action, schedule


def choose_schedule(ranks: int, micro_batches: int, limit: int) -> list[list[str]]:
    """Return the actions of each rank, in order.

    Args:
        ranks: of the pipeline, at least 2.
        micro_batches: at least as many.
        limit: how many micro-batches' activations a rank can hold at once, for all of its layers; 2 or more, and often
            less than ``ranks``.

    Returns:
        For each rank its actions, written as in "2F0": stage 2's forward of micro-batch 0.
    """
    if limit >= ranks:
        actions = schedule("zb-h1", ranks, micro_batches)  # holds ``ranks`` micro-batches, however many would fit
    else:
        actions = [one_f_one_b(rank, min(ranks - 1 - rank, limit - 1), micro_batches) for rank in range(ranks)]
    return [[str(action) for action in of_rank] for of_rank in actions]


def one_f_one_b(rank: int, ahead: int, micro_batches: int) -> list[Action]:
    """1F1B with so many forwards before the first backward."""
    actions = [Action(rank, "F", i) for i in range(ahead)]
    for i in range(micro_batches - ahead):
        actions += [Action(rank, "F", ahead + i), Action(rank, "B", i)]
    return actions + [Action(rank, "B", i) for i in range(micro_batches - ahead, micro_batches)]
