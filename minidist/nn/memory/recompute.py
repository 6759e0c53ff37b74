"""Activation recomputation: save less in forward, and compute it again in backward when it is needed.

``checkpoint(function, *inputs)`` runs a function whose operations forget what they saved for backward. When backward
reaches the first of them, the function runs once more, from its inputs, which were kept, and every operation gets back
what it had saved. The graph does not change, and neither do the bits: the same operations run on the same numbers, and
dropout is the same because its random numbers are keyed by name (nn/random.py).

    none        a block keeps everything                          about s b h (34 + 5 a s / h) bytes, see below
    selective   attention keeps only queries, keys and values     about s b h 34
    full        a block keeps only its input                      s b h 2, and one more forward pass to compute

Those are the bytes of one block in 16 bits, with s tokens, b samples, h the width and a heads (Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", 2022, section 4). Selective recomputation is theirs:
what depends on s squared takes most of the memory and little time to compute. The blocks here save the same, with two
differences (tests/nn/test_recompute.py counts them, to the byte):

- 3 a s / h in place of 5: the softmax after dropout is not saved, but multiplied again in backward.
- Statistics come on top, 4 bytes per row: 8 s b for the two norms, 4 a s b for the softmax.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); PyTorch's ``torch.utils.checkpoint`` with
``use_reentrant=False``. Simplified: the function is always run to its end.
"""

from collections.abc import Callable
from functools import partial

from minidist import flops, trace
from minidist.nn.gpt import GPT
from minidist.nn.memory.saved import Known, Saved, enter, load, saving
from minidist.nn.precision.policy import Policy, autocast, current
from minidist.nn.tensor import Tensor, grad_mode
from minidist.overrides import overridable

MODES = ("none", "selective", "full")


@overridable
def checkpoint(function: Callable[..., Tensor], *inputs) -> Tensor:
    """``function(*inputs)``, of which only the inputs are kept for backward.

    Args:
        function: called again in backward. It must then do what it did: use the same parameters, and no random
            numbers but those that have a name. That other operations are done, or of other shapes, is noticed and an
            error; that they come in another order may not be.
        inputs: tensors, whose arrays are kept, and anything else.
    """
    region = Region(function, inputs)
    with saving(region.forget):
        return function(*inputs)


class Region:
    """One call under ``checkpoint``: the operations that have forgotten what they saved, and what brings it back."""

    def __init__(self, function: Callable[..., Tensor], inputs: tuple) -> None:
        self.function, self.policy = function, current()
        self.inputs = [Input(value, self.policy) if isinstance(value, Tensor) else value for value in inputs]
        self.forgotten: list[Saved] = []

    def forget(self, saved: Saved, known: Known) -> None:
        """What becomes of what an operation saves in forward."""
        saved.forget(self.run_again)
        self.forgotten.append(saved)

    def run_again(self) -> None:
        """Give every operation back what it had saved."""
        forgotten = iter(self.forgotten)

        def give_back(again: Saved, known: Known) -> None:
            saved = next(forgotten, None)
            if saved is None or (saved.operation, saved.shape) != (again.operation, again.shape):
                had = "nothing more" if saved is None else f"{saved.operation} of shape {saved.shape}"
                raise RuntimeError(
                    f"checkpoint: run again, the function did {again.operation} of shape {again.shape} where it had "
                    f"done {had}. It must do the same each time, whatever has changed in between"
                )
            again.store(known)
            again.hand_over(saved)

        inputs = [value.tensor() if isinstance(value, Input) else value for value in self.inputs]
        with (
            trace.span("recompute"),
            flops.phase("recompute"),
            grad_mode(True),
            saving(give_back),
            autocast(self.policy),
        ):
            self.function(*inputs)
        if (missing := next(forgotten, None)) is not None:
            raise RuntimeError(
                f"checkpoint: run again, the function did not do {missing.operation} of shape {missing.shape} as "
                "before. It must do the same each time, whatever has changed in between"
            )
        self.forgotten, self.inputs = [], []


class Input:
    """A tensor that a checkpointed function got, without the graph behind it."""

    def __init__(self, tensor: Tensor, policy: Policy) -> None:
        self.requires_grad, self.made_under, self.unrounded = tensor.requires_grad, tensor.made_under, tensor.unrounded
        stays = tensor.made_under is policy and tensor.unrounded
        self.kept = tensor.pack(policy) if policy.packs(tensor.data) and not stays else tensor.data
        enter(self.kept)

    def tensor(self) -> Tensor:
        again = Tensor(load(self.kept), self.requires_grad)
        again.made_under, again.unrounded = self.made_under, self.unrounded
        return again


def recompute_blocks(model: GPT, mode: str) -> None:
    """Have a model's blocks recompute activations in backward.

    Args:
        mode: one of MODES.

    Raises:
        ValueError: for another.
    """
    if mode not in MODES:
        raise ValueError(f"recompute={mode}: choose from {', '.join(MODES)}")
    for block in model.blocks:
        if mode == "full":
            block.forward = partial(checkpoint, block.forward)
        elif mode == "selective":
            block.attention.core = partial(checkpoint, block.attention.core)
