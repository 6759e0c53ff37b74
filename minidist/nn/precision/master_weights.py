"""Master weights: the optimizer trains float32 weights, while the model computes with copies in 16 bits.

bfloat16 numbers near 1 are 0.0078 apart. An update of 0.001 is less than half of that, so it does not change a 16-bit
weight at all, however often it is repeated. So the sum of all updates is kept in float32, and rounded to 16 bits after
each step (Micikevicius et al., "Mixed Precision Training", 2018, section 3.1; in Megatron-LM the
``Float16OptimizerWithFloat16Params``).
"""

from collections.abc import Sequence

from minidist import ledger
from minidist.nn.layers import Parameter
from minidist.nn.precision.formats import Format
from minidist.overrides import overridable


class MasterWeights:
    """float32 copies of parameters, which are themselves stored in a smaller format from now on.

    Args:
        parameters: the model's, float32 so far; changed here.
        format: the format in which the model stores them.

    Attributes:
        masters: what the optimizer trains: for each parameter one of the same name, in float32.
    """

    def __init__(self, parameters: Sequence[Parameter], format: Format) -> None:
        self.parameters = list(parameters)
        self.masters = []
        for parameter in self.parameters:
            master = Parameter((0,), decay=parameter.decay)
            master.name, master.data = parameter.name, parameter.data
            ledger.hold("optimizer", master.data)
            self.masters.append(master)
            parameter.format = format
        self.sync_params()

    def take_gradients(self) -> None:
        """Before the optimizer's step: give the masters the gradients of the model's parameters."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad

    def sync_params(self) -> None:
        """After the optimizer's step: set the model's parameters to the masters, rounded."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.data = master.data
            ledger.hold("parameters", parameter.stored)


master_weights = overridable(MasterWeights)  # makes them, or its override
