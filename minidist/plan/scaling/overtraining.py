"""What a model costs that is smaller than the best one and trained for longer, and when its inference pays that back.

A model that is used computes 2 N FLOPs for each token of inference. A smaller one with the same loss needs more
training and less inference (Sardana et al., "Beyond Chinchilla-Optimal", 2024, arXiv 2401.00448). FLOPs are counted
alike wherever they are computed, though real inference reaches a smaller share of the peak than training does.

What is simplified: the law is taken far beyond the tokens per parameter that it was fitted to, where Sardana et al.
found that such fits promise too much of additional tokens. Tokens are all new ones.
"""

from dataclasses import dataclass
from math import exp, log

from minidist.plan.scaling.laws import INFERENCE_FLOPS_PER_PARAMETER, ScalingLaw, Training, check

HALVINGS = 200  # of an interval of sizes: beyond the last bit of a float


@dataclass(frozen=True)
class Overtraining:
    """A model beside the one that reaches the same loss for the fewest training FLOPs."""

    model: Training
    cheapest: Training

    @property
    def extra_flops(self) -> float:
        """What its training costs more."""
        return self.model.flops - self.cheapest.flops

    @property
    def overhead(self) -> float:
        """Extra FLOPs as a share of the cheapest training."""
        return self.extra_flops / self.cheapest.flops

    @property
    def break_even_tokens(self) -> float:
        """Tokens of inference from which on training and inference together cost less than those of the cheapest.

        Raises:
            ValueError: for a model that is not smaller, which no inference pays back.
        """
        saved = INFERENCE_FLOPS_PER_PARAMETER * (self.cheapest.parameters - self.model.parameters)
        if saved <= 0:
            raise ValueError(
                f"{self.model.parameters:.3g} parameters are not below the {self.cheapest.parameters:.3g} of the "
                "cheapest training for this loss: inference pays nothing back"
            )
        return self.extra_flops / saved


def overtraining(law: ScalingLaw, parameters: float, tokens: float) -> Overtraining:
    """A run beside the cheapest one with its loss."""
    model = law.training(parameters, tokens)
    return Overtraining(model, law.cheapest(model.loss))


def smaller_model(law: ScalingLaw, flops: float, share: float) -> Overtraining:
    """A model with this share of the best one's parameters for a budget, trained until it has the same loss.

    Raises:
        ValueError: if it never has.
    """
    check(share=share)
    best = law.optimum(flops)
    parameters = share * best.parameters
    return Overtraining(Training(parameters, law.tokens_to_reach(best.loss, parameters), best.loss), best)


def cheapest_with_inference(law: ScalingLaw, loss: float, inference_tokens: float) -> Training:
    """The model with this loss whose training and inference together take the fewest FLOPs: 6 N D + 2 N T.

    Along the iso-loss curve, dD/dN = -(D / N) r with r = (alpha A / N^alpha) / (beta B / D^beta). The sum is lowest
    where its derivative, 6 D (1 - r) + 2 T, is 0. It grows with N, from the smallest size that reaches the loss to the
    size that is best without inference, where r = 1. So halving finds it.
    """
    check(inference_tokens=inference_tokens)
    low, high = log(law.smallest(loss)), log(law.cheapest(loss).parameters)

    def too_small(parameters: float) -> bool:
        rest = loss - law.E - law.A * parameters**-law.alpha
        if rest <= 0:  # at the end of the interval, from rounding
            return True
        tokens = (law.B / rest) ** (1 / law.beta)
        r = law.alpha * law.A * parameters**-law.alpha / (law.beta * rest)
        return 3 * tokens * (r - 1) > inference_tokens

    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_small(exp(middle)) else (low, middle)
    return Training(exp(high), law.tokens_to_reach(loss, exp(high)), loss)
