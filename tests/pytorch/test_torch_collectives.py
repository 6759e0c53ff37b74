"""minidist as a backend of torch.distributed: each collective against gloo's, in the same processes."""

import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402

pytestmark = pytest.mark.long  # torch takes seconds to start

ELEMENTS = (1, 7, 100_003)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8)
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)


def numbers(rank: int, elements: int, dtype=torch.float32) -> "torch.Tensor":
    """Small whole numbers, so that their sums and products are exact in any order and any dtype."""
    return ((torch.arange(elements) * 7 + 3 * rank) % 4).to(dtype)


# ── What each collective leaves in its tensors, in a group ───────────────────────────────────────────────────────────


def reducing(groups, group, n, dtype=torch.float32, op=dist.ReduceOp.SUM):
    """Return results of collectives that reduce; of ``reduce`` only on rank 1: elsewhere gloo leaves what it likes."""
    reduced, summed, scattered, piece = (numbers(groups.rank, n, dtype) for _ in range(4))
    parts = [numbers(groups.rank + i, n, dtype) for i in range(groups.size)]
    dist.all_reduce(summed, op, group)
    dist.reduce(reduced, 1, op, group)
    dist.reduce_scatter(scattered, parts, op, group)
    dist.reduce_scatter_tensor(piece, torch.cat(parts), op, group)
    return [summed, scattered, piece, *parts, *[reduced][: groups.rank == 1]]


def moving(groups, group, n, dtype=torch.float32):
    """broadcast, both ways to gather all, gather and scatter, and an all-to-all of lists."""
    tensor, mine, scattered = (numbers(groups.rank, n, dtype) for _ in range(3))
    whole = torch.empty(groups.size * n, dtype=dtype)
    sent = [numbers(groups.rank + j, n, dtype) for j in range(groups.size)]
    gathered, parts, exchanged = ([torch.zeros(n, dtype=dtype) for _ in range(groups.size)] for _ in range(3))
    dist.broadcast(tensor, groups.size - 1, group)
    dist.all_gather(parts, mine, group)
    dist.all_gather_into_tensor(whole, mine, group)
    dist.gather(mine, gathered if groups.rank == 1 else None, 1, group)
    dist.scatter(scattered, sent if groups.rank == 1 else None, 1, group)
    dist.all_to_all(exchanged, sent, group)
    return [tensor, whole, scattered, *gathered, *parts, *exchanged]


def rows(groups, group, n):
    """An all-to-all in equal parts; and one in which rank i sends i + j rows to rank j: not as many to each."""
    split = [groups.rank + j for j in range(groups.size)]
    uneven, equal = torch.empty(sum(split), n), torch.empty(2 * groups.size)
    dist.all_to_all_single(uneven, numbers(groups.rank, sum(split) * n).reshape(-1, n), split, split, group)
    dist.all_to_all_single(equal, numbers(groups.rank, 2 * groups.size), group=group)
    return [uneven, equal]


def messages(groups, group, n):
    """Everyone to everyone at once, more than a queue holds."""
    others = [rank for rank in range(groups.size) if rank != groups.rank]
    parts, sent = {rank: torch.empty(n) for rank in others}, numbers(groups.rank, n)
    calls = [dist.P2POp(dist.isend, sent, rank, group) for rank in others]
    calls += [dist.P2POp(dist.irecv, parts[rank], rank, group) for rank in others]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return list(parts.values())


def objects_and_functionals(groups, group):
    """Pickled objects; and the calls of DTensor, through the C++ side."""
    gathered, told = [None] * groups.size, [("from", groups.rank)]
    dist.all_gather_object(gathered, {"rank": groups.rank}, group)
    dist.broadcast_object_list(told, 0, group)
    x = numbers(groups.rank, 2 * groups.size)
    called = (
        functional.all_reduce(x, "sum", group),
        functional.all_gather_tensor(x, 0, group),
        functional.reduce_scatter_tensor(x, "sum", 0, group),
        functional.all_to_all_single(x, [2] * groups.size, [2] * groups.size, group),
        functional.broadcast(x, 1, group),
    )
    objects = torch.tensor([*(each["rank"] for each in gathered), told[0][1]])
    return [objects, *map(functional.wait_tensor, called)]


CASES = [
    *((reducing, n, torch.float32, op) for op in OPS for n in ELEMENTS),
    *((reducing, 7, dtype) for dtype in DTYPES),
    *((moving, n, dtype) for n in ELEMENTS for dtype in (*DTYPES, torch.bfloat16)),
    *((rows, n) for n in (1, 3, 7)),
    *((messages, n) for n in (1, 600_000)),
    (objects_and_functionals,),
]


