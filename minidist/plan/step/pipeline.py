"""How long a pipeline takes, from what its ranks need for one micro-batch.

naive                      m times all stages, one after another
gpipe, 1f1b, interleaved   m slots of the slowest rank, and a slot of each other one over v (Narayanan et al., 2021)
zb-h1                      products for the gradients of weights (W) fill what was idle: of F + B + W for each other
                           rank F + B - W is left (Qi et al., 2023, arXiv 2401.10241, table 1)

These are exact where all ranks are alike, or the last one, which has the head, is the slowest. Where another one is,
1F1B ends a little earlier, because that rank runs forwards ahead while the others work. ZB-H1 needs at least as many
micro-batches as ranks. (tests/plan/test_planned_pipeline.py plays the schedules.)
"""


def pipeline_seconds(
    schedule: str, virtual: int, micro_batches: int, slots: list[float], weight_share: float
) -> tuple[float, float]:
    """Seconds in which the slowest rank works, and in which it is idle.

    Args:
        slots: of each rank, seconds of forward and backward of one micro-batch through all of its stages.
        weight_share: of a slot, the share of backward's products for weights.
    """
    slowest = max(slots)
    working = micro_batches * slowest
    others = sum(slots) - slowest
    if schedule == "naive":
        return working, micro_batches * others
    if schedule == "zb-h1":
        return working, others * max(0.0, 1 - 2 * weight_share)
    return working, others / virtual
