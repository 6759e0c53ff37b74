"""The collectives as a user calls them: names and arguments of ``torch.distributed``.

Each checks its arguments, picks an algorithm, and runs it. Common to all:

- ``group``: the ranks that take part, always an argument. All of them must make the same calls in the same order.
- ``src``, ``dst``: ranks within that group, as in MPI (torch calls them ``group_src`` and ``group_dst``).
- ``async_op=True``: return a Work at once and continue in the background; the arrays belong to the collective until
  ``wait`` returns.
- ``algorithm``: one of the names in tables.py, or "auto". In a group on one node, "auto" chooses by the size of the
  buffer, from times measured here; in a group on several nodes it takes what is cheapest by nodes/cost.py. Arrays on
  GPUs go by NCCL if every rank has a GPU of its own (nccl/routes.py), and else through host memory.

Arrays are C-contiguous, of any numeric or bool dtype and any size, zero included. Every call returns None, or a Work
with ``async_op``.

Raises:
    TypeError, ValueError: for a bad argument, before anything is sent; the message names the argument and the fix.
    Mismatch: when another rank made a different call. The parent sees it as RankFailed.
"""

import enum
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate
from operator import index

import numpy as np

from minidist import backend
from minidist.comm import tables
from minidist.comm.arrays import check_array, dtype_name, overlap
from minidist.comm.group import ProcessGroup, check_group
from minidist.comm.nccl.routes import carries, run
from minidist.comm.nodes.cost import cheapest
from minidist.comm.nodes.placement import node_grid


class ReduceOp(enum.Enum):
    """How arrays are combined, elementwise. AVG is SUM divided by the number of ranks, only for floating point."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"

    def __init__(self, word: str) -> None:
        ufuncs = {"sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
        self.ufunc: np.ufunc = ufuncs[word]


# The buffer size up to which "auto" prefers few steps to few bytes: there the times of tree and ring cross, with 2 and
# with 4 ranks on two cores (benchmarks/transports.py). For larger buffers halving-doubling sends as little as the ring
# in fewer steps if N is a power of two; with 2 ranks both take the same number of steps.
FEW_STEPS_BYTES = 256 << 10


def broadcast(tensor, src: int, group: ProcessGroup, async_op: bool = False, *, algorithm: str = "auto"):
    """Overwrite ``tensor`` on every rank with that of rank ``src``."""
    call = Call("broadcast", group, algorithm, tables.BROADCAST, [tensor], f"src={src}")
    call.rank("src", src)
    flat = call.array("tensor", tensor, written=True)
    if call.by_nccl:
        return call.run_by_nccl(async_op, lambda nccl: nccl.broadcast(flat, src))
    method = call.choose("tree" if group.size == 1 or flat.nbytes <= FEW_STEPS_BYTES else "ring", flat.nbytes, src)
    return call.run(async_op, lambda inside: method(flat, src, inside))


def reduce(
    tensor, dst: int, op=ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False, *, algorithm="auto"
):
    """Overwrite ``tensor`` on rank ``dst`` with the combination of all ranks' tensors; the others keep theirs."""
    call = Call("reduce", group, algorithm, tables.REDUCE, [tensor], f"dst={dst}, {_name(op)}", op=op)
    call.rank("dst", dst)
    flat = call.array("tensor", tensor, written=group.rank == dst)
    check_op(op, flat.dtype, "reduce")
    if call.by_nccl:
        return call.run_by_nccl(async_op, lambda nccl: nccl.reduce(flat, dst, op))
    method = call.choose("tree", flat.nbytes, dst)

    def body(inside: ProcessGroup) -> None:
        method(flat, dst, op.ufunc, inside)
        if inside.rank == dst:
            _average(flat, op, inside)

    return call.run(async_op, body)


def all_reduce(tensor, op=ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False, *, algorithm="auto"):
    """Overwrite ``tensor`` on every rank with the combination of all ranks' tensors. All get the same bits.

    In float32 the bits of a sum depend on the order of its terms, and so on the algorithm and the number of ranks. In
    float64 with float32 terms they practically never do, so gradients are summed in float64.
    """
    call = Call("all_reduce", group, algorithm, tables.ALL_REDUCE, [tensor], _name(op), op=op)
    flat = call.array("tensor", tensor, written=True)
    check_op(op, flat.dtype, "all_reduce")
    if call.by_nccl:
        return call.run_by_nccl(async_op, lambda nccl: nccl.all_reduce(flat, op))
    few_bytes = "halving_doubling" if group.size > 2 and group.size.bit_count() == 1 else "ring"
    method = call.choose("tree" if group.size == 1 or flat.nbytes <= FEW_STEPS_BYTES else few_bytes, flat.nbytes)

    def body(inside: ProcessGroup) -> None:
        method(flat, op.ufunc, inside)
        _average(flat, op, inside)

    return call.run(async_op, body)


