"""The loss of a trained model from its parameters N and its tokens D: L(N, D) = E + A / N^alpha + B / D^beta.

This is "approach 3" of Hoffmann et al. ("Training Compute-Optimal Large Language Models", 2022, arXiv 2203.15556,
section 3.3). E is the entropy of the text, which no model gets below; A / N^alpha is the loss added by the finite size
of the model, and B / D^beta the loss added by the finite number of tokens. Training takes C = 6 N D FLOPs: 2 N for each
token in forward, 4 N in backward. So a budget C leaves one choice, N, and the best one has a closed form.

N counts all parameters, embeddings too. Losses are in nats per token of one tokenizer on one text: only exponents and
tokens per parameter carry over to others, with care. D counts tokens as if none were seen twice.

Further down: the cost of a model that is smaller than the best one and trained for longer, and the inference that pays
it back. A model in use computes 2 N FLOPs for each token of inference. A smaller one with the same loss needs more
training and less inference (Sardana et al., "Beyond Chinchilla-Optimal", 2024, arXiv 2401.00448). FLOPs of training and
inference count alike, though real inference reaches a smaller share of the peak. Simplified: the law is taken far
beyond the tokens per parameter that it was fitted to, where Sardana et al. found that such fits promise too much of
additional tokens. No token is seen twice.
"""

from dataclasses import dataclass
from math import exp, isclose, isfinite, log

import numpy as np

FLOPS_PER_PARAMETER = 6  # for each token of training: 2 in forward, 4 in backward
INFERENCE_FLOPS_PER_PARAMETER = 2  # for each token: forward alone
PETAFLOP_DAY = 1e15 * 24 * 3600  # FLOPs: 8.64e19
C_C, ALPHA_C = 3.1e8, 0.050  # L(C_min) = (C_c / C_min)^alpha_C, of PF-days (equation 1.3)
N_E, SIZE_EXPONENT = 1.3e9, 0.73  # the best size, N_opt = 1.3e9 C_min^0.73 (table 6)
SAME_SIZE = 1e-6  # relative difference of sizes: extra FLOPs are as its square, so below rounding
HALVINGS = 200  # of an interval of sizes: more than a float has bits


@dataclass(frozen=True)
class Training:
    """Size of a model, the tokens of its training, and its loss by a law or as measured.

    Attributes:
        parameters: N. tokens: D.
        loss: nats per token.
    """

    parameters: float
    tokens: float
    loss: float

    @property
    def flops(self) -> float:
        """C = 6 N D."""
        return FLOPS_PER_PARAMETER * self.parameters * self.tokens

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters


