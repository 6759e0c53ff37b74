"""What a layout sends and holds is what its formula says: one table, each run of which is measured once.

The formulas are those of the docstrings in minidist/parallel. Symbols:

    P      parameters of the model, in BLOCKS of L layers, and a ROOT that is left
    A      elements of a micro-batch's activations: samples x tokens x width
    M      micro-batches in a step
"""

from dataclasses import replace
from functools import cache
from math import ceil, inf, prod

import pytest

from minidist.nn.gpt import GPT
from minidist.parallel.compression.hook import read_method
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

L, C, T, M = 4, 16, 8, 8
BASE = TrainConfig(layers=L, heads=4, width=C, context=T, global_batch=M, micro_batch=1, steps=1, dropout=0.1)
A = T * C
MODEL = GPT(BASE.model)
SHAPES = {name: parameter.shape for name, parameter in MODEL.named_parameters()}
P = sum(map(prod, SHAPES.values()))
BLOCK = sum(parameter.size for parameter in MODEL.blocks[0].parameters())
ROOT = P - L * BLOCK
TIED = MODEL.embeddings.token.weight.size
HEAD = 2 * C  # its norm; the rest of the root is the embeddings'
SPLIT = sum(prod(shape) for shape in SHAPES.values() if len(shape) == 3 or shape[0] == BASE.heads)  # by heads
COPIED = P - SPLIT
HALF = ("bf16", "fp16", "fp8")  # messages and parameters have two bytes
BF16, FLOAT32, LLAMA = {"precision": "bf16"}, {"reduce_dtype": "float32"}, {"arch": "llama"}
LINEAR = {"optimizer": "sgd", "clip": inf, "weight_decay": 0.0}


def sums(ranks: int, elements: int, itemsize: int = 8) -> int:
    """Bytes that all ranks together send for an all-reduce."""
    return 2 * (ranks - 1) * elements * itemsize


def half(ranks: int, elements: int, itemsize: int) -> int:
    """Return the bytes of a reduce-scatter, or of an all-gather."""
    return (ranks - 1) * elements * itemsize


def messages(bytes_of) -> int:
    """Bytes that three ranks send if each sends a message for each parameter to both others."""
    return 3 * 2 * sum(bytes_of(prod(shape)) for shape in SHAPES.values())


def of_rank(rank: int) -> int:
    """Numbers that stand for all gradients with PowerSGD: two factors for a matrix where they are smaller."""
    matrices = [(prod(shape[:-1]), shape[-1], len(shape)) for shape in SHAPES.values()]
    return sum(min(m * n, rank * (m + n)) if dims > 1 else m * n for m, n, dims in matrices)


def passing(ranks: int, itemsize: int, pairs: int, pair: int = 16, groups: int = 4) -> int:
    """Bytes in a step for keys and values that pass by, forward and backward, and ``pairs`` times their gradients."""
    keys_values = T // ranks * 2 * C * groups // 4
    return L * M * ranks * (2 * (ranks - 1) * keys_values * itemsize + pairs * keys_values * pair)


def exchanged(ranks: int, itemsize: int, groups: int = 4) -> int:
    """Return the bytes of ulysses: queries, keys and values there and the output back, and all gradients."""
    return L * M * 2 * (ranks - 1) * T // ranks * (2 * C + 2 * C * groups // 4) * itemsize