def reduce_scatter_tensor(
    output,
    input,
    op=ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
):
    """Combine all ranks' ``input``, and leave part ``rank`` of N equal parts of the result in ``output``.

    ``input`` has N times as many elements as ``output`` and does not change.
    """
    call = Call("reduce_scatter_tensor", group, algorithm, tables.REDUCE_SCATTER, [output, input], _name(op), op=op)
    flat_input = call.array("input", input)
    flat_output = call.array("output", output, written=True, read=False)
    check_op(op, flat_input.dtype, "reduce_scatter_tensor")
    call.same_dtype(output, input)
    call.elements("input", flat_input, flat_output.size * group.size, "the number of ranks times output's")
    if call.by_nccl:
        return call.run_by_nccl(async_op, lambda nccl: nccl.reduce_scatter(flat_output, flat_input, op))
    method = call.choose("direct" if flat_input.nbytes <= FEW_STEPS_BYTES else "ring", flat_input.nbytes)

    def body(inside: ProcessGroup) -> None:
        chunks = list(flat_input.reshape(inside.size, -1).copy()) if flat_input.size else [flat_input] * inside.size
        method(chunks, op.ufunc, inside)
        flat_output[:] = chunks[inside.rank]
        _average(flat_output, op, inside)

    return call.run(async_op, body)


def all_gather_into_tensor(output, input, group: ProcessGroup, async_op: bool = False, *, algorithm: str = "auto"):
    """Put every rank's ``input``, in rank order, into ``output``, which has N times as many elements."""
    call = Call("all_gather_into_tensor", group, algorithm, tables.ALL_GATHER, [output, input])
    flat_input = call.array("input", input)
    flat_output = call.array("output", output, written=True, read=False)
    call.same_dtype(output, input)
    call.elements("output", flat_output, flat_input.size * group.size, "the number of ranks times input's")
    if call.by_nccl:
        return call.run_by_nccl(async_op, lambda nccl: nccl.all_gather(flat_output, flat_input))
    method = call.choose("direct" if flat_output.nbytes <= FEW_STEPS_BYTES else "ring", flat_output.nbytes)

    def body(inside: ProcessGroup) -> None:
        chunks = list(flat_output.reshape(inside.size, flat_input.size))
        chunks[inside.rank][:] = flat_input
        method(chunks, inside)

    return call.run(async_op, body)


def all_to_all_single(
    output,
    input,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
):
    """Send part r of ``input`` to rank r, and receive part r of ``output`` from it.

    Parts are cut along the first axis: equal ones, or of the split sizes, one for each rank. Either all ranks pass
    split sizes or none does. With them no rank knows how much the others send, so that "auto" has nothing to choose
    by, and takes the pairwise exchange.
    """
    call = Call("all_to_all_single", group, algorithm, tables.ALL_TO_ALL, [output, input])
    # sizes may differ between ranks, so the description that all ranks must share omits them
    rows_in = call.array("input", input, described=False).reshape(input.shape)
    rows_out = call.array("output", output, written=True, read=False, described=False).reshape(output.shape)
    call.same_dtype(output, input)
    if group.size > 1 and overlap(rows_in, rows_out):
        rows_in = rows_in.copy()  # an early message must not overwrite data that leaves later
        call.held.append(rows_in)
    outgoing = _split(rows_in, input_split_sizes, group.size, "input")
    incoming = _split(rows_out, output_split_sizes, group.size, "output")
    if outgoing[group.rank].size != incoming[group.rank].size:
        raise ValueError(
            f"all_to_all_single: rank {group.rank} sends itself {outgoing[group.rank].size} elements but expects "
            f"{incoming[group.rank].size}; its own entries of input_split_sizes and output_split_sizes must agree"
        )
    split = input_split_sizes is not None or output_split_sizes is not None
    if split:
        call.largest_size = 0  # calls of as many sizes as there are splits count as one kind
    if call.by_nccl:
        return call.run_by_nccl(async_op, lambda nccl: nccl.all_to_all(outgoing, incoming))
    method = call.choose("pairwise", None if split else rows_in.nbytes)
    return call.run(async_op, lambda inside: method(outgoing, incoming, inside))


