"""Averaging, SGD, AdamW and the learning-rate schedule: from summed gradients to the next weights.

One step reads

    model.zero_grad()
    ...                                             # forward and backward of all micro-batches
    average_gradients(parameters, micro_batches)
    clip_grad_norm(parameters, max_norm)            # clip.py
    optimizer.lr = warmup_cosine(step, ...)
    optimizer.step()

Everything here is elementwise, so a full parameter and any slice of it get the same bits.
"""

from collections.abc import Iterable, Sequence
from math import cos, pi, sqrt

from minidist import ledger, trace
from minidist.backend import xp
from minidist.nn.kernels import fused, rounded, together
from minidist.nn.layers import Parameter
from minidist.overrides import overridable


def average_gradients(parameters: Iterable[Parameter], count: float) -> None:
    """Turn summed gradients into their mean: ``grad = grad / count``, rounded once to the parameter's dtype.

    This is the only place where gradients are averaged. ``grad`` becomes a new array; the array of the sum, such as a
    communication buffer, does not change.

    Args:
        parameters: parameters with summed gradients; those without a gradient are skipped.
        count: number of micro-batches in the sum, over all ranks; one whose targets do not all count adds a fraction.

    Raises:
        ValueError: if ``count`` is not above 0.
    """
    if not count > 0:
        raise ValueError(f"the number of micro-batches must be above 0, got {count}")
    with together():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = ledger.enter("gradients", rounded(parameter.grad, parameter.dtype, count))


def sgd_update(data, grad, momentum_buffer, lr: float, momentum: float, weight_decay: float = 0.0) -> None:
    """Take one step of stochastic gradient descent on one array, in place, as in ``torch.optim.SGD``.

    Args:
        data, grad, momentum_buffer: the weights, their gradient, and its running sum; all of one shape. The sum is None
            without momentum.
        weight_decay: see ``adamw_update``. (torch adds it to the gradient, and so to the running sum.)
    """
    if momentum:
        momentum_buffer *= momentum
        momentum_buffer += grad
        grad = momentum_buffer
    if weight_decay:
        data *= 1 - lr * weight_decay
    data -= lr * grad


