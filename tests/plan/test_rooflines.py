"""Rooflines and what stands under them: inference, fused kernels, a mixture's traffic; each against a count."""

from itertools import product

import numpy as np
import pytest
from planned import PAGE

from minidist import flops
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.tensor import no_grad
from minidist.plan import expert_traffic
from minidist.plan.cluster.hardware import load
from minidist.plan.cluster.roofline import (
    Work,
    attainable_flops,
    compute_bound_batch,
    decode,
    kernel_seconds,
    kv_bytes,
    largest_batch,
    prefill,
    ridge_point,
    weight_count,
)
from minidist.plan.memory_check import parameter_count

H100 = load().accelerators["h100"]
SEVEN_BILLION = GPTConfig(vocab=50257, context=2048, layers=32, heads=32, width=4096)


def test_the_longer_of_arithmetic_and_memory_decides_and_the_roof_bends_where_they_meet():
    peak, bandwidth, ridge = 989.4e12, 3.35e12, ridge_point(H100, "bf16")
    for work, seconds in (((peak, 1.0), 1.0), ((1.0, bandwidth), 1.0), ((peak, 2 * bandwidth), 2.0), ((0, 0), 0.0)):
        assert kernel_seconds(H100, *work, "bf16") == pytest.approx(seconds)
    both = {"flops_efficiency": 0.5, "memory_efficiency": 0.8}
    assert kernel_seconds(H100, peak, bandwidth, "bf16", **both) == pytest.approx(2.0)
    assert kernel_seconds(H100, peak, bandwidth, "bf16", memory_efficiency=0.8) == pytest.approx(1.25)
    assert ridge == pytest.approx(295.3, abs=0.05)
    assert [attainable_flops(H100, "bf16", ridge * x) for x in (0.5, 1, 2)] == pytest.approx([peak / 2, peak, peak])
    assert Work(6, 3).intensity == 2 and Work(6, 0).intensity == float("inf") and Work(6, 3) + Work(1, 2) == Work(7, 5)


