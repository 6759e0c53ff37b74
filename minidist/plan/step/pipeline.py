"""How long a pipeline takes, from what its ranks need for one micro-batch.

naive                      m times all stages, one after another
gpipe, 1f1b, interleaved   m slots of the slowest rank, and a slot of each other one over v (Narayanan et al., 2021)
zb-h1                      products for the gradients of weights (W) fill the end: of F + I + W for each other rank
                           F + I - W is left, and F at least (Qi et al., 2023, arXiv 2401.10241, section 2)

These are exact where all ranks are alike, or the last one, which has the head, is the slowest. Where another one is,
1F1B ends a little earlier, because that rank runs forwards ahead while the others work. ZB-H1 needs at least as many
micro-batches as ranks. (tests/plan/test_planned_steps.py plays the schedules.)
"""


def pipeline_seconds(
    schedule: str, virtual: int, micro_batches: int, slots: list[float], forward_share: float, weight_share: float
) -> tuple[float, float]:
    """Seconds in which the slowest rank works, and in which it is idle.

    Args:
        slots: of each rank, seconds of forward and backward of one micro-batch through all of its stages.
        forward_share, weight_share: of a slot, the shares of forward and of backward's products for weights.
    """
    slowest = max(slots)
    working = micro_batches * slowest
    others = sum(slots) - slowest
    if schedule == "naive":
        return working, micro_batches * others
    if schedule == "zb-h1":
        after = (1 - forward_share - weight_share) * others + weight_share * (slots[0] - len(slots) * slowest)
        return working, forward_share * others + max(0.0, after)
    return working, others / virtual