SENT, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"
TABLE = [  # layout, changes to BASE, what, how much
    # bytes of a step, of all ranks, without single numbers
    *((f"dp={n},algorithm=ring,bucket_mb=100", {}, "bytes all_reduce dp float64", sums(n, P)) for n in (2, 3, 8)),
    ("dp=2,sync=naive", {}, "bytes * dp float64", sums(2, P)),
    ("dp=2", {}, "calls all_reduce dp float64", 1),
    ("dp=2,sync=naive", {}, "calls all_reduce dp float64", len(SHAPES)),
    ("dp=2", BF16, "bytes * dp float64", sums(2, P)),  # sums are not halved
    ("dp=2", FLOAT32, "bytes * dp float32", sums(2, P, 4)),
    ("dp=3,sync=delayed", {"steps": 2}, "traffic", sums(3, P) + 2 * sums(3, 1)),  # the first step's, and two losses
    # ZeRO: stage 2 and 3 scatter in each of a rank's two micro-batches
    *((f"dp=4,zero={stage},algorithm=ring{more}", {}, f"bytes {name} shard {dtype}", times * half(4, P, size))
      for stage, more, scatters, gathers in (
          (1, "", 1, 1), (2, "", 2, 1), (2, ",grad_sync=step", 1, 1), (3, "", 2, 4), (3, ",prefetch=1", 2, 4),
          (3, ",reshard_after_forward=0", 2, 2), (3, ",grad_sync=step", 1, 4),
      )
      for name, dtype, times, size in ((SCATTER, "float64", scatters, 8), (SENT, "float32", gathers, 4))),
    *((f"dp=2,zero={stage}", {"precision": precision}, f"bytes {SENT} shard uint16", half(2, P, 2) * times)
      for stage, times in ((1, 1), (3, 8)) for precision in HALF),
    ("dp=2,zero=1", BF16, f"bytes {SCATTER} shard float64", half(2, P, 8)),
    ("dp=2,zero=2", {}, f"bytes {SCATTER} shard float64", 4 * half(2, P, 8)),
    ("dp=2,zero=2", {}, "memory optimizer", 4 * P),
    *((f"dp=4,zero={stage},shard=2", {}, what, number)  # over the replicas once a step, whatever the stage
      for stage, times in ((1, 1), (2, 2), (3, 2))
      for what, number in (
          ("bytes all_reduce replicate float64", 2 * sums(2, P // 2)), ("calls all_reduce replicate float64", L + 1),
          (f"bytes {SCATTER} shard float64", times * 2 * half(2, P, 8)),
      )),
    # in a pipeline a rank has four micro-batches, two blocks, and a root whose gradients wait for the step's end
    *((f"dp=2,pp=2,{more}", {}, f"calls {name} shard {dtype}", calls)
      for more, scatters, gathers in (
          ("zero=1", 3, 3), ("zero=2", 4 * 2 + 1, 3), ("zero=2,grad_sync=step", 3, 3), ("zero=3", 9, 4 * (2 * 2 + 2)),
          ("zero=3,grad_sync=step", 3, 24), ("zero=3,reshard_after_forward=0", 9, 3),
          ("zero=3,grad_sync=step,reshard_after_forward=0", 3, 3),
      )
      for name, dtype, calls in ((SCATTER, "float64", scatters), (SENT, "float32", gathers))),
    # compression
    ("dp=3,compress=bf16", {}, f"bytes {SENT} dp uint8", messages(lambda n: 2 * n)),
    ("dp=3,compress=int8", {}, f"bytes {SENT} dp uint8", messages(lambda n: n + 4)),
    ("dp=3,compress=onebit", {}, f"bytes {SENT} dp uint8", messages(lambda n: ceil(n / 8) + 8)),
    ("dp=3,compress=topk:0.05", {}, f"bytes {SENT} dp uint8", messages(lambda n: 12 * ceil(n / 20))),
    ("dp=3,compress=powersgd:2", {}, "bytes all_reduce dp float64", sums(3, of_rank(2))),
    # pipelines: at each border each micro-batch forward and back, and the tied weight
    *((f"pp={pp}{more}", {}, "bytes send pp float32", 2 * borders * M * A * 4)
      for pp, more, borders in (
          (2, "", 1), (3, ",schedule=zb-h1", 2), (2, ",virtual=2", 3), (4, ",schedule=gpipe", 3),
      )),
    ("pp=2", {}, "calls send pp float32", M),
    *(("pp=2", {"precision": precision}, "bytes send pp uint16", 2 * M * A * 2) for precision in HALF),
    ("pp=3,schedule=zb-h1", {}, f"calls all_reduce embedding float64 {TIED}", 1),
    # tensor parallelism: two a block each way, one where the head begins, one for the embedding's rows, three a token
    ("tp=2", {}, f"calls all_reduce tp float64 {A}", M * (4 * L + 1)),
    ("tp=2", {}, f"calls all_reduce tp float32 {A}", M),
    ("tp=2", {}, f"calls all_reduce tp float32 {T}", M),
    ("tp=2", {}, f"calls all_reduce tp float64 {T}", 2 * M),
    ("tp=2", {}, "calls * tp *", M * (4 * L + 5)),
    ("tp=2,recompute=full", {}, f"calls all_reduce tp float64 {A}", M * (6 * L + 1)),
    ("tp=4", FLOAT32, f"bytes * tp float32 {A}", M * sums(4, (4 * L + 2) * A, 4)),
    # each all-reduce is two halves; with the embedding's scatter there is one gather more, and gains and biases
    ("tp=2,sp=1", {}, f"calls {SENT} tp float32 {A}", M * (2 * L + 1 + 2 * L + 1)),
    ("tp=2,sp=1", {}, f"calls {SCATTER} tp float64 {A}", M * (4 * L + 1)),
    ("tp=2,sp=1", {}, f"calls all_reduce tp float64 {C}", M * (L * 6 + 2)),
    ("tp=4,sp=1", FLOAT32, f"bytes {SENT} tp float32 {A}", M * half(4, (4 * L + 2) * A, 4)),
    ("tp=4,sp=1", FLOAT32, f"bytes {SCATTER} tp float32 {A}", M * half(4, (4 * L + 1) * A, 4)),
    *((f"tp=2{sp}", FLOAT32, "bytes * tp float64", M * 2 * sums(2, T)) for sp in ("", ",sp=1")),  # of the loss alone
    *(("tp=2,sp=1", {"precision": precision}, f"bytes {SENT} tp uint16", M * half(2, (4 * L + 2) * A, 2))
      for precision in HALF),
    ("dp=2,tp=2,sync=naive,algorithm=ring", {}, "bytes * dp float64", 2 * sums(2, SPLIT // 2 + COPIED)),
    # context parallelism
    *((f"cp=2,cp_kind={kind}", {"sequence_chunks": 4} | more, f"bytes {name} cp *", number)
      for kind, more, name, number in (
          ("ring", {}, "send", passing(2, 4, 2)), ("zigzag", BF16, "send", passing(2, 2, 2)),
          ("all-gather", {}, "*", passing(2, 4, 1)), ("ulysses", {}, "*", exchanged(2, 4)),
          ("ring", {"softmax": "online32"}, "send", passing(2, 4, 2, 4)), ("ulysses", BF16, "*", exchanged(2, 2)),
      )),
    ("cp=4", {"sequence_chunks": 4}, "bytes send cp *", passing(4, 4, 4)),
    *((f"cp=2,cp_kind={kind}", {"sequence_chunks": 4} | LLAMA | {"kv_heads": groups}, f"bytes {name} cp *", number)
      for groups in (1, 2, 4)
      for kind, name, number in (
          ("ring", "send", passing(2, 4, 2, groups=groups)), ("all-gather", "*", passing(2, 4, 1, groups=groups)),
          *[("ulysses", "*", exchanged(2, 4, groups))] * (groups > 1),
      )),
    ("cp=2,cp_kind=ring", {"sequence_chunks": 4}, "bytes all_reduce dp_cp float64", sums(2, P)),
    # loosened steps: what all ranks send in a run
    ("dp=3,sync=local,local_steps=4", {"steps": 8}, "traffic", 2 * sums(3, P)),
    *(("dp=3,sync=local,local_steps=4,fragments=2", {"steps": steps}, "traffic", times * sums(3, P))
      for steps, times in ((9, 3), (6, 2))),
    ("dp=3,sync=server,servers=2", {"steps": 2}, "traffic", 3 * (2 * 8 + 4) * P + 2 * 2 * 3 * 8),  # and the norm's
    ("dp=3,sync=async,servers=2", {"steps": 2}, "traffic", 3 * (2 * 4 + 4) * P),
    # between nodes: of a ring the last rank of each node sends everything to the next one
    ("dp=4,node_size=2,algorithm=ring", {}, "between", sums(4, P) // 2),
    ("dp=4,node_size=2,algorithm=hierarchical", {}, "between", sums(4, P) // 3),
    ("dp=4,algorithm=ring", {}, "between", 0),
    # tp changes fastest, as in Megatron-LM, so that its many messages stay on one machine
    ("dp=2,tp=2,sync=naive,algorithm=ring,node_size=2", {}, "between", 2 * sums(2, SPLIT // 2 + COPIED)),
    # bytes that each rank holds at most: moments, and masters in 16 bits; a float64 sum, and its average beside it
    *((text, {"precision": precision}, f"memory {kind}", times * P)
      for text, precision, *each in (
          ("dp=1", "fp32", 4, 12, 8), ("dp=1", "bf16", 2, 12, 12), ("dp=1", "fp16", 2, 12, 12),
          ("dp=4", "bf16", 2, 12, 12), ("dp=4,zero=1", "fp32", 4, 8 + 2, 2), ("dp=4,zero=1", "bf16", 2, 8 + 2, 3),
      )
      for kind, times in zip(("parameters", "gradients", "optimizer"), each, strict=True)),
    *((f"dp=4,zero={stage}", {"precision": precision}, "memory optimizer", times * P)
      for stage, precision, times in ((2, "fp32", 2), (3, "fp32", 2), (3, "bf16", 3))),
    *((text, {}, f"memory {kind}", times * (COPIED + SPLIT // 2))
      for text in ("tp=2", "tp=2,sp=1") for kind, times in (("parameters", 4), ("optimizer", 8))),
    ("pp=3,schedule=zb-h1", {}, "memory parameters",
     [4 * (2 * BLOCK + ROOT - HEAD), 4 * BLOCK, 4 * (BLOCK + TIED + HEAD)]),
    ("dp=2,sync=delayed", {"steps": 2}, "memory gradients", 12 * P + 8 * P),
    ("dp=2,sync=local", {}, "memory optimizer", 8 * P + 4 * P + 4 * P),  # start weights and momentum
    ("dp=2,sync=local,outer_momentum=0", LINEAR, "memory optimizer", 4 * P),
    ("dp=3,compress=onebit", {}, "memory optimizer", 8 * P + 8 * P),
    ("dp=3,compress=int8", {}, "memory optimizer", 8 * P),
    ("dp=3,compress=powersgd:2", {}, "memory optimizer", 8 * P + sum(
        8 * (prod(shape) + 2 * shape[-1]) for shape in SHAPES.values() if read_method("powersgd:2").factors(shape)
    )),
]  # fmt: skip


def value_of(result, what: str):
    """Return what a run has of one row's ``what``."""
    kind, *which = what.split()
    if kind == "traffic":
        return sum(rank.traffic.as_dict()["bytes_sent"] for rank in result.ranks)
    if kind == "memory":
        held = [rank.memory[which[0]] for rank in result.ranks]
        return held[0] if len(set(held)) == 1 else held
    rows = [[row for row in rank.collectives if row["elements"] != 1] for rank in result.ranks]
    if kind == "between":
        return sum(row["bytes_between_nodes"] for rank in rows for row in rank)

    def meant(row: dict) -> bool:
        keys = zip(("name", "axis", "dtype", "elements"), which, strict=False)
        return all(wanted in ("*", str(row[key])) for key, wanted in keys)

    if kind == "calls":
        return sum(row["calls"] for row in filter(meant, rows[0]))
    return sum(row["bytes_sent"] for rank in rows for row in filter(meant, rank))


@pytest.fixture(scope="module")
def measured(ranks):
    """``measured(text, changes)`` is a run, the same one for every row that asks for it."""

    @cache
    def of(text: str, changes: tuple):
        layout = Layout.parse(text)
        return run(ranks(layout.world_size), replace(BASE, **dict(changes)), layout)

    return lambda text, changes: of(text, tuple(changes.items()))


def is_short(text: str, changes: dict) -> bool:
    """Whether ``pytest`` alone has this run: on two ranks, in float32, and where a tied gradient waits."""
    usual = changes.keys() <= {"steps", "sequence_chunks"} or text == "dp=2"
    return (Layout.parse(text).world_size < 3 and usual) or text == "dp=2,pp=2,zero=2"


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["two ranks", "all"])
def test_bytes_and_memory_are_those_of_the_formulas(measured, every):
    rows = TABLE if every else [row for row in TABLE if is_short(*row[:2])]
    found = [(row, value_of(measured(*row[:2]), row[2])) for row in rows]
    assert [(*row, value) for row, value in found if value != row[-1]] == []