def test_products_are_those_that_a_real_forward_pass_counts():
    """The pass has logits for all tokens, and computes the half of the scores that it masks."""
    for layers, vocab in ((1, 256), (3, 30)):
        config = GPTConfig(vocab=vocab, context=16, layers=layers, heads=4, width=32)
        model, tokens, before = GPT(config), np.zeros((3, 16), np.int64), flops.snapshot()
        with no_grad():
            model(tokens, tokens)
        counted, work = (flops.snapshot() - before)["forward"], prefill(config, 3, 16)
        head = 2 * config.width * -(-vocab // 4) * 4
        assert counted == work["products"].flops + (3 * 16 - 3) * head + work["attention"].flops * 2 * 16 / 17
    config = SEVEN_BILLION
    others = config.context * config.width + config.layers * (9 + 4) * config.width + 2 * config.width
    assert weight_count(config) == parameter_count(config) - others  # positions, biases and norms


def test_prefill_and_decode_are_the_two_ends_of_the_roofline():
    """Step after step, decode computes what prefill does at once; but prefill has logits of the last token alone."""
    one, whole = [decode(SEVEN_BILLION, 2, context) for context in range(1, 65)], prefill(SEVEN_BILLION, 2, 64)
    assert sum(step["attention"].flops for step in one) == whole["attention"].flops
    logits = 2 * 2 * 50272 * 4096  # 50,257 rounded up to 32 heads
    assert sum(step["products"].flops for step in one) == whole["products"].flops + 63 * logits
    weights, ends = 32 * 12 * 4096**2 + 50272 * 4096, 4096 + 50272  # all; what the head reads and writes for a row
    row = 32 * (4 + 2 + 5 + 5) * 4096  # what the products of all layers read and write for a token
    assert whole["products"].nbytes == 2 * (weights + 2 * 64 * row + 2 * ends)
    assert sum(step["products"].nbytes for step in one) == 2 * 64 * (weights + 2 * row + 2 * ends)
    assert whole["attention"].nbytes == 2 * 2 * 64 * 32 * 4 * 4096  # queries, keys, values and outputs
    assert one[-1]["attention"].nbytes == 2 * 2 * 32 * (2 * 64 + 2) * 4096  # the cache; a query and an output
    assert decode(SEVEN_BILLION, 4096, 2048)["attention"].intensity == pytest.approx(1.0, abs=1e-3)


def test_the_batch_from_which_decode_is_compute_bound_and_the_largest_are_the_first_and_the_last():
    for name, chip in load().accelerators.items():
        precision = "bf16" if "bf16" in chip.flops else "fp16"
        batch, ridge = compute_bound_batch(SEVEN_BILLION, chip, precision), ridge_point(chip, precision)
        before, at = (decode(SEVEN_BILLION, number, 1)["products"].intensity for number in (batch - 1, batch))
        assert before < ridge <= at, name
    narrow = GPTConfig(vocab=256, context=64, layers=2, heads=4, width=64)  # activations move more than weights compute
    assert compute_bound_batch(narrow, H100, "bf16") is None
    batch, each = largest_batch(SEVEN_BILLION, H100, 2048), 2048 * kv_bytes(SEVEN_BILLION)
    held = 2 * weight_count(SEVEN_BILLION) + batch * each
    assert held <= 80e9 < held + each and each == 2048 * 2 * 32 * 4096 * 2
    assert largest_batch(SEVEN_BILLION, H100, 10**6) == 0


CHAINS = {  # the arrays that kernels read and write, one after another, and those of one fused kernel
    "bias + GELU": ("x h h y", "x y"),
    "dropout + add + LayerNorm": ("x mask kept kept x stream stream y", "x x mask stream y"),
    "softmax with mask": ("x x x x x x x x x x x x", "x x"),  # scale, mask, max, subtract, exp, sum, divide
    "AdamW": ("m m g s m s m v v g s s s v s v v s s s s s m s s s s w w w s w", "g m v w w m v"),  # adamw_update
}


def test_fused_chains_take_the_time_that_the_page_says():
    """The chains are on 8 x 2,048 x 4,096 numbers of 2 bytes; a mask has one byte for each."""
    table = PAGE[PAGE.index("| chain |") :].split("\n\n")[0].splitlines()[2:]
    for (name, chains), line in zip(CHAINS.items(), table, strict=True):
        passes, times = [arrays.split() for arrays in chains], []
        for arrays in passes:
            nbytes = sum(1 if one == "mask" else 2 for one in arrays) << 26
            times.append(f"{1e6 * kernel_seconds(H100, 0, nbytes, 'bf16'):,.0f}")
        assert line == f"| {' | '.join([name, *map(str, map(len, passes)), *times])} |"


def test_a_mixture_sends_what_is_counted_message_by_message():
    """n tokens choose k of the ranks evenly: so many rows from each rank to each, and back, forward and backward."""
    n, width = 96, 8
    for ranks, node_size, k in product((1, 2, 8, 16, 32), (2, 8, 32), (1, 2, 8)):
        if ranks % node_size and ranks > node_size:
            continue
        rows = [(other, k * n / ranks * width) for other in range(ranks) if other != 0]
        crossing = 4 * sum(size for other, size in rows if other >= node_size)
        staying = 4 * sum(size for other, size in rows if other < node_size)
        links = expert_traffic.Links(inside=10.0, between=1.0, node_size=node_size)
        assert expert_traffic.all_to_all_elements(n, width, k, ranks) == pytest.approx(crossing + staying)
        assert expert_traffic.between_nodes(n, width, k, ranks, node_size) == pytest.approx(crossing)
        slower = max(staying / 10, crossing)
        assert expert_traffic.all_to_all_seconds(n, width, k, ranks, links) == pytest.approx(slower)
        if ranks <= node_size:
            ring = 2 * sum(n * width / ranks for step in range(2 * (ranks - 1)))  # an all-reduce each way
            assert expert_traffic.all_reduce_elements(n, width, ranks) == pytest.approx(ring)
            assert expert_traffic.all_reduce_seconds(n, width, ranks, links) == pytest.approx(ring / 10)


def test_from_how_many_experts_a_token_on_a_mixture_is_slower():
    """Computed by hand for 64 experts, with links in a node ten times as fast as between nodes, or as fast."""
    for ranks, inside, same_batch, expected in (
        (8, 10.0, False, 2),
        (16, 10.0, False, 1),  # half of the rows on slow links
        (16, 1.0, False, 2),
        (8, 10.0, True, 9),  # t times as many tokens for each tensor-parallel rank
        (64, 10.0, True, 1),  # 7/8 of the rows leave the node
        (64, 1.0, True, 9),  # 7 x 8/8 / (7/8): 8 take as long
    ):
        found = expert_traffic.smallest_k(ranks, 8, 64, expert_traffic.Links(inside, 1.0, 8), same_batch)
        assert found == expected, (ranks, inside)
    links = expert_traffic.Links(10.0, 1.0, 8)
    assert expert_traffic.smallest_k(2, 2, 1, links) is None  # one expert for each token, inside: just as much
