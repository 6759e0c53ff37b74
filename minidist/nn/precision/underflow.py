"""Loss scaling and master weights, which keep small numbers from being lost in 16 bits.

**Loss scaling** keeps float16 gradients out of the range where they underflow. The smallest float16 number is 6e-8, and
many gradients of activations are smaller. So the loss is multiplied by a large power of two before backward, which
multiplies every gradient by it, and the parameters' gradients are divided by it before use. Both are exact unless a
value becomes subnormal. If the scale is too large, a gradient overflows to infinity: then the step is skipped and the
scale is halved. After many steps without overflow it is doubled. bfloat16 has the range of float32 and needs none of
this.

**Master weights**: the optimizer trains float32 weights, while the model computes with copies in 16 bits. bfloat16
numbers near 1 are 0.0078 apart. An update of 0.001 is less than half of that, so it does not change a 16-bit weight at
all, however often it is repeated. So the sum of all updates is kept in float32, and rounded to 16 bits after each step.

Micikevicius et al., "Mixed Precision Training" (2018), sections 3.2 and 3.1. Names: ``torch.amp.GradScaler``; in
Megatron-LM ``Float16OptimizerWithFloat16Params``.
"""

from collections.abc import Callable, Iterable, Sequence

from minidist import ledger
from minidist.backend import xp
from minidist.nn.kernels import reduced
from minidist.nn.layers import Parameter
from minidist.nn.loss import identity
from minidist.nn.precision.formats import Format
from minidist.overrides import overridable


class GradScaler:
    """Scale of the loss, and the rule by which it changes.

    Args:
        init_scale: the first scale, a power of two.
        growth_factor, backoff_factor: multiply the scale after many good steps, and after an overflow.
        growth_interval: good steps in a row before the scale grows; with 0 the scale never changes.
        enabled: False for a scaler that does nothing.

    Attributes:
        skipped: number of steps that were skipped.
    """

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        self.enabled, self.scale, self.growth_interval = enabled, init_scale if enabled else 1.0, growth_interval
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.good_steps = 0  # since the scale last changed
        self.skipped = 0

    def unscale(self, parameters: Iterable[Parameter], all_max: Callable = identity) -> bool:
        """Divide all gradients by the scale, in place. Return whether a gradient of any process has overflowed.

        Args:
            parameters: parameters with gradients; those without are skipped.
            all_max: function that joins a float with those of the processes with other gradients, so that all agree.
        """
        if not self.enabled:
            return False
        finite = []
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= self.scale
                finite.append(reduced(xp.all, xp.isfinite(parameter.grad)))
        overflow = bool(finite) and not xp.stack(finite).all()
        return all_max(float(overflow)) > 0

    def update(self, overflow: bool) -> None:
        """Change the scale after a step if it is due, and count the step as skipped if it overflowed."""
        self.skipped += overflow
        if not self.enabled or not self.growth_interval:
            return
        if overflow:
            self.scale *= self.backoff_factor
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale *= self.growth_factor
            self.good_steps = 0


grad_scaler = overridable(GradScaler)


class MasterWeights:
    """float32 copies of parameters; the parameters themselves are stored in a smaller format.

    Args:
        parameters: the model's parameters in float32; their format changes here.
        format: the format in which the model stores them.

    Attributes:
        masters: float32 parameters for the optimizer to train, one for each parameter and of the same name.
    """

    def __init__(self, parameters: Sequence[Parameter], format: Format) -> None:
        self.parameters = list(parameters)
        self.masters = []
        for parameter in self.parameters:
            master = Parameter((0,), decay=parameter.decay)
            master.name, master.data = parameter.name, parameter.data
            ledger.enter("optimizer", master.data)
            self.masters.append(master)
            parameter.format = format
        self.sync_params()

    def take_gradients(self) -> None:
        """Give the masters the gradients of the model's parameters, before the optimizer's step."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad

    def sync_params(self) -> None:
        """Set the model's parameters to the rounded masters, after the optimizer's step."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.data = master.data
            ledger.enter("parameters", parameter.stored)


master_weights = overridable(MasterWeights)
