"""minidist as a backend of torch.distributed: each collective against gloo's, in the same processes."""

import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402

import minidist.pytorch  # noqa: E402

ELEMENTS = (0, 1, 7, 100_003)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8)
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)

sizes = pytest.mark.parametrize("size", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 5))])


def numbers(rank: int, elements: int, dtype=torch.float32) -> "torch.Tensor":
    """Small whole numbers, so that their sums and products are exact in any order and any dtype."""
    return ((torch.arange(elements) * 7 + 3 * rank) % 4).to(dtype)


def same(ours: "torch.Tensor", theirs: "torch.Tensor") -> bool:
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


# ── What each collective leaves in its tensors, in a group ───────────────────────────────────────────────────────────


def all_reduce(groups, group, op, elements, dtype):
    tensor = numbers(groups.rank, elements, dtype)
    dist.all_reduce(tensor, op, group)
    return [tensor]


def broadcast(groups, group, elements, dtype):
    tensor = numbers(groups.rank, elements, dtype)
    dist.broadcast(tensor, groups.size - 1, group)
    return [tensor]


def reduce(groups, group, elements):
    tensor = numbers(groups.rank, elements)
    dist.reduce(tensor, 1, group=group)
    return [tensor] if groups.rank == 1 else []  # elsewhere gloo leaves what it likes


def all_gather(groups, group, elements, dtype):
    parts = [torch.empty(elements, dtype=dtype) for _ in range(groups.size)]
    dist.all_gather(parts, numbers(groups.rank, elements, dtype), group)
    return parts


def all_gather_into_tensor(groups, group, elements, dtype):
    whole = torch.empty(groups.size * elements, dtype=dtype)
    dist.all_gather_into_tensor(whole, numbers(groups.rank, elements, dtype), group)
    return [whole]


def reduce_scatter(groups, group, elements):
    parts = [numbers(groups.rank + i, elements) for i in range(groups.size)]
    tensor = torch.empty(elements)
    dist.reduce_scatter(tensor, parts, group=group)
    return [tensor, *parts]


def reduce_scatter_tensor(groups, group, elements):
    whole, tensor = numbers(groups.rank, groups.size * elements), torch.empty(elements)
    dist.reduce_scatter_tensor(tensor, whole, dist.ReduceOp.MAX, group)
    return [tensor, whole]


def gather(groups, group, elements):
    parts = [torch.empty(elements) for _ in range(groups.size)] if groups.rank == 1 else None
    dist.gather(numbers(groups.rank, elements), parts, 1, group)
    return parts or []


def scatter(groups, group, elements):
    parts = [numbers(i, elements) for i in range(groups.size)] if groups.rank == 1 else None
    tensor = torch.empty(elements)
    dist.scatter(tensor, parts, 1, group)
    return [tensor]


def all_to_all_single(groups, group, width):
    """Rank i sends i + j rows to rank j: not as many to each."""
    split = [groups.rank + j for j in range(groups.size)]
    tensor, sent = torch.empty(sum(split), width), numbers(groups.rank, sum(split) * width).reshape(sum(split), width)
    dist.all_to_all_single(tensor, sent, split, split, group)
    equal = torch.empty(2 * groups.size)
    dist.all_to_all_single(equal, numbers(groups.rank, 2 * groups.size), group=group)
    return [tensor, equal]


def all_to_all(groups, group, elements):
    sent = [numbers(groups.rank + j, elements) for j in range(groups.size)]
    parts = [torch.empty(elements) for _ in range(groups.size)]
    dist.all_to_all(parts, sent, group)
    return parts


def messages(groups, group, elements):
    """Everyone to everyone at once, more than a queue holds."""
    others = [rank for rank in range(groups.size) if rank != groups.rank]
    parts = {rank: torch.empty(elements) for rank in others}
    sent = numbers(groups.rank, elements)
    calls = [dist.P2POp(dist.isend, sent, rank, group) for rank in others]
    calls += [dist.P2POp(dist.irecv, parts[rank], rank, group) for rank in others]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return list(parts.values())


def objects(groups, group):
    found = [None] * groups.size
    dist.all_gather_object(found, {"rank": groups.rank}, group)
    told = [("from", groups.rank)]
    dist.broadcast_object_list(told, 0, group)
    return [torch.tensor([each["rank"] for each in found]), torch.tensor(told[0][1])]


