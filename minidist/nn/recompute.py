"""Activation recomputation: save less in forward, and compute the rest again in backward when it is needed.

``checkpoint(function, *inputs)`` runs a function whose operations forget what they saved for backward. When backward
reaches the first of them, the function runs once more, from its inputs, which were kept, and every operation gets back
what it had saved. The graph does not change, and neither do the bits: the same operations run on the same numbers, and
dropout is the same because its random numbers are keyed by name (nn/random.py).

    none        a block keeps everything                          about s b h (34 + 5 a s / h) bytes, see below
    selective   attention keeps only queries, keys and values     about s b h 34
    full        a block keeps only its input                      s b h 2, and one more forward pass to compute

Those are the bytes of one block in 16 bits, with s tokens, b samples, h the width and a heads (Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", 2022, section 4). Selective recomputation is theirs:
arrays of s squared elements take most of the memory and little time to compute. The blocks here save the same, with two
differences (tests/nn/test_recompute.py counts them, to the byte):

- 3 a s / h in place of 5: the softmax after dropout is not saved, but multiplied again in backward.
- Statistics come on top, 4 bytes per row: 8 s b for the two norms, 4 a s b for the softmax.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); PyTorch's ``torch.utils.checkpoint`` with
``use_reentrant=False``. Simplified: the function is always run to its end.
"""

from collections.abc import Callable
from functools import partial

from minidist import flops, ledger, trace
from minidist.nn.gpt import GPT
from minidist.nn.modes import Mode, within
from minidist.nn.precision.policy import Packed, Policy, SixteenBits, autocast, current, unpacked
from minidist.nn.tensor import Context, Tensor, grad_mode
from minidist.overrides import overridable

MODES = ("none", "selective", "full")


@overridable
def checkpoint(function: Callable[..., Tensor], *inputs) -> Tensor:
    """Return ``function(*inputs)``, and keep only the inputs for backward.

    Args:
        function: called again in backward, where it must do the same: use the same parameters, and no random numbers
            but those that have a name. Other operations or shapes raise RuntimeError; another order of the operations
            may go unnoticed.
        inputs: tensors, whose arrays are kept, and any other values.
    """
    with within(Region(function, inputs)):
        return function(*inputs)


class Region(Mode):
    """One call under ``checkpoint``: operations that have forgotten their saved arrays, and how to restore them."""

    def __init__(self, function: Callable[..., Tensor], inputs: tuple) -> None:
        self.function, self.policy = function, current()
        self.inputs = [Input(value, self.policy) if isinstance(value, Tensor) else value for value in inputs]
        self.forgotten: list[Context] = []

    def after(self, ctx, arguments, arrays, output, tensor):
        if ctx.saved and not callable(ctx.saved):
            ctx.saved = partial(self.bring_back, ctx)
            self.forgotten.append(ctx)

    def bring_back(self, ctx: Context) -> tuple:
        self.run_again()
        return ctx.saved

    def run_again(self) -> None:
        """Run the function again, and give every operation back what it had saved."""
        again = Again(self.forgotten)
        inputs = [value.tensor() if isinstance(value, Input) else value for value in self.inputs]
        with trace.span("recompute"), flops.phase("recompute"), grad_mode(True), autocast(self.policy), within(again):
            self.function(*inputs)
        again.hand_over()
        self.forgotten, self.inputs = [], []


class Again(Mode):
    """The second run of a function: matches each operation with the one that has forgotten its arrays."""

    def __init__(self, forgotten: list[Context]) -> None:
        self.forgotten, self.done = forgotten, []

    def after(self, ctx, arguments, arrays, output, tensor):
        if not ctx.saved or callable(ctx.saved):
            return
        before = self.forgotten[len(self.done)] if len(self.done) < len(self.forgotten) else None
        if before is None or (before.function, before.shape) != (ctx.function, ctx.shape):
            had = "nothing more" if before is None else f"{before.name} of shape {before.shape}"
            raise RuntimeError(
                f"checkpoint: run again, the function did {ctx.name} of shape {ctx.shape} where it had done {had}. "
                "It must do the same each time, whatever has changed in between"
            )
        self.done.append(ctx)

    def hand_over(self) -> None:
        """Give the arrays that were saved again to the operations that had forgotten them."""
        if len(self.done) < len(self.forgotten):
            missing = self.forgotten[len(self.done)]
            raise RuntimeError(
                f"checkpoint: run again, the function did not do {missing.name} of shape {missing.shape} as before. "
                "It must do the same each time, whatever has changed in between"
            )
        for before, again in zip(self.forgotten, self.done, strict=True):
            before.saved, before.exact, again.saved = again.saved, again.exact, ()
        self.done = []  # its nodes hold this mode, and would keep the inputs until a garbage collection


class Input:
    """Tensor that a checkpointed function got, without the graph behind it."""

    def __init__(self, tensor: Tensor, policy: Policy) -> None:
        self.requires_grad, self.made_under, self.unrounded = tensor.requires_grad, tensor.made_under, tensor.unrounded
        packs = policy.packs(tensor.data) and not (tensor.made_under is policy and tensor.unrounded)
        self.kept = policy.packed(tensor) if packs and isinstance(policy, SixteenBits) else tensor.data
        ledger.enter("activations", self.kept.codes if isinstance(self.kept, Packed) else self.kept)

    def tensor(self) -> Tensor:
        again = Tensor(unpacked(self.kept), self.requires_grad)
        again.made_under, again.unrounded = self.made_under, self.unrounded
        return again


def recompute_blocks(model: GPT, mode: str) -> None:
    """Make a model's blocks recompute activations in backward.

    Args:
        mode: one of MODES.

    Raises:
        ValueError: for any other mode.
    """
    if mode not in MODES:
        raise ValueError(f"recompute={mode}: choose from {', '.join(MODES)}")
    for block in model.blocks:
        if mode != "none":
            module = block if mode == "full" else block.attention.core
            module.forward = partial(checkpoint, module.forward)