def scatter(
    tensor, scatter_list=None, src: int = 0, group: ProcessGroup | None = None, async_op=False, *, algorithm="auto"
):
    """Overwrite ``tensor`` on rank r with array r of rank ``src``'s ``scatter_list`` (None on other ranks)."""
    call = Call("scatter", group, algorithm, tables.SCATTER, [tensor], f"src={src}")
    call.rank("src", src)
    flat = call.array("tensor", tensor, written=True, read=False)
    pieces = call.array_list("scatter_list", scatter_list, flat, group.rank == src)
    if call.by_nccl:
        return call.run_by_nccl(async_op, lambda nccl: nccl.scatter(flat, pieces, src))
    method = call.choose("direct")
    return call.run(async_op, lambda inside: method(flat, pieces, src, inside))


def gather(
    tensor, gather_list=None, dst: int = 0, group: ProcessGroup | None = None, async_op=False, *, algorithm="auto"
):
    """Overwrite array r of rank ``dst``'s ``gather_list`` (None on other ranks) with rank r's ``tensor``."""
    call = Call("gather", group, algorithm, tables.GATHER, [tensor], f"dst={dst}")
    call.rank("dst", dst)
    flat = call.array("tensor", tensor)
    pieces = call.array_list("gather_list", gather_list, flat, group.rank == dst, written=True)
    if call.by_nccl:
        return call.run_by_nccl(async_op, lambda nccl: nccl.gather(flat, pieces, dst))
    method = call.choose("direct")
    return call.run(async_op, lambda inside: method(flat, pieces, dst, inside))


class Call:
    """One call of a collective: its checked arguments, its description, and the way to run it.

    Args:
        arrays: those that decide whether NCCL carries it.
        details: what all ranks must pass alike, in words.
        op: how arrays are combined, if they are.
    """

    def __init__(
        self, name: str, group, algorithm: str, methods: dict[str, Callable], arrays: list, *details: str, op=None
    ) -> None:
        check_group(group, name)
        if algorithm != "auto" and algorithm not in methods:
            raise ValueError(f"{name}: unknown algorithm {algorithm!r}; choose auto, {', '.join(methods)}")
        self.name, self.group, self.algorithm, self.methods = name, group, algorithm, methods
        self.details: list[str | tuple] = list(details)  # words, and the dtype and shape of an array
        self.nbytes = self.largest_size = 0  # of the largest array
        self.dtype = ""
        self.copies_back: list[Callable[[], None]] = []  # for arrays on a GPU
        self.by_nccl = carries(name, group, algorithm, arrays, op)
        self.held: list = []  # the arrays that NCCL reads and writes

    def array(self, argument: str, array, written: bool = False, read: bool = True, described: bool = True):
        """Check an argument and return it flat, in host memory: a view if it is there already, else a copy.

        With NCCL it stays on its device, and in a group of one rank, which sends nothing.

        Args:
            written: whether the collective changes it; the result is copied back when the call ends.
            read: whether the collective looks at what is in it before.
            described: whether all ranks must pass one of the same shape.
        """
        check_array(array, argument, self.name, written)
        if described:
            self.details.append((array.dtype, array.shape))
        if array.nbytes >= self.nbytes:
            self.nbytes, self.largest_size, self.dtype = array.nbytes, array.size, dtype_name(array.dtype)
        if self.by_nccl:
            if backend.on_host(array):
                raise TypeError(
                    f"{self.name}: tensor is on a GPU, but {argument} in host memory; copy one to the other"
                )
            self.held.append(array)
        if self.group.size == 1 and not backend.on_host(array):
            self.algorithm = "auto"  # some others make arrays of their own, in host memory
        if self.by_nccl or self.group.size == 1 or backend.on_host(array):
            return array.ravel()  # a view, since it is contiguous
        host = backend.to_host(array) if read else np.empty(array.shape, array.dtype)
        if written:
            self.copies_back.append(partial(backend.copy_from_host, array, host))
        return host.ravel()

    def array_list(self, argument: str, arrays, like: np.ndarray, needed: bool, written: bool = False):
        """Check a list of one array per rank, each like ``like``; None on a rank that needs no list."""
        if not needed:
            if arrays is not None:
                raise ValueError(f"{self.name}: only the root rank passes {argument}; pass None on the others")
            return None
        if not isinstance(arrays, list | tuple) or len(arrays) != self.group.size:
            raise ValueError(f"{self.name}: {argument} on the root must be a list of {self.group.size} arrays")
        pieces = [
            self.array(f"{argument}[{i}]", array, written, read=not written, described=False)
            for i, array in enumerate(arrays)
        ]
        for i, piece in enumerate(pieces):
            if (piece.dtype, piece.size) != (like.dtype, like.size):
                raise ValueError(
                    f"{self.name}: {argument}[{i}] has {piece.size} elements of {piece.dtype}, "
                    f"but tensor has {like.size} of {like.dtype}; they must agree"
                )
        return pieces

    def rank(self, argument: str, rank: int) -> None:
        if not 0 <= index(rank) < self.group.size:
            raise ValueError(
                f"{self.name}: {argument}={rank} is not a rank of this group of {self.group.size} "
                f"(0 to {self.group.size - 1}, counted within the group)"
            )

    def same_dtype(self, output, input) -> None:
        if output.dtype != input.dtype:
            raise TypeError(f"{self.name}: input is {input.dtype} but output is {output.dtype}; they must agree")

    def elements(self, argument: str, flat: np.ndarray, wanted: int, why: str) -> None:
        if flat.size != wanted:
            raise ValueError(f"{self.name}: {argument} must have {wanted} elements ({why}), but has {flat.size}")

    def choose(self, automatic: str, nbytes: int | None = None, root: int = 0) -> Callable:
        """The algorithm to run.

        Args:
            automatic: what "auto" means in a group on one node.
            nbytes: of the whole buffer, the same on all ranks; None if they differ, and "auto" cannot go by it.
            root: ``src`` or ``dst``, where there is one.
        """
        group = self.group
        if self.algorithm == "auto":
            simple = nbytes is None or group.is_on_one_node
            self.algorithm = (
                automatic if simple else cheapest(self.name, nbytes, group.nodes, group.transport.links, root)
            )
        if self.algorithm == tables.HIERARCHICAL:
            node_grid(group.nodes)  # raises where it cannot run, before anything is sent
        return self.methods[self.algorithm]

    def run(self, async_op: bool, body: Callable[[ProcessGroup], None]):
        """Run the algorithm, now or in the background; a group of one rank runs it too, without messages."""
        description = _describe(self.name, *self.details, self.algorithm)

        def whole(inside: ProcessGroup) -> None:
            body(inside)
            for copy_back in self.copies_back:
                copy_back()

        kind = self.name, self.dtype, self.largest_size
        return self.group.run_collective(description, self.nbytes, async_op, whole, kind)

    def run_by_nccl(self, async_op: bool, issue: Callable):
        """Let NCCL carry the call: ``issue(nccl)`` makes it on the group's communicator (nccl/communicator.py)."""
        description = _describe(self.name, *self.details, "nccl")
        kind = self.name, self.dtype, self.largest_size
        return run(self.group, description, self.nbytes, kind, self.held, async_op, issue)