def compare_all(groups, cases) -> list[str]:
    """Run collectives on both groups; return what differs."""
    different = []
    for collective, *arguments in cases:
        for a, b in zip(*(collective(groups, group, *arguments) for group in groups.both), strict=True):
            if a.dtype != b.dtype or not torch.equal(a, b):
                different.append(f"{collective.__name__}{arguments}: {a} is not {b}")
    return different


@pytest.mark.parametrize("size", [2, 3, 5])
def test_it_leaves_what_gloo_leaves(torch_ranks, size):
    assert torch_ranks(size)(compare_all, CASES) == [[]] * size


# ── What gloo is no measure of ───────────────────────────────────────────────────────────────────────────────────────


def summed(groups, columns) -> bytes:
    tensor = torch.from_numpy(columns[groups.rank].copy())
    dist.all_reduce(tensor)
    return tensor.numpy().tobytes()


@pytest.mark.parametrize("size", [3, 5])
def test_float32_is_summed_in_the_order_of_the_ring(torch_ranks, size):
    """Chunk c begins at the right neighbour of rank c and ends on rank c: the bits are those of that order."""
    x = np.random.default_rng(0).standard_normal((size, 1000)).astype(np.float32)
    expected = [sum(np.roll(chunk, -c - 1, 0)) for c, chunk in enumerate(np.array_split(x, size, axis=1))]
    assert torch_ranks(size)(summed, x) == [np.concatenate(expected).tobytes()] * size


def empty_and_subgroups(groups):
    """Tensors without elements, a scalar's mean, and groups of ranks 0 and 2 and of rank 1 alone."""
    nothing = torch.empty(0)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, 0)
    dist.all_gather([torch.empty(0) for _ in range(groups.size)], nothing)
    dist.all_to_all_single(torch.empty(0, 3), torch.empty(0, 3))
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
    scalar, pair, alone = torch.tensor(float(groups.rank)), dist.new_group([0, 2]), dist.new_group([1])
    dist.all_reduce(scalar, dist.ReduceOp.AVG)
    tensor = torch.full((5,), float(groups.rank + 1))
    dist.all_reduce(tensor, group=alone if groups.rank == 1 else pair)
    return scalar.item(), tensor.tolist(), dist.get_rank(pair)


def test_nothing_a_mean_and_subgroups(torch_ranks):
    assert torch_ranks(3)(empty_and_subgroups) == [(1.0, [4.0] * 5, 0), (1.0, [2.0] * 5, -1), (1.0, [4.0] * 5, 1)]


def asynchronous(groups):
    """Rank 0 calls; rank 1 comes half a second later. What rank 0 knows meanwhile; callbacks run in order."""
    if groups.rank == 1:
        time.sleep(0.5)
    tensors, seen = [torch.full((3,), float(i)) for i in range(3)], []
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future().then(lambda future: seen.append(future.value()[0][0].item())) for work in works]
    early = [each() for work, future in zip(works, futures, strict=True) for each in (work.is_completed, future.done)]
    assert works[2].wait() and works[0].wait()
    assert tensors[2].tolist() == [4.0] * 3  # once wait has returned, before any future was waited for
    for future in futures:
        future.wait()
    assert seen == [0.0, 2.0, 4.0] and works[1].is_success() and works[0].result()[0].tolist() == [0.0] * 3
    return early


def test_an_asynchronous_call_returns_at_once_and_calls_run_in_order(torch_ranks):
    assert torch_ranks(2)(asynchronous)[0] == [False] * 6


def accepted(groups):
    """Return the calls that were wrongly accepted, and a sum: the group works afterwards."""
    x, found = torch.ones(4), []
    for call in (
        lambda: dist.all_reduce(x.bfloat16()),
        lambda: dist.all_reduce(torch.ones(2, 2)[:, 0]),  # not contiguous
        lambda: dist.broadcast(x.to_sparse(), 0),
        lambda: dist.all_reduce(x.int(), dist.ReduceOp.BOR),
        lambda: dist.all_reduce(x.int(), dist.ReduceOp.AVG),
        lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(2)),
        lambda: dist.all_gather([torch.ones(3)] * groups.size, torch.ones(2)),
        lambda: dist.all_to_all_single(torch.ones(groups.size + 1), torch.ones(groups.size + 1)),
        lambda: dist.recv(x),  # from any rank
        lambda: dist.reduce(x, groups.size),
    ):
        with suppress(TypeError, ValueError, NotImplementedError):
            call()
            found.append(call.__code__.co_firstlineno)
    dist.all_reduce(x)
    return found, x.tolist()


def test_what_cannot_be_done_is_refused(torch_ranks):
    assert torch_ranks(2)(accepted) == [([], [2.0] * 4)] * 2


def test_minidist_itself_does_not_load_torch():
    code = "import sys, minidist.comm, minidist.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
