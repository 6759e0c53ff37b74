"""Flat arrays of parameters that ranks can shard: what ZeRO's stages are made of."""

from collections.abc import Callable, Iterator

from minidist import ledger
from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Module, Parameter
from minidist.nn.precision.policy import current
from minidist.nn.tensor import Tensor
from minidist.overrides import overridable
from minidist.parallel.tools.flat import views_of


def held(kind: str, array):
    """The array, entered into the memory ledger."""
    ledger.hold(kind, array)
    return array


@overridable
def shard_slice(elements: int, rank: int, ranks: int) -> slice:
    """Which part of a flat array a rank owns, when it is padded at its end so that all parts are equally long."""
    each = -(-elements // ranks)  # rounded up
    return slice(rank * each, (rank + 1) * each)


class ModulePart:
    """Some of a module's parameters, with the module's hooks: what one of several owners sees of it.

    A hook that is set here is called after one that the module has already.

    Args:
        module: what runs.
        holds: which of its parameters are meant.
    """

    def __init__(self, module: Module, holds: Callable[[Parameter], bool]) -> None:
        self.module, self.holds = module, holds

    def parameters(self) -> list[Parameter]:
        return [parameter for parameter in self.module.parameters() if self.holds(parameter)]

    @property
    def forward_pre_hook(self) -> Callable[[], None] | None:
        return self.module.forward_pre_hook

    @forward_pre_hook.setter
    def forward_pre_hook(self, hook: Callable[[], None]) -> None:
        self.module.register_forward_pre_hook(hook)

    @property
    def forward_hook(self) -> Callable[[Tensor], Tensor] | None:
        return self.module.forward_hook

    @forward_hook.setter
    def forward_hook(self, hook: Callable[[Tensor], Tensor]) -> None:
        earlier = self.module.forward_hook
        self.module.forward_hook = lambda output: hook(output if earlier is None else earlier(output))


class Unit:
    """Some parameters in one flat array, padded at its end so that the ranks own equal shards of it.

    Args:
        module: what runs with them.
        parameters: in their order in the array.
        group: the ranks that share it.
        reduce_dtype: of the gradients while they are summed.

    Attributes:
        master: this rank's part of the parameters, (shard_size,) float32: what the optimizer updates.
        full: all parameters, (padded_size,), as the model computes with them: float32, or the bits of the 16-bit format
            of the policy in force (``autocast``). None while resharded.
        grad_shard: this rank's part of the summed gradients, (shard_size,) of reduce_dtype.
        pieces: for each parameter that overlaps the shard, that part as a Parameter of the same name, whose data and
            gradient are views of ``master`` and ``grad_shard``.
    """

    def __init__(self, module: Module, parameters: list[Parameter], group: ProcessGroup, reduce_dtype) -> None:
        self.module, self.parameters, self.group, self.reduce_dtype = module, parameters, group, reduce_dtype
        self.size = sum(parameter.size for parameter in parameters)
        self.mine = shard_slice(self.size, group.rank, group.size)
        self.shard_size = self.mine.stop - self.mine.start
        self.padded_size = self.shard_size * group.size
        self.format = current().compute
        self.full = xp.zeros(self.padded_size, parameters[0].dtype if parameters else xp.float32)
        for parameter, view in zip(parameters, self.views(self.full), strict=True):
            view[...] = parameter.data
            parameter.format = self.format
        self.master = self.full[self.mine]
        if self.format is not None:
            self.master = held("optimizer", self.master.copy())
            self.full = self.format.encode(self.full)
        self.show(self.full)
        self.grad_shard = held("gradients", xp.zeros(self.shard_size, reduce_dtype))
        self.grads = None  # (padded_size,) of reduce_dtype: the gradients of all parameters, while there are any
        self.pieces = list(self._pieces())

    @property
    def shard(self):
        """This rank's shard of the parameters as the model computes with it, (shard_size,): what other ranks gather."""
        return self.master if self.format is None else self.format.encode(self.master)

    def views(self, flat) -> list:
        """Each parameter's part of a flat array, in the parameter's shape."""
        return views_of(flat, [parameter.shape for parameter in self.parameters])

    def show(self, flat) -> None:
        """Make the parameters views of a flat array."""
        ledger.hold("parameters", flat)
        for parameter, view in zip(self.parameters, self.views(flat), strict=True):
            parameter.stored = view

    def overlapping(self) -> Iterator[tuple[Parameter, int, int, int]]:
        """Each parameter that overlaps this rank's shard: where it begins in the flat array, and from where to where
        of that array the overlap is."""
        start = 0
        for parameter in self.parameters:
            first = max(start, self.mine.start)
            last = min(start + parameter.size, self.mine.stop)
            if first < last:
                yield parameter, start, first, last
            start += parameter.size

    def parts(self) -> Iterator[tuple[Parameter, slice]]:
        """Each parameter that overlaps this rank's shard, and where in the shard it is."""
        for parameter, _, first, last in self.overlapping():
            yield parameter, slice(first - self.mine.start, last - self.mine.start)

    def stretches(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield (name, (start, stop)) of this rank's part of each flattened parameter."""
        for parameter, start, first, last in self.overlapping():
            yield parameter.name, (first - start, last - start)

    def _pieces(self) -> Iterator[Parameter]:
        for parameter, place in self.parts():
            piece = Parameter((0,), decay=parameter.decay)
            piece.name, piece.data = parameter.name, self.master[place]
            yield piece

    def keep_shard_alone(self) -> None:
        """Keep this rank's shard of the parameters, and reshard the rest."""
        if self.format is None:
            self.master = held("parameters", self.master.copy())  # until here a view of all
        for piece, (_, place) in zip(self.pieces, self.parts(), strict=True):
            piece.data = self.master[place]
        self.reshard()

    def reshard(self) -> None:
        """Free the full parameters. Until the next all-gather they read as NaN, so accidental use is visible."""
        self.full = None
        for parameter in self.parameters:
            hole = xp.full((), xp.nan, parameter.dtype)
            hole = hole if self.format is None else self.format.encode(hole)
            parameter.stored = xp.broadcast_to(hole, parameter.shape)  # the right shape, in four bytes or two

    def clear_shard(self) -> None:
        """Begin a step: nothing is left of the last step's gradients."""
        self.grad_shard[:] = 0
        for piece in self.pieces:
            piece.grad = None

    def begin_gradients(self) -> None:
        """All gradients are zero, and views of one flat array."""
        self.grads = held("gradients", xp.zeros(self.padded_size, self.reduce_dtype))
        for parameter, view in zip(self.parameters, self.views(self.grads), strict=True):
            parameter.grad = view

    def collect(self, parameter: Parameter) -> None:
        """Move a parameter's gradient to its place in the flat array."""
        if self.grads is None:
            self.grads = held("gradients", xp.zeros(self.padded_size, self.reduce_dtype))
        view = self.views(self.grads)[self.parameters.index(parameter)]
        view[...] = parameter.grad
        parameter.grad = None

    def take_gradients(self):
        """Hand over the unit's gradients, (padded_size,), zeros where there are none. The unit keeps none."""
        grads = self.grads if self.grads is not None else xp.zeros(self.padded_size, self.reduce_dtype)
        self.grads = None
        for parameter in self.parameters:
            parameter.grad = None
        return grads

    def show_gradients(self) -> None:
        """Make the pieces' gradients views of the summed shard."""
        for piece, (_, place) in zip(self.pieces, self.parts(), strict=True):
            piece.grad = self.grad_shard[place]
