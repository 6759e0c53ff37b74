"""The collectives as a user calls them: names and arguments of ``torch.distributed``.

Each function checks its arguments, picks an algorithm from the table below, and runs it. Common to all:

- ``group``: the ranks that take part, always an argument. All of them must make the same calls in the same order.
- ``src``, ``dst``: ranks within that group, as in MPI (torch calls them ``group_src`` and ``group_dst``).
- ``async_op=True``: return a Work at once and continue in the background; the arrays belong to the collective until
  ``wait`` returns.
- ``algorithm``: a name in the table, or "auto". In a group on one node, "auto" chooses by the size of the buffer, from
  times measured here; in a group on several nodes it takes the one that is cheapest by cost.py. NCCL carries arrays on
  GPUs if every rank has a GPU of its own (nccl/stream.py); otherwise they go through host memory.

Arrays are C-contiguous, of any numeric or bool dtype and any size, zero included. Every call returns None, or a Work
with ``async_op``.

Raises:
    TypeError, ValueError: for a bad argument, before anything is sent; the message names the argument and the fix.
    Mismatch: when another rank made a different call. The parent sees it as RankFailed.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from operator import index

import numpy as np

from minidist import backend
from minidist.comm import algorithms, double_tree, two_level
from minidist.comm.cost import cheapest
from minidist.comm.group import ProcessGroup, check_group
from minidist.comm.nccl import stream as nccl
from minidist.comm.placement import HIERARCHICAL, node_grid
from minidist.comm.point_to_point import check_array, dtype_name, overlap


class ReduceOp(enum.Enum):
    """Elementwise operation that combines arrays. AVG, SUM divided by the number of ranks, is not for integers."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"

    def __init__(self, word: str) -> None:
        ufuncs = {"sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
        self.ufunc: np.ufunc = ufuncs[word]


# Every algorithm of every collective, by its name in ``algorithm=``: the textbook's, and those for several nodes.
BROADCAST = algorithms.BROADCAST | {
    "double_tree": double_tree.broadcast_double_tree,
    HIERARCHICAL: two_level.broadcast_hierarchical,
}
REDUCE_SCATTER = algorithms.REDUCE_SCATTER | {HIERARCHICAL: two_level.reduce_scatter_hierarchical}
ALL_GATHER = algorithms.ALL_GATHER | {HIERARCHICAL: two_level.all_gather_hierarchical}
ALL_REDUCE = algorithms.ALL_REDUCE | {
    "double_tree": double_tree.all_reduce_double_tree,
    HIERARCHICAL: two_level.all_reduce_hierarchical,
}
ALL_TO_ALL = algorithms.ALL_TO_ALL | {HIERARCHICAL: two_level.all_to_all_hierarchical}


@dataclass(frozen=True)
class Collective:
    """One row of the table of collectives.

    ``by_chunks(algorithm, *arguments, group)`` cuts the call's arrays into a list of chunks, one for each rank, which
    an algorithm of this library takes. NCCL takes the arrays themselves.
    """

    algorithms: dict[str, Callable]  # by name
    few_steps: str  # the algorithm that "auto" takes for small buffers on one node
    few_bytes: str  # and for large ones
    arrays: dict[str, str]  # argument -> "r" if the collective reads it, "w" if it writes it, "rw" for both
    root: str = ""  # the argument that names a rank: src or dst
    combines: bool = False  # whether it takes a ReduceOp
    full: str = ""  # the argument that has N times as many elements as the other
    sizes_differ: bool = False  # whether ranks may pass arrays of different shapes
    by_chunks: Callable | None = None


def _reduce_scatter_chunks(algorithm: Callable, output: np.ndarray, input: np.ndarray, combine, group) -> None:
    chunks = list(input.reshape(group.size, output.size).copy())
    algorithm(chunks, combine, group)
    output[:] = chunks[group.rank]


def _all_gather_chunks(algorithm: Callable, output: np.ndarray, input: np.ndarray, group) -> None:
    chunks = list(output.reshape(group.size, input.size))
    chunks[group.rank][:] = input
    algorithm(chunks, group)


IN_PLACE, OUT_OF_PLACE = {"tensor": "rw"}, {"input": "r", "output": "w"}
COLLECTIVES = {
    "broadcast": Collective(BROADCAST, "tree", "ring", IN_PLACE, root="src"),
    "reduce": Collective(algorithms.REDUCE, "tree", "tree", IN_PLACE, root="dst", combines=True),
    "reduce_scatter_tensor": Collective(
        REDUCE_SCATTER, "direct", "ring", OUT_OF_PLACE, combines=True, full="input", by_chunks=_reduce_scatter_chunks
    ),
    "all_gather_into_tensor": Collective(
        ALL_GATHER, "direct", "ring", OUT_OF_PLACE, full="output", by_chunks=_all_gather_chunks
    ),
    "all_reduce": Collective(ALL_REDUCE, "tree", "ring", IN_PLACE, combines=True),
    "all_to_all_single": Collective(ALL_TO_ALL, "pairwise", "pairwise", OUT_OF_PLACE, sizes_differ=True),
    "scatter": Collective(algorithms.SCATTER, "direct", "direct", {"tensor": "w"}, root="src"),
    "gather": Collective(algorithms.GATHER, "direct", "direct", {"tensor": "r"}, root="dst"),
}

# The largest buffer for which "auto" prefers few steps to few bytes. The times of tree and ring cross there, with 2 and
# with 4 ranks on two cores (benchmarks/transports.py). For larger buffers halving-doubling sends as little as the ring
# in fewer steps if N is a power of two; with 2 ranks both take the same number of steps.
FEW_STEPS_BYTES = 256 << 10


def broadcast(tensor, src: int, group: ProcessGroup, async_op: bool = False, *, algorithm: str = "auto"):
    """Overwrite ``tensor`` on every rank with that of rank ``src``."""
    call, flat = check("broadcast", group, algorithm, src, tensor=tensor)
    return run(call, async_op, flat, src)


def reduce(
    tensor, dst: int, op=ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False, *, algorithm="auto"
):
    """Overwrite ``tensor`` on rank ``dst`` with the combination of all ranks' tensors; the others keep theirs."""
    call, flat = check("reduce", group, algorithm, dst, op, tensor=tensor)
    return run(call, async_op, flat, dst, op.ufunc)


def all_reduce(tensor, op=ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False, *, algorithm="auto"):
    """Overwrite ``tensor`` on every rank with the combination of all ranks' tensors. All get the same bits.

    In float32 the bits of a sum depend on the order of its terms, and so on the algorithm and the number of ranks. In
    float64 with float32 terms they practically never do, so gradients are summed in float64.
    """
    call, flat = check("all_reduce", group, algorithm, 0, op, tensor=tensor)
    return run(call, async_op, flat, op.ufunc)


def reduce_scatter_tensor(
    output, input, op=ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False, *, algorithm="auto"
):
    """Combine all ranks' ``input``, and leave part ``rank`` of N equal parts of the result in ``output``.

    ``input`` has N times as many elements as ``output`` and does not change.
    """
    call, flat_input, flat_output = check("reduce_scatter_tensor", group, algorithm, 0, op, input=input, output=output)
    return run(call, async_op, flat_output, flat_input, op.ufunc)


def all_gather_into_tensor(output, input, group: ProcessGroup, async_op: bool = False, *, algorithm: str = "auto"):
    """Put every rank's ``input``, in rank order, into ``output``, which has N times as many elements."""
    call, flat_input, flat_output = check("all_gather_into_tensor", group, algorithm, input=input, output=output)
    return run(call, async_op, flat_output, flat_input)


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

    Parts are cut along the first axis: into equal parts, or by the split sizes, a list with one size for each rank.
    Either all ranks pass split sizes or none does. With split sizes no rank knows how much the others send, so "auto"
    cannot compare costs and takes the pairwise exchange.
    """
    call, flat_input, flat_output = check("all_to_all_single", group, algorithm, input=input, output=output)
    size, rank = call.group.size, call.group.rank
    if overlap(flat_input, flat_output):
        flat_input = flat_input.copy()  # an early message must not overwrite data that leaves later
        call.held.append(flat_input)
    outgoing = _split(flat_input.reshape(input.shape), input_split_sizes, size, "input")
    incoming = _split(flat_output.reshape(output.shape), output_split_sizes, size, "output")
    if outgoing[rank].size != incoming[rank].size:
        raise ValueError(
            f"all_to_all_single: rank {rank} sends itself {outgoing[rank].size} elements but expects "
            f"{incoming[rank].size}; its own entries of input_split_sizes and output_split_sizes must agree"
        )
    if input_split_sizes is not None or output_split_sizes is not None:
        call.size = 0  # sizes vary from call to call, so all of them count as one kind
        if call.algorithm == "auto":
            call.algorithm = "pairwise"
    return run(call, async_op, outgoing, incoming)


def scatter(
    tensor, scatter_list=None, src: int = 0, group: ProcessGroup | None = None, async_op=False, *, algorithm="auto"
):
    """Overwrite ``tensor`` on rank r with array r of rank ``src``'s ``scatter_list`` (None on other ranks)."""
    call, flat = check("scatter", group, algorithm, src, tensor=tensor)
    return run(call, async_op, flat, check_list(call, "scatter_list", scatter_list, flat, "r"), src)


def gather(
    tensor, gather_list=None, dst: int = 0, group: ProcessGroup | None = None, async_op=False, *, algorithm="auto"
):
    """Overwrite array r of rank ``dst``'s ``gather_list`` (None on other ranks) with rank r's ``tensor``."""
    call, flat = check("gather", group, algorithm, dst, tensor=tensor)
    return run(call, async_op, flat, check_list(call, "gather_list", gather_list, flat, "w"), dst)


@dataclass(slots=True)
class Call:
    """One call of a collective, checked."""

    name: str
    group: ProcessGroup
    algorithm: str
    root: int  # src or dst, where there is one
    by_nccl: bool
    details: list[str | tuple] = field(default_factory=list)  # equal on all ranks: words; dtype and shape of arrays
    nbytes: int = 0  # of the largest array, as are size and dtype
    size: int = 0  # elements
    dtype: str = ""
    averaged: list = field(default_factory=list)  # arrays to divide by the number of ranks at the end
    staged: list[tuple] = field(default_factory=list)  # (array on a GPU, its copy here), to copy back at the end
    held: list = field(default_factory=list)  # arrays that NCCL reads and writes


def check(name: str, group, algorithm: str, root: int = 0, op=None, **arrays) -> tuple:
    """Check a call's arguments by its row of the table; return the Call, then each array as ``stage`` returns it."""
    row = COLLECTIVES[name]
    check_group(group, name)
    if algorithm != "auto" and algorithm not in row.algorithms:
        raise ValueError(f"{name}: unknown algorithm {algorithm!r}; choose auto, {', '.join(row.algorithms)}")
    if row.root and not 0 <= index(root) < group.size:
        raise ValueError(
            f"{name}: {row.root}={root} is not a rank of this group of {group.size} "
            f"(0 to {group.size - 1}, counted within the group)"
        )
    by_nccl = group.transport.gpus is not None and nccl.carries(name, group, algorithm, list(arrays.values()), op)
    call = Call(name, group, algorithm, root, by_nccl)
    if row.root:
        call.details.append(f"{row.root}={root}")
    if row.combines:
        call.details.append(op.name if isinstance(op, ReduceOp) else "")
    flats = []
    for argument, array in arrays.items():
        mode = "r" if name == "reduce" and group.rank != root else row.arrays[argument]
        flats.append(stage(call, argument, array, mode))
        if not row.sizes_differ:
            call.details.append((array.dtype, array.shape))
        if op is ReduceOp.AVG and "w" in mode:
            call.averaged.append(flats[-1])
    if row.combines:
        check_op(op, flats[0].dtype, name)
    if "output" in arrays and flats[0].dtype != flats[1].dtype:
        raise TypeError(f"{name}: input is {flats[0].dtype} but output is {flats[1].dtype}; they must agree")
    if row.full:
        full, part = flats if row.full == "input" else flats[::-1]
        if full.size != part.size * group.size:
            other = "output" if row.full == "input" else "input"
            raise ValueError(
                f"{name}: {row.full} must have {part.size * group.size} elements (the number of ranks times "
                f"{other}'s), but has {full.size}"
            )
    return call, *flats


def stage(call: Call, argument: str, array, mode: str):
    """Check an array and return it flat, in host memory: a view if it is there already, else a copy.

    An array stays on its GPU if NCCL carries the call, or if the group has one rank and so sends nothing. A host copy
    that the call writes ("w" in ``mode``) is copied back when the call ends.
    """
    check_array(array, argument, call.name, "w" in mode)
    if array.nbytes >= call.nbytes:
        call.nbytes, call.size, call.dtype = array.nbytes, array.size, dtype_name(array.dtype)
    if backend.on_host(array):
        if call.by_nccl:
            raise TypeError(f"{call.name}: tensor is on a GPU, but {argument} in host memory; copy one to the other")
        return array.ravel()  # a view, since it is contiguous
    if call.by_nccl:
        call.held.append(array)
        return array.ravel()
    if call.group.size == 1:
        call.algorithm = "auto"  # a named algorithm may allocate arrays of its own, in host memory
        return array.ravel()
    host = backend.to_host(array) if "r" in mode else np.empty(array.shape, array.dtype)
    if "w" in mode:
        call.staged.append((array, host))
    return host.ravel()


def check_list(call: Call, argument: str, arrays, like: np.ndarray, mode: str) -> list:
    """Check and stage a list of one array per rank, each with the dtype and size of ``like``; [] except on the root."""
    if call.group.rank != call.root:
        if arrays is not None:
            raise ValueError(f"{call.name}: only the root rank passes {argument}; pass None on the others")
        return []
    if not isinstance(arrays, list | tuple) or len(arrays) != call.group.size:
        raise ValueError(f"{call.name}: {argument} on the root must be a list of {call.group.size} arrays")
    pieces = [stage(call, f"{argument}[{i}]", array, mode) for i, array in enumerate(arrays)]
    for i, piece in enumerate(pieces):
        if (piece.dtype, piece.size) != (like.dtype, like.size):
            raise ValueError(
                f"{call.name}: {argument}[{i}] has {piece.size} elements of {piece.dtype}, "
                f"but tensor has {like.size} of {like.dtype}; they must agree"
            )
    return pieces


def check_op(op, dtype: np.dtype, function: str) -> None:
    """Raise TypeError for an ``op`` that is not a ReduceOp, or that is not defined for the dtype."""
    if not isinstance(op, ReduceOp):
        raise TypeError(f"{function}: op must be a ReduceOp such as ReduceOp.SUM, got {op!r}")
    if dtype.kind == "f":  # everything is possible
        return
    if op is ReduceOp.AVG and dtype.kind != "c":
        raise TypeError(f"{function}: AVG of {dtype} would round; use SUM and divide as you need")
    if op in (ReduceOp.MIN, ReduceOp.MAX) and dtype.kind == "c":
        raise TypeError(f"{function}: complex numbers have no {op.name}")


def run(call: Call, async_op: bool, *arguments):
    """Choose the algorithm of a checked call, and run it, now or in the background."""
    group, name, row = call.group, call.name, COLLECTIVES[call.name]
    if call.by_nccl:
        algorithm, method = "nccl", getattr(nccl.communicator_of(group), name)
    else:
        algorithm = choose(call) if call.algorithm == "auto" else call.algorithm
        if algorithm == HIERARCHICAL:
            node_grid(group.nodes)  # raises where it cannot run, before anything is sent
        method = row.algorithms[algorithm]
        if group.size == 1 and row.arrays is IN_PLACE:
            method = keep
        if row.by_chunks is not None:
            method = partial(row.by_chunks, method)
    body = partial(method, *arguments)  # body(group) sends and receives
    if call.averaged or call.staged:
        body = partial(_finish, call, body)
    description = _describe(name, *call.details, algorithm)
    kind = name, call.dtype, call.size
    if call.by_nccl:
        return nccl.run_collective(group, description, body, async_op, call.nbytes, kind, call.held)
    return group.run_collective(description, body, async_op, call.nbytes, kind)


def keep(*_) -> None:
    """Do nothing: the algorithm of a group of one rank, which has nothing to combine or send."""


def _finish(call: Call, body: Callable, group: ProcessGroup) -> None:
    """Run a collective, then divide averages by the number of ranks and copy results back to the GPU."""
    body(group)
    for flat in call.averaged:
        flat /= group.size
    for array, host in call.staged:
        backend.copy_from_host(array, host)


def choose(call: Call) -> str:
    """Return the algorithm that "auto" takes: the same on all ranks of the group."""
    row, group, nodes = COLLECTIVES[call.name], call.group, call.group.transport.nodes
    on_one_node = nodes.count(nodes[0]) == len(nodes) or len(set(group.nodes)) == 1
    if not on_one_node and len(row.algorithms) > 1:
        return cheapest(call.name, call.nbytes, group.nodes, group.transport.links, call.root)
    if call.nbytes <= FEW_STEPS_BYTES:
        return row.few_steps
    if "halving_doubling" in row.algorithms and group.size > 2 and group.size.bit_count() == 1:
        return "halving_doubling"
    return row.few_bytes


@lru_cache(maxsize=1024)  # a training step makes the same few calls again and again
def _describe(name: str, *details: str | tuple) -> str:
    """Return the call in words, such as "all_reduce(SUM, float32 (256,), tree)"."""
    words = [detail if isinstance(detail, str) else f"{dtype_name(detail[0])} {detail[1]}" for detail in details]
    return f"{name}({', '.join(words)})"


def _split(array: np.ndarray, sizes: list[int] | None, parts: int, argument: str) -> list[np.ndarray]:
    """Return the parts of an array along its first axis, as flat views."""
    length = len(array) if array.ndim else 1
    if sizes is None:
        if length % parts:
            raise ValueError(
                f"all_to_all_single: the {length} rows of {argument} cannot be split evenly over {parts} ranks; "
                f"pass {argument}_split_sizes"
            )
        sizes = [length // parts] * parts
    if len(sizes) != parts or sum(sizes) != length or min(sizes) < 0:
        raise ValueError(
            f"all_to_all_single: {argument}_split_sizes must be {parts} sizes that add up to the {length} rows of "
            f"{argument}, got {list(sizes)}"
        )
    array = array.reshape(length, -1) if array.size else array.reshape(length, 0)
    ends = accumulate(map(int, sizes))
    return [array[end - size : end].reshape(-1) for size, end in zip(sizes, ends, strict=True)]
