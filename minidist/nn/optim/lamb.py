"""LAMB: AdamW whose step on each weight matrix has the learning rate as its length relative to the matrix.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020, arXiv 1904.00962),
algorithm 2. With large batches one learning rate does not fit all layers: where weights are small relative to their
update, a step changes them too much. So the update u of each matrix w, AdamW's including weight decay, is multiplied by
its *trust ratio*:

    w = w - lr (|w| / |u|) u

The norms are those of the full matrix, of which a rank may hold a shard. A float sum over shards would depend on how
the matrix is cut, and one different bit in a ratio changes all of the matrix. So squares are added as integers, as
for the gradient norm (clip.py): first the largest |x| of each matrix over all ranks, then the sums.

Parameters without weight decay (biases, norms, positions) take AdamW's step, ratio 1, as in the authors' code. The
paper's function phi of |w| is the identity here; its other form bounds |w| from both sides.

Whether it is needed is disputed: tuned as carefully, Adam matches it at large batches, on BERT too (Nado et al., 2021,
arXiv 2102.06356).
"""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite, sqrt

import numpy as np

from minidist import trace
from minidist.backend import xp
from minidist.nn.layers import Parameter
from minidist.nn.loss import identity
from minidist.nn.optim.clip import NotFinite, grid_scale, largest_magnitude, squares_on_grid
from minidist.nn.optim.optimizers import AdamW
from minidist.overrides import overridable

Join = Callable[[np.ndarray], np.ndarray]  # joins a vector with those of the processes with other shards


def lamb_direction(
    data, grad, exp_avg, exp_avg_sq, step: int, betas: tuple[float, float], eps: float, weight_decay: float
):
    """Return LAMB's update u of one array, or of any slice of it, as a new array. The running means change in place.

    Arguments: see ``adamw_update``; here the update includes weight decay, and has no learning rate.
    """
    beta1, beta2 = betas
    exp_avg *= beta1
    exp_avg += grad * (1 - beta1)
    exp_avg_sq *= beta2
    exp_avg_sq += xp.multiply(grad, grad) * (1 - beta2)
    denominator = xp.sqrt(exp_avg_sq) / sqrt(1 - beta2**step) + eps
    update = exp_avg / (1 - beta1**step) / denominator
    if weight_decay:
        update += weight_decay * data
    return update


@overridable
def trust_ratios(
    weights: Mapping, updates: Mapping, sizes: Mapping[str, int], all_max: Join = identity, all_sum: Join = identity
) -> dict[str, float]:
    """Return |w| / |u| of each full matrix; 1 if one of the two is 0. All processes get the same bits.

    Args:
        weights, updates: name -> the shard that this process counts; all processes together count each element once.
        sizes: matrix name -> number of elements, in one order on all processes. Some may not be in ``weights``.
        all_max, all_sum: functions that join a vector, elementwise, with those of the processes that count other
            shards: float64, and int64 with sums below 2^62.

    Raises:
        NotFinite: if a weight or an update is not finite, on all processes.
    """
    of_weights, of_updates = norms(weights, sizes, all_max, all_sum), norms(updates, sizes, all_max, all_sum)
    return {name: _ratio(of_weights[name], of_updates[name]) for name in sizes}


def _ratio(weight: float, update: float) -> float:
    return weight / update if weight and update else 1.0


def norms(
    shards: Mapping, sizes: Mapping[str, int], all_max: Join = identity, all_sum: Join = identity
) -> dict[str, float]:
    """Return each full array's Euclidean norm, by sums of integers over shards. Arguments: see ``trust_ratios``."""
    held = {name: array for name, array in shards.items() if array.size}
    magnitudes = [float(largest_magnitude(held[name])) if name in held else 0.0 for name in sizes]
    largest = dict(zip(sizes, map(float, all_max(np.array(magnitudes, np.float64))), strict=True))
    for name, value in largest.items():
        if not isfinite(value):
            raise NotFinite(f"LAMB: {name}, or its update, is not finite. A lower learning rate may help")
    scales = {name: grid_scale(largest[name], sizes[name]) if largest[name] else 1.0 for name in sizes}
    squares = [int(squares_on_grid(held[name], scales[name])) if name in held else 0 for name in sizes]
    totals = all_sum(np.array(squares, np.int64))
    return {name: sqrt(int(total)) / scales[name] for name, total in zip(sizes, totals, strict=True)}


class LAMB(AdamW):
    """LAMB: AdamW, with each matrix's step scaled by its trust ratio. Its states are AdamW's.

    Args:
        sizes: parameter name -> elements of the full parameter, in one order on all processes.
        all_max, all_sum: see ``trust_ratios``.
        owns: whether this process counts a parameter, or its shard of it, in a norm.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        sizes: Mapping[str, int],
        all_max: Join = identity,
        all_sum: Join = identity,
        owns: Callable[[Parameter], bool] = lambda parameter: True,
        **settings,
    ) -> None:
        super().__init__(parameters, lr, **settings)
        self.sizes, self.all_max, self.all_sum, self.owns = dict(sizes), all_max, all_sum, owns

    def step(self) -> None:
        """Update each parameter that has a gradient. All processes that hold shards call it together."""
        trained = [parameter for parameter in self.parameters if parameter.grad is not None]
        self.steps += bool(trained) or not self.parameters
        updates = {parameter.name: self._direction(parameter) for parameter in trained}
        counted = {parameter.name: parameter for parameter in trained if parameter.decay and self.owns(parameter)}
        weights = {name: parameter.data for name, parameter in counted.items()}
        ratios = trust_ratios(
            weights, {name: updates[name] for name in counted}, self.sizes, self.all_max, self.all_sum
        )
        for parameter in trained:
            ratio = ratios[parameter.name] if parameter.decay else 1.0
            parameter.data -= (self.lr * ratio) * updates[parameter.name]

    def _direction(self, parameter: Parameter):
        trace.kernel("lamb", 0, 12 * parameter.data.nbytes)  # seven passes like AdamW's, two for norms, three to apply
        return lamb_direction(
            parameter.data,
            parameter.grad,
            self.exp_avg[parameter.name],
            self.exp_avg_sq[parameter.name],
            self.steps,
            self.betas,
            self.eps,
            self.weight_decay if parameter.decay else 0.0,
        )