def functionals(groups, group):
    """The calls of DTensor, through the C++ side."""
    x = numbers(groups.rank, 2 * groups.size)
    return [
        functional.wait_tensor(each)
        for each in (
            functional.all_reduce(x, "sum", group),
            functional.all_gather_tensor(x, 0, group),
            functional.reduce_scatter_tensor(x, "sum", 0, group),
            functional.all_to_all_single(x, [2] * groups.size, [2] * groups.size, group),
            functional.broadcast(x, 1, group),
        )
    ]


def compare(groups, collective, *arguments) -> list[str]:
    """Run a collective on both groups; return what differs."""
    ours, theirs = (collective(groups, group, *arguments) for group in groups.both)
    assert len(ours) == len(theirs)
    return [f"{a} is not {b}" for a, b in zip(ours, theirs, strict=True) if not same(a, b)]


def compare_all(groups, cases) -> list[str]:
    return [f"{arguments}: {found}" for arguments in cases for found in compare(groups, *arguments)]


CASES = {
    "all_reduce": [(all_reduce, op, n, dtype) for op in OPS for n in ELEMENTS for dtype in DTYPES[:1] if n]
    + [(all_reduce, dist.ReduceOp.SUM, 7, dtype) for dtype in DTYPES],
    "broadcast": [(broadcast, n, dtype) for n in ELEMENTS[1:] for dtype in (torch.float32, torch.bfloat16)],
    "reduce": [(reduce, n) for n in ELEMENTS[1:]],
    "all_gather": [(all_gather, n, dtype) for n in ELEMENTS[1:] for dtype in (torch.float32, torch.bfloat16)],
    "all_gather_into_tensor": [(all_gather_into_tensor, n, t) for n in ELEMENTS[1:] for t in (*DTYPES, torch.bfloat16)],
    "reduce_scatter": [(reduce_scatter, n) for n in ELEMENTS[1:]],
    "reduce_scatter_tensor": [(reduce_scatter_tensor, n) for n in ELEMENTS[1:]],
    "gather and scatter": [(call, n) for n in ELEMENTS[1:] for call in (gather, scatter)],
    "all_to_all": [(all_to_all_single, 3), (all_to_all, 1), (all_to_all, 7)],
    "messages": [(messages, 1), (messages, 600_000)],
    "objects": [(objects,)],
    "functionals": [(functionals,)],
}


@sizes
@pytest.mark.parametrize("cases", CASES.values(), ids=CASES)
def test_it_leaves_what_gloo_leaves(torch_ranks, size, cases):
    for found in torch_ranks(size)(compare_all, cases):
        assert found == []


# ── What gloo is no measure of ───────────────────────────────────────────────────────────────────────────────────────


def uneven_numbers(rank: int, elements: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(elements).astype(np.float32)


def reduced_in_float32(groups, elements):
    tensor = torch.from_numpy(uneven_numbers(groups.rank, elements))
    mean = tensor.clone()
    dist.all_reduce(tensor)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return tensor.numpy(), mean.numpy()


@sizes
def test_float32_is_summed_in_the_order_of_the_ring(torch_ranks, size):
    """Chunk c begins at the right neighbour of rank c and ends on rank c: the bits are those of that order."""
    arrays = [uneven_numbers(rank, 1000) for rank in range(size)]
    expected = []
    for c, chunks in enumerate(zip(*(np.array_split(array, size) for array in arrays), strict=True)):
        total = chunks[(c + 1) % size]
        for step in range(2, size + 1):
            total = total + chunks[(c + step) % size]
        expected.append(total)
    expected = np.concatenate(expected)
    for total, mean in torch_ranks(size)(reduced_in_float32, 1000):
        assert total.tobytes() == expected.tobytes()
        assert mean.tobytes() == (expected / np.float32(size)).tobytes()


def empty(groups):
    nothing = torch.empty(0)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, 0)
    dist.all_gather([torch.empty(0) for _ in range(groups.size)], nothing)
    dist.all_to_all_single(torch.empty(0, 3), torch.empty(0, 3))
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
    scalar = torch.tensor(float(groups.rank))
    dist.all_reduce(scalar)
    return scalar.item()


def test_nothing_and_a_scalar(torch_ranks):
    assert torch_ranks(2)(empty) == [1.0, 1.0]


