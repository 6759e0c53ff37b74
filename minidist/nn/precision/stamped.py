"""What mixed precision records about a tensor: its policy, and its 16 bits once an operation has saved it."""

from minidist.nn.precision.policy import Packed, Policy
from minidist.products import multiplies_codes


class Stamped:
    """The part of every Tensor that mixed precision needs.

    Attributes:
        made_under: the policy of the operation that computed the tensor; None for a leaf.
        unrounded: whether it was left unrounded, as a term of a sum, say.
    """

    made_under: Policy | None = None
    unrounded = False
    packed: Packed | None = None

    def cast(self, policy: Policy):
        """The array as an operation under this policy uses it: rounded, unless it was computed under the same one."""
        return self.data if self.made_under is policy else policy.round(self.data)

    def factor(self, policy: Policy):
        """The same, as ``policy.matmul`` takes it."""
        return self.pack(policy) if policy.packs(self) and multiplies_codes() else self.cast(policy)

    def pack(self, policy: Policy) -> Packed:
        """The array in the policy's 16 bits. Cached for an operation's output, but not for a leaf, which may change."""
        if self.packed is not None and self.packed.format is policy.compute:
            return self.packed
        packed = policy.pack(self.data)
        if self.made_under is not None:
            self.packed = packed
        return packed