@dataclass(frozen=True)
class ScalingLaw:
    """Scaling law L(N, D) = E + A / N^alpha + B / D^beta, with its constants.

    Attributes:
        E: loss of an infinite model after infinitely many tokens, nats per token.
        A, alpha: constants of the term of the parameters. B, beta: constants of the term of the tokens.
        source: where the constants were read.

    Raises:
        ValueError: for a constant that is not positive and finite.
    """

    name: str
    E: float
    A: float
    B: float
    alpha: float
    beta: float
    source: str = ""

    def __post_init__(self) -> None:
        check(E=self.E, A=self.A, B=self.B, alpha=self.alpha, beta=self.beta)

    def loss(self, parameters, tokens):
        """Loss L(N, D) in nats per token, elementwise over numbers or arrays that broadcast."""
        check(parameters=parameters, tokens=tokens)
        return self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta

    def training(self, parameters: float, tokens: float) -> Training:
        """Return a model of this size trained on ``tokens`` tokens, with its loss."""
        return Training(parameters, tokens, self.loss(parameters, tokens))

    @property
    def size_exponent(self) -> float:
        """Exponent a of N_opt ~ C^a; tokens grow with C^(1 - a). At 0.5 both grow alike."""
        return self.beta / (self.alpha + self.beta)

    def optimum(self, flops: float) -> Training:
        """Return the model with the lowest loss for a budget C, and its tokens.

        With D = C / 6N, the loss is lowest where alpha A / N^alpha = beta B / D^beta. So (section 3.3, equation 4)

            N = G (C/6)^(beta / (alpha + beta)),  D = (C/6) / N,  G = (alpha A / beta B)^(1 / (alpha + beta))
        """
        check(flops=flops)
        product = flops / FLOPS_PER_PARAMETER  # N D
        g = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        parameters = g * product**self.size_exponent
        return self.training(parameters, product / parameters)

    def optimal_tokens(self, parameters: float) -> float:
        """Tokens D of the budget for which a model of this size is the best one."""
        check(parameters=parameters)
        balance = self.alpha * self.A * parameters**-self.alpha  # alpha A / N^alpha = beta B / D^beta
        return (self.beta * self.B / balance) ** (1 / self.beta)

    def times_optimal_tokens(self, parameters: float, tokens: float) -> float:
        """Tokens of a run over the optimal ones of its size: above 1 it is over-trained, below 1 under-trained."""
        check(tokens=tokens)
        return tokens / self.optimal_tokens(parameters)

    def cheapest(self, loss: float) -> Training:
        """Return the model that reaches a loss with the fewest training FLOPs: the inverse of ``optimum``.

        At the optimum both terms are s / alpha and s / beta for one s, so loss - E = s (1 / alpha + 1 / beta).

        Raises:
            ValueError: for a loss that no model reaches.
        """
        self._check_reachable(loss)
        s = (loss - self.E) / (1 / self.alpha + 1 / self.beta)
        return self.training((self.alpha * self.A / s) ** (1 / self.alpha), (self.beta * self.B / s) ** (1 / self.beta))

    def tokens_to_reach(self, loss: float, parameters: float) -> float:
        """Tokens after which a model of this size has this loss: a point of the iso-loss curve.

        Raises:
            ValueError: for a loss that no model, or none of this size, reaches; names the smallest size that does.
        """
        self._check_reachable(loss)
        check(parameters=parameters)
        rest = loss - self.E - self.A * parameters**-self.alpha
        if rest <= 0:
            raise ValueError(
                f"{parameters:.3g} parameters never reach a loss of {loss:g} under {self.name}, however many tokens: "
                f"that takes more than {self.smallest(loss):.3g}"
            )
        return (self.B / rest) ** (1 / self.beta)

    def smallest(self, loss: float) -> float:
        """Number of parameters below which no number of tokens reaches a loss."""
        self._check_reachable(loss)
        return (self.A / (loss - self.E)) ** (1 / self.alpha)

    def _check_reachable(self, loss: float) -> None:
        check(loss=loss)
        if loss <= self.E:
            raise ValueError(
                f"no model reaches a loss of {loss:g} under {self.name}: its irreducible loss E is {self.E:g}"
            )


def check(**values) -> None:
    """Raise ValueError if a number, or an element of an array, is not positive and finite."""
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            if not (np.isfinite(value) & (value > 0)).all():
                raise ValueError(f"{name} must be positive and finite, got {value}")
        elif not (isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value:g}")


@dataclass(frozen=True)
class Overtraining:
    """Comparison of a model with the one that reaches the same loss with the fewest training FLOPs."""

    model: Training
    cheapest: Training

    @property
    def extra_flops(self) -> float:
        """Training FLOPs beyond those of the cheapest."""
        return self.model.flops - self.cheapest.flops

    @property
    def overhead(self) -> float:
        """Extra FLOPs as a share of the cheapest training."""
        return self.extra_flops / self.cheapest.flops

    @property
    def break_even_tokens(self) -> float:
        """Tokens of inference beyond which training and inference together cost less than those of the cheapest.

        Raises:
            ValueError: for a model that is not smaller, whose extra FLOPs no inference pays back.
        """
        saved = INFERENCE_FLOPS_PER_PARAMETER * (self.cheapest.parameters - self.model.parameters)
        if saved <= 0:
            raise ValueError(
                f"{self.model.parameters:.3g} parameters are not fewer than the {self.cheapest.parameters:.3g} of the "
                "cheapest training for this loss: inference saves nothing"
            )
        return self.extra_flops / saved