@overridable
def adamw_update(
    data, grad, exp_avg, exp_avg_sq, step: int, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> None:
    """Take one step of AdamW on one array, in place (Loshchilov & Hutter, 2019), as in ``torch.optim.AdamW``.

    Args:
        data, grad, exp_avg, exp_avg_sq: the weights, their gradient, and the running means of it and its square; all of
            one shape.
        step: counted from 1, for the bias correction of the running means, which start at 0.
        weight_decay: the share of ``lr * data`` that is subtracted from the weights, independently of the gradient.
    """
    beta1, beta2 = betas
    correction1, correction2 = 1 - beta1**step, sqrt(1 - beta2**step)
    shrink = 1 - lr * weight_decay  # factor of the weights
    _adamw(
        grad, beta1, 1 - beta1, beta2, 1 - beta2, correction2, eps, lr / correction1, shrink, data, exp_avg, exp_avg_sq
    )


@fused(
    "T grad, T beta1, T rest1, T beta2, T rest2, T correction2, T eps, T rate, T shrink",
    "T data, T exp_avg, T exp_avg_sq",
    """
    exp_avg = exp_avg * beta1 + grad * rest1;
    exp_avg_sq = exp_avg_sq * beta2 + grad * grad * rest2;
    data = data * shrink - exp_avg / (sqrt(exp_avg_sq) / correction2 + eps) * rate;
    """,
)
def _adamw(grad, beta1, rest1, beta2, rest2, correction2, eps, rate, shrink, data, exp_avg, exp_avg_sq) -> None:
    exp_avg *= beta1
    scratch = grad * rest1
    exp_avg += scratch
    exp_avg_sq *= beta2
    xp.multiply(grad, grad, out=scratch)
    scratch *= rest2
    exp_avg_sq += scratch

    xp.sqrt(exp_avg_sq, out=scratch)
    scratch /= correction2
    scratch += eps
    xp.divide(exp_avg, scratch, out=scratch)
    scratch *= rate
    if shrink != 1:
        data *= shrink
    data -= scratch


class Optimizer:
    """Base class of optimizers, which update parameters by their gradients.

    Args:
        parameters: parameters to train; each needs a unique name.
        lr: the learning rate, an attribute that may change before each step.
        weight_decay: weight decay of the parameters with ``decay``.
        states: names of the arrays to keep for each parameter; they start at zero.

    Attributes:
        steps: number of steps taken.
        kinds: state, such as ``exp_avg.`` -> the arrays of all parameters, by name.
    """

    def __init__(self, parameters: Iterable[Parameter], lr: float, weight_decay: float, states: Sequence[str]) -> None:
        self.parameters = list(parameters)
        self.lr, self.weight_decay, self.steps = lr, weight_decay, 0
        self.kinds = {
            f"{state}.": {parameter.name: xp.zeros_like(parameter.data) for parameter in self.parameters}
            for state in states
        }

    def step(self) -> None:
        """Update each parameter that has a gradient. Without any gradient it does not count as a step."""
        trained = [parameter for parameter in self.parameters if parameter.grad is not None]
        self.steps += bool(trained) or not self.parameters  # a rank without parameters counts steps like the others
        with together():
            for parameter in trained:
                self.update(parameter, self.weight_decay if parameter.decay else 0.0)

    def update(self, parameter: Parameter, weight_decay: float) -> None:
        """Update one parameter by its gradient."""
        raise NotImplementedError

    def state(self) -> dict:
        """Return every array of the optimizer, by name: ``exp_avg.<parameter>`` and so on."""
        return {f"{kind}{name}": array for kind, arrays in self.kinds.items() for name, array in arrays.items()}


class SGD(Optimizer):
    """Stochastic gradient descent, with decoupled weight decay. Without momentum it keeps no arrays.

    Args:
        momentum: the share of the last step's direction that the next step keeps. Others: see ``Optimizer``.
    """

    def __init__(
        self, parameters: Iterable[Parameter], lr: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, weight_decay, ("momentum_buffer",) if momentum else ())
        self.momentum = momentum

    def update(self, parameter: Parameter, weight_decay: float) -> None:
        arrays = 5 if self.momentum else 3  # reads two or three, writes one or two
        trace.kernel("sgd", 0, arrays * parameter.data.nbytes)
        buffer = self.kinds["momentum_buffer."][parameter.name] if self.momentum else None
        sgd_update(parameter.data, parameter.grad, buffer, self.lr, self.momentum, weight_decay)


class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Args:
        betas: the share of each running mean (of the gradient and of its square) that a step keeps.
        eps: added to the square root of the second running mean. Others: see ``Optimizer``.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(parameters, lr, weight_decay, ("exp_avg", "exp_avg_sq"))
        self.betas, self.eps = betas, eps
        self.exp_avg, self.exp_avg_sq = self.kinds["exp_avg."], self.kinds["exp_avg_sq."]

    def update(self, parameter: Parameter, weight_decay: float) -> None:
        trace.kernel("adamw", 0, 7 * parameter.data.nbytes)  # reads four arrays, writes three of them
        averages = self.exp_avg[parameter.name], self.exp_avg_sq[parameter.name]
        settings = self.steps, self.lr, self.betas, self.eps, weight_decay
        adamw_update(parameter.data, parameter.grad, *averages, *settings)


def warmup_cosine(step: int, steps: int, peak: float, warmup: int = 0, final: float = 0.0) -> float:
    """Return the learning rate of one step: linear warm-up to ``peak``, then half a cosine down to ``final``.

    Args:
        step: counted from 0.
        steps: total steps of the run; later steps stay at ``final``.
        peak: the highest rate, reached at step ``warmup``.
        warmup: number of steps before ``peak``; each raises the rate by ``peak / (warmup + 1)``, the first from 0.
        final: the rate at the end.
    """
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return final + (peak - final) * (1 + cos(pi * progress)) / 2


def warmup_stable_decay(
    step: int, steps: int, peak: float, warmup: int = 0, decay: int = 0, final: float = 0.0
) -> float:
    """Return the learning rate of one step: linear warm-up to ``peak``, a plateau, then linear decay to ``final``.

    Before the decay it does not depend on the length of the run, so a run can be prolonged from there. (Hu et al.,
    "MiniCPM", 2024, section 4; Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
    Durations", 2024.) If warm-up and decay overlap in a short run, the lower rate applies.

    Args:
        step, steps, peak, warmup, final: see ``warmup_cosine``; ``final`` is reached in the last step.
        decay: number of last steps, in which the rate falls; 0 for a constant rate.
    """
    rising = min(1.0, (step + 1) / (warmup + 1))
    falling = max(0, step + 1 - (steps - decay)) / max(1, decay)
    return min(peak * rising, peak + (final - peak) * min(1.0, falling))
