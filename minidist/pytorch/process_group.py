"""The process group that torch sees: its methods are the calls of ``torch.distributed``, DDP and FSDP2.

Names, arguments and the ``opts`` are torch's. Each method checks the tensors, takes NumPy views of them, and starts a
small program on minidist's collectives, which runs in the background. It never waits: torch waits for the Work if the
user did not ask for ``async_op``.

torch 2.13 renamed some methods; their earlier names stand next to them.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from minidist import comm
from minidist.comm.collectives import COLLECTIVES, check_op
from minidist.pytorch.channel import Channel
from minidist.pytorch.tensors import raw, view
from minidist.pytorch.work import CollectiveWork, MessageWork

Tensors = list[torch.Tensor]


class ProcessGroup(dist.ProcessGroup):
    """A torch group whose ranks communicate through minidist.

    Args:
        algorithm: algorithm of minidist's collectives. A collective that has none of this name takes "auto".
    """

    def __init__(self, channel: Channel, algorithm: str) -> None:
        group = channel.group
        super().__init__(group.rank, group.size)  # pyright: ignore[reportCallIssue]  torch's stub lacks this one
        self._channel, self._rank, self._size = channel, group.rank, group.size
        self._algorithm, self._name, self._description = algorithm, "", ""

    def _run(self, collective: Callable, *arguments) -> None:
        has_it = self._algorithm in COLLECTIVES[collective.__name__].algorithms
        collective(*arguments, group=self._channel.group, algorithm=self._algorithm if has_it else "auto")

    def _start(self, call: str, body: Callable[[], object], tensors: Tensors) -> dist.Work:
        return CollectiveWork(self._channel, call, body, tensors)

    # All ranks get the same

    def allreduce(self, tensors: Tensors, opts=None) -> dist.Work:
        op = _op(opts)
        arrays = [_reducible(tensor, op, "all_reduce") for tensor in tensors]
        return self._start("all_reduce", lambda: [self._run(comm.all_reduce, array, op) for array in arrays], tensors)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Tensors, opts) -> dist.Work:
        arrays, root = [raw(tensor, "broadcast") for tensor in tensors], self._root(opts, "broadcast")
        return self._start("broadcast", lambda: [self._run(comm.broadcast, array, root) for array in arrays], tensors)

    def barrier(self, opts=None) -> dist.Work:
        return self._start("barrier", lambda: comm.barrier(self._channel.group), [])

    # Parts become a whole

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts=None) -> dist.Work:
        whole, part = raw(output, "all_gather_into_tensor"), raw(input, "all_gather_into_tensor")
        _check_parts(whole, part, self._size, "all_gather_into_tensor", "output", "input")
        body = partial(self._run, comm.all_gather_into_tensor, whole, part)
        return self._start("all_gather_into_tensor", body, [output])

    _allgather_base = all_gather_single

    def allgather(self, output_lists: list[Tensors], inputs: Tensors, opts=None) -> dist.Work:
        (outputs,), (input,) = output_lists, inputs
        arrays, part = [raw(output, "all_gather") for output in outputs], raw(input, "all_gather")
        _check_list(arrays, part, self._size, "all_gather", "the list")

        def body() -> None:
            whole = np.empty((self._size, part.size), part.dtype)
            self._run(comm.all_gather_into_tensor, whole, part)
            _copy(whole, arrays)

        return self._start("all_gather", body, outputs)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts=None) -> dist.Work:
        return [self.all_gather_single(*pair) for pair in zip(outputs, inputs, strict=True)][-1]  # the last one to end

    allgather_into_tensor_coalesced: Callable = all_gather_single_coalesced

    def gather(self, output_lists: list[Tensors], inputs: Tensors, opts) -> dist.Work:
        (input,), root = inputs, self._root(opts, "gather")
        outputs = output_lists[0] if self._rank == root else None
        part, arrays = _and_list(input, outputs, self._size, "gather")
        return self._start("gather", partial(self._run, comm.gather, part, arrays, root), outputs or [])

    # A whole becomes parts

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts=None) -> dist.Work:
        op = _op(opts)
        part, whole = (_reducible(tensor, op, "reduce_scatter_tensor") for tensor in (output, input))
        _check_parts(whole, part, self._size, "reduce_scatter_tensor", "input", "output")
        body = partial(self._run, comm.reduce_scatter_tensor, part, whole, op)
        return self._start("reduce_scatter_tensor", body, [output])

    _reduce_scatter_base: Callable = reduce_scatter_single

    def reduce_scatter(self, outputs: Tensors, input_lists: list[Tensors], opts=None) -> dist.Work:
        (output,), (inputs,), op = outputs, input_lists, _op(opts)
        part = _reducible(output, op, "reduce_scatter")
        arrays = [_reducible(input, op, "reduce_scatter") for input in inputs]
        _check_list(arrays, part, self._size, "reduce_scatter", "the list")

        def body() -> None:
            whole = np.concatenate([array.reshape(-1) for array in arrays])
            self._run(comm.reduce_scatter_tensor, part, whole, op)

        return self._start("reduce_scatter", body, outputs)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts=None) -> dist.Work:
        return [self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)][-1]

    reduce_scatter_tensor_coalesced: Callable = reduce_scatter_single_coalesced

    def reduce(self, tensors: Tensors, opts) -> dist.Work:
        (tensor,), op, root = tensors, _op(opts), self._root(opts, "reduce")
        array = _reducible(tensor, op, "reduce")
        return self._start("reduce", partial(self._run, comm.reduce, array, root, op), tensors)

    def scatter(self, outputs: Tensors, input_lists: list[Tensors], opts) -> dist.Work:
        (output,), root = outputs, self._root(opts, "scatter")
        inputs = input_lists[0] if self._rank == root else None
        part, arrays = _and_list(output, inputs, self._size, "scatter")
        return self._start("scatter", partial(self._run, comm.scatter, part, arrays, root), outputs)

    # Every rank has something for every other

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_sizes: list[int], input_sizes: list[int], opts=None
    ) -> dist.Work:
        incoming, outgoing = raw(output, "all_to_all_single"), raw(input, "all_to_all_single")
        # torch passes empty lists for equal parts, and some ranks may pass sizes that others leave out
        incoming, incoming_sizes = self._rows(incoming, len(output), output_sizes)
        outgoing, outgoing_sizes = self._rows(outgoing, len(input), input_sizes)
        body = partial(self._run, comm.all_to_all_single, incoming, outgoing, incoming_sizes, outgoing_sizes)
        return self._start("all_to_all_single", body, [output])

    alltoall_base: Callable = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts=None) -> dist.Work:
        incoming, outgoing = ([raw(tensor, "all_to_all") for tensor in tensors] for tensors in (outputs, inputs))

        def body() -> None:
            sizes = [[array.size for array in arrays] for arrays in (incoming, outgoing)]
            arrived = np.empty(sum(sizes[0]), incoming[0].dtype)
            whole = np.concatenate([array.reshape(-1) for array in outgoing])
            self._run(comm.all_to_all_single, arrived, whole, *sizes)
            _copy(np.split(arrived, np.cumsum(sizes[0])[:-1]), incoming)

        return self._start("all_to_all", body, outputs)

    def _rows(self, array: np.ndarray, rows: int, sizes: list[int]) -> tuple[np.ndarray, list[int]]:
        """Return an array by rows, (rows, width), and how many rows each rank has."""
        if rows % self._size and not sizes:
            raise ValueError(
                f"all_to_all_single: {rows} rows cannot be split evenly over {self._size} ranks; pass the split sizes"
            )
        width = array.size // rows if rows else 0
        return array.reshape(rows, width), list(sizes) or [rows // self._size] * self._size

    # Two ranks

    def send(self, tensors: Tensors, dst: int, tag: int) -> dist.Work:
        return self._message(comm.isend, tensors, dst, tag, f"send to rank {dst}")

    def recv(self, tensors: Tensors, src: int, tag: int) -> dist.Work:
        return self._message(comm.irecv, tensors, src, tag, f"recv from rank {src}")

    def recv_anysource(self, tensors: Tensors, tag: int) -> dist.Work:
        raise NotImplementedError("minidist cannot receive from any rank: pass src= to torch.distributed.recv")

    def _message(self, post: Callable, tensors: Tensors, peer: int, tag: int, call: str) -> dist.Work:
        (tensor,) = tensors
        self._channel.admit()
        return MessageWork(self._channel, call, post(raw(tensor, call), peer, self._channel.group, tag), peer)

    # The group itself

    def getBackendName(self) -> str:
        return "minidist"

    # torch keeps the names in its C++ backends, of which this group has none

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def set_timeout(self, timeout: timedelta) -> None:
        self._channel.timeout = timeout.total_seconds()

    def abort(self) -> None:
        self._channel.end("this group was aborted")

    def shutdown(self) -> None:
        self._channel.close()

    def _root(self, opts, call: str) -> int:
        if not 0 <= opts.rootRank < self._size:
            raise ValueError(f"{call}: there is no rank {opts.rootRank} in a group of {self._size}")
        return opts.rootRank


def _op(opts) -> comm.ReduceOp:
    """Return minidist's operation for the one in torch's options; SUM if there are no options."""
    op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    name = str(getattr(op, "op", op)).rpartition(".")[2]  # both libraries have one name for an operation
    known = comm.ReduceOp.__members__
    if name not in known:
        raise NotImplementedError(f"minidist reduces with {', '.join(known)}, but got {name}; use one of them")
    return known[name]


def _reducible(tensor: torch.Tensor, op: comm.ReduceOp, call: str) -> np.ndarray:
    array = view(tensor, call)
    check_op(op, array.dtype, call)
    return array


def _and_list(tensor: torch.Tensor, tensors: Tensors | None, size: int, call: str):
    """Return views of a tensor, and of the root's list of tensors like it, which is None on other ranks."""
    part = raw(tensor, call)
    if tensors is None:
        return part, None
    arrays = [raw(each, call) for each in tensors]
    _check_list(arrays, part, size, call, "the list of the root")
    return part, arrays


def _check_parts(whole: np.ndarray, part: np.ndarray, size: int, call: str, name: str, of: str) -> None:
    if whole.dtype != part.dtype or whole.size != size * part.size:
        raise ValueError(
            f"{call}: {name} must have {size} x {part.size} elements of {part.dtype}, {size} times those of {of}, but "
            f"has {whole.size} of {whole.dtype}"
        )


def _check_list(arrays: list[np.ndarray], part: np.ndarray, size: int, call: str, name: str) -> None:
    wanted = [(part.size, part.dtype)] * size
    if [(array.size, array.dtype) for array in arrays] != wanted:
        found = ", ".join(f"{array.size} of {array.dtype}" for array in arrays)
        raise ValueError(
            f"{call}: {name} must hold {size} tensors of {part.size} elements of {part.dtype}, but holds {found}"
        )


def _copy(parts, arrays: list[np.ndarray]) -> None:
    for part, array in zip(parts, arrays, strict=True):
        array[...] = part.reshape(array.shape)