@lru_cache(maxsize=1024)  # a training step makes the same few calls again and again
def _describe(name: str, *details: str | tuple) -> str:
    """The call in words: "all_reduce(SUM, float32 (256,), tree)"."""
    words = [detail if isinstance(detail, str) else f"{dtype_name(detail[0])} {detail[1]}" for detail in details]
    return f"{name}({', '.join(words)})"


def check_op(op, dtype: np.dtype, function: str) -> None:
    if not isinstance(op, ReduceOp):
        raise TypeError(f"{function}: op must be a ReduceOp such as ReduceOp.SUM, but is {op!r}")
    if dtype.kind == "f":  # everything is possible
        return
    if op is ReduceOp.AVG and dtype.kind != "c":
        raise TypeError(f"{function}: AVG of {dtype} would round; use SUM and divide as you need")
    if op in (ReduceOp.MIN, ReduceOp.MAX) and dtype.kind == "c":
        raise TypeError(f"{function}: complex numbers have no {op.name}")


def _average(flat: np.ndarray, op: ReduceOp, group: ProcessGroup) -> None:
    if op is ReduceOp.AVG:
        flat /= group.size


def _name(op) -> str:
    return op.name if isinstance(op, ReduceOp) else repr(op)


def _split(array: np.ndarray, sizes: list[int] | None, parts: int, argument: str) -> list[np.ndarray]:
    """The parts of an array along its first axis, as flat views."""
    length = len(array) if array.ndim else 1
    if sizes is None:
        if length % parts:
            raise ValueError(
                f"all_to_all_single: {parts} ranks do not divide the {length} rows of {argument}; "
                f"pass {argument}_split_sizes"
            )
        sizes = [length // parts] * parts
    if len(sizes) != parts or sum(sizes) != length or min(sizes) < 0:
        raise ValueError(
            f"all_to_all_single: {argument}_split_sizes must be {parts} sizes that add up to the {length} rows of "
            f"{argument}, but is {list(sizes)}"
        )
    array = array.reshape(length, -1) if array.size else array.reshape(length, 0)
    ends = accumulate(map(int, sizes))
    return [array[end - size : end].reshape(-1) for size, end in zip(sizes, ends, strict=True)]
