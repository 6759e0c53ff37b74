"""What precision knows of a tensor: under which policy it was made, and its 16 bits once someone has saved them."""

from minidist.nn.precision.policy import Packed, Policy


class Stamped:
    """What every Tensor has beside its ``data``.

    Attributes:
        made_under: the policy under which an operation put the tensor out; None for a leaf.
        unrounded: whether it came out unrounded: a term of a sum, say.
    """

    made_under: Policy | None = None
    unrounded = False
    packed: Packed | None = None

    def cast(self, policy: Policy):
        """The array as an operation under this policy takes it: rounded, unless it comes from one under the same."""
        return self.data if self.made_under is policy else policy.round(self.data)

    def pack(self, policy: Policy) -> Packed:
        """The array in the policy's 16 bits; made once, if an operation has put it out: a leaf may change."""
        if self.packed is not None and self.packed.format is policy.compute:
            return self.packed
        packed = policy.pack(self.data)
        if self.made_under is not None:
            self.packed = packed
        return packed
