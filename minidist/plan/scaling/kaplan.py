"""The scaling laws of Kaplan et al. ("Scaling Laws for Neural Language Models", 2020, arXiv 2001.08361).

They came first, and gave most of a larger budget to a larger model: N ~ C^0.73 where Hoffmann et al. found C^0.5. What
makes the difference: N and C count no embeddings here, which are most of a small model (Pearce and Song, 2024, arXiv
2406.12907); warm-up was as long for small models as for large ones; and neither batch nor learning rate was tuned for
each size (Porian et al., 2024, arXiv 2406.19146). Losses are nats per BPE token of WebText2: no other law's compare.
"""

from minidist.plan.scaling.laws import FLOPS_PER_PARAMETER, Training, check

PETAFLOP_DAY = 1e15 * 24 * 3600  # FLOPs: 8.64e19

C_C, ALPHA_C = 3.1e8, 0.050  # L(C_min) = (C_c / C_min)^alpha_C, of PF-days (equation 1.3)
# The best size (table 6): N_opt = 1.3e9 C_min^0.73
N_E, SIZE_EXPONENT = 1.3e9, 0.73


def optimum(flops: float) -> Training:
    """The best model for a budget C, trained at the critical batch size, and L(C_min).

    Small batches would need C_min FLOPs for the same loss, in many more steps; at the critical batch size a run takes
    C = 2 C_min in twice the fewest steps (section 5.1). N follows from C_min, D = C / 6N from all that is computed.
    """
    check(flops=flops)
    c_min = flops / 2 / PETAFLOP_DAY
    parameters = N_E * c_min**SIZE_EXPONENT
    return Training(parameters, flops / (FLOPS_PER_PARAMETER * parameters), (C_C / c_min) ** ALPHA_C)