def overtraining(law: ScalingLaw, parameters: float, tokens: float) -> Overtraining:
    """Compare a run with the cheapest one of the same loss; with itself if the two differ by rounding alone."""
    model = law.training(parameters, tokens)
    cheapest = law.cheapest(model.loss)
    return Overtraining(model, model if isclose(parameters, cheapest.parameters, rel_tol=SAME_SIZE) else cheapest)


def cheapest_with_inference(law: ScalingLaw, loss: float, inference_tokens: float) -> Training:
    """Return the model with this loss whose training and inference together take the fewest FLOPs: 6 N D + 2 N T.

    Along the iso-loss curve, dD/dN = -(D / N) r with r = (alpha A / N^alpha) / (beta B / D^beta). The sum is lowest
    where its derivative, 6 D (1 - r) + 2 T, is 0. It grows with N, from the smallest size that reaches the loss to the
    size that is best without inference, where r = 1. So halving finds it.
    """
    check(inference_tokens=inference_tokens)
    low, high = log(law.smallest(loss)), log(law.cheapest(loss).parameters)

    def too_small(parameters: float) -> bool:
        rest = loss - law.E - law.A * parameters**-law.alpha
        if rest <= 0:  # by rounding, at the end of the interval
            return True
        tokens = (law.B / rest) ** (1 / law.beta)
        r = law.alpha * law.A * parameters**-law.alpha / (law.beta * rest)
        return 3 * tokens * (r - 1) > inference_tokens

    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_small(exp(middle)) else (low, middle)
    return Training(exp(high), law.tokens_to_reach(loss, exp(high)), loss)


HOFFMANN = ScalingLaw(
    "hoffmann",
    E=1.69,
    A=406.4,
    B=410.7,
    alpha=0.34,
    beta=0.28,
    source="Hoffmann et al., 2022, arXiv 2203.15556, equation 10: as printed, with two digits of the exponents",
)
HOFFMANN_UNROUNDED = ScalingLaw(
    "hoffmann-unrounded",
    E=1.6934,
    A=406.4,
    B=410.7,
    alpha=0.3392,
    beta=0.2849,
    source="the same fit with four digits, from the paper's TeX source, as given by Besiroglu et al., arXiv 2404.10102",
)
BESIROGLU = ScalingLaw(
    "besiroglu",
    E=1.8172,
    A=482.01,
    B=2085.43,
    alpha=0.3478,
    beta=0.3658,
    source="Besiroglu et al., 'Chinchilla Scaling: A replication attempt', 2024, arXiv 2404.10102: 240 runs read off "
    "Hoffmann's figure 4",
)
LAWS = {law.name: law for law in (HOFFMANN, HOFFMANN_UNROUNDED, BESIROGLU)}


def kaplan_optimum(flops: float) -> Training:
    """Return the best model for a budget C by Kaplan et al. (2020, arXiv 2001.08361), at the critical batch size.

    They came first, and gave most of a larger budget to a larger model: N ~ C^0.73 where Hoffmann et al. found C^0.5.
    The reasons: N and C count no embeddings here, which are most of a small model (Pearce and Song, 2024, arXiv
    2406.12907); warm-up was as long for small models as for large ones; and neither batch nor learning rate was tuned
    for each size (Porian et al., 2024, arXiv 2406.19146). The loss is L(C_min), in nats per BPE token of WebText2, so
    it cannot be compared with those of other laws.

    Small batches would need C_min FLOPs for the same loss, in many more steps; at the critical batch size a run takes
    C = 2 C_min in twice the fewest steps (section 5.1). N follows from C_min, and D = C / 6N from the whole budget.
    """
    check(flops=flops)
    c_min = flops / 2 / PETAFLOP_DAY
    parameters = N_E * c_min**SIZE_EXPONENT
    return Training(parameters, flops / (FLOPS_PER_PARAMETER * parameters), (C_C / c_min) ** ALPHA_C)