def asynchronous(groups):
    """Rank 0 calls; rank 1 comes half a second later. What rank 0 knows meanwhile, and at the end."""
    if groups.rank == 1:
        time.sleep(0.5)
    tensors = [torch.full((3,), float(i)) for i in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    seen: list[float] = []
    futures = [work.get_future().then(lambda future: seen.append(future.value()[0][0].item())) for work in works]
    early = [work.is_completed() for work in works], [future.done() for future in futures]
    assert works[2].wait() and works[0].wait()
    for future in futures:
        future.wait()
    return early, seen, [tensor.tolist() for tensor in tensors], works[1].is_success(), works[0].result()[0].tolist()


def test_an_asynchronous_call_returns_at_once_and_calls_run_in_order(torch_ranks):
    first, second = torch_ranks(2)(asynchronous)
    assert first[0] == ([False] * 3, [False] * 3)
    assert first[1:] == second[1:] == ([0.0, 2.0, 4.0], [[0.0] * 3, [2.0] * 3, [4.0] * 3], True, [0.0] * 3)


def refusals(groups):
    """The message of each call that is refused on every rank, and that the group works afterwards."""
    x = torch.ones(4)
    calls = {
        "bfloat16": lambda: dist.all_reduce(x.bfloat16()),
        "not contiguous": lambda: dist.all_reduce(torch.ones(2, 2)[:, 0]),
        "sparse": lambda: dist.broadcast(x.to_sparse(), 0),
        "operation": lambda: dist.all_reduce(x.int(), dist.ReduceOp.BOR),
        "average": lambda: dist.all_reduce(x.int(), dist.ReduceOp.AVG),
        "parts": lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(2)),
        "list": lambda: dist.all_gather([torch.ones(3)] * groups.size, torch.ones(2)),
        "rows": lambda: dist.all_to_all_single(torch.ones(groups.size + 1), torch.ones(groups.size + 1)),
        "any source": lambda: dist.recv(x),
        "root": lambda: dist.reduce(x, groups.size),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except (TypeError, ValueError, NotImplementedError) as error:
            found[name] = str(error)
    dist.all_reduce(x)
    return found, x.tolist()


def test_what_cannot_be_done_is_refused_with_the_reason(torch_ranks):
    for found, after in torch_ranks(2)(refusals):
        assert after == [2.0] * 4
        expected = {
            "bfloat16": "reduce_dtype=torch.float32",
            "not contiguous": ".contiguous(), and copy the result back",
            "sparse": "pass tensor.to_dense().cpu()",
            "operation": "SUM, AVG, PRODUCT, MIN, MAX, but got BOR",
            "average": "use SUM and divide",
            "parts": "output must have 2 x 2 elements of float32",
            "list": "must hold 2 tensors of 2 elements of float32, but holds 3 of float32, 3 of float32",
            "rows": "2 ranks do not divide 3 rows",
            "any source": "pass src=",
            "root": "there is no rank 2 in a group of 2",
        }
        assert found.keys() == expected.keys()
        for name, words in expected.items():
            assert words in found[name], found[name]


def subgroups(groups):
    """Ranks 0 and 2, and rank 1 alone."""
    pair, alone = dist.new_group([0, 2]), dist.new_group([1])
    tensor = torch.full((5,), float(groups.rank + 1))
    dist.all_reduce(tensor, group=alone if groups.rank == 1 else pair)
    return tensor.tolist(), dist.get_rank(pair)


@pytest.mark.long
def test_subgroups(torch_ranks):
    assert torch_ranks(3)(subgroups) == [([4.0] * 5, 0), ([2.0] * 5, -1), ([4.0] * 5, 1)]


def other_algorithm(groups, algorithm):
    minidist.pytorch.register(algorithm)
    group = dist.new_group()
    minidist.pytorch.register("ring")
    return compare(groups, partial(on, group), 1000)


def on(group, groups, instead, elements):
    """A sum on a group of its own where minidist's is asked for."""
    return all_reduce(groups, group if instead is groups.minidist else instead, dist.ReduceOp.SUM, elements, DTYPES[0])


@pytest.mark.parametrize("algorithm", ["auto", "naive", "direct"])
def test_algorithms(torch_ranks, algorithm):
    assert torch_ranks(2)(other_algorithm, algorithm) == [[], []]


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match=r"unknown algorithm 'rings'; choose auto, .*ring"):
        minidist.pytorch.register("rings")


def test_minidist_itself_does_not_load_torch():
    code = "import sys, minidist.comm, minidist.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
