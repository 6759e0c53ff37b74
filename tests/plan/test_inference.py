"""Prefill and decode: against the products that the library counts, and at both ends of the roofline."""

from math import ceil

import numpy as np
import pytest

from minidist import flops
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.moe.config import MoEConfig
from minidist.nn.tensor import no_grad
from minidist.plan.cluster.hardware import load
from minidist.plan.cluster.inference import compute_bound_batch, decode, kv_bytes, largest_batch, prefill, weight_count
from minidist.plan.cluster.roofline import ridge_point
from minidist.plan.memory_check import parameter_count

H100 = load().accelerators["h100"]
SEVEN_BILLION = GPTConfig(vocab=50257, context=2048, layers=32, heads=32, width=4096)


def test_weights_are_all_parameters_but_positions_biases_and_norms():
    config = SEVEN_BILLION
    others = config.context * config.width + config.layers * (9 + 4) * config.width + 2 * config.width
    assert weight_count(config) == parameter_count(config) - others


@pytest.mark.parametrize(("layers", "vocab"), [(1, 256), (3, 30)])
def test_products_are_those_that_a_real_forward_pass_counts(layers, vocab):
    """It has logits for all tokens, and computes the half of the scores that it masks."""
    config = GPTConfig(vocab=vocab, context=16, layers=layers, heads=4, width=32)
    model = GPT(config)
    tokens = np.zeros((3, 16), np.int64)
    before = flops.snapshot()
    with no_grad():
        model(tokens, tokens)
    counted = (flops.snapshot() - before)["forward"]
    work = prefill(config, 3, 16)
    head = 2 * config.width * -(-vocab // 4) * 4
    assert counted == work["products"].flops + (3 * 16 - 3) * head + work["attention"].flops * 2 * 16 / 17


def test_decode_step_after_step_computes_what_prefill_computes_at_once():
    """But for the logits: prefill has those of the last token alone."""
    one = [decode(SEVEN_BILLION, 2, context) for context in range(1, 65)]
    all_at_once = prefill(SEVEN_BILLION, 2, 64)
    assert sum(step["attention"].flops for step in one) == all_at_once["attention"].flops
    logits = 2 * 2 * 50272 * 4096  # 50,257 rounded up to 32 heads
    assert sum(step["products"].flops for step in one) == all_at_once["products"].flops + 63 * logits
    assert sum(step["products"].nbytes for step in one) > 50 * all_at_once["products"].nbytes  # the weights, 64 times


def test_prefill_and_decode_are_the_two_ends_of_the_roofline():
    ridge = ridge_point(H100, "bf16")
    assert prefill(SEVEN_BILLION, 1, 2048)["products"].intensity > 3 * ridge
    assert decode(SEVEN_BILLION, 1, 2048)["products"].intensity == pytest.approx(1.0, abs=1e-2)
    for batch in (1, 64, 4096):
        assert decode(SEVEN_BILLION, batch, 2048)["attention"].intensity == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("name", load().accelerators)
def test_the_batch_from_which_decode_is_compute_bound_is_the_first(name):
    accelerator = load().accelerators[name]
    precision = "bf16" if "bf16" in accelerator.flops else "fp16"
    batch, ridge = compute_bound_batch(SEVEN_BILLION, accelerator, precision), ridge_point(accelerator, precision)
    assert decode(SEVEN_BILLION, batch, 1)["products"].intensity >= ridge
    assert decode(SEVEN_BILLION, batch - 1, 1)["products"].intensity < ridge
    # A multiply-add for each weight of two bytes: one FLOP per byte and sample. Each sample's activations move as well.
    moved = (decode(SEVEN_BILLION, 2, 1)["products"].nbytes - decode(SEVEN_BILLION, 1, 1)["products"].nbytes) / 2
    assert batch == ceil(ridge / (1 - ridge * moved / weight_count(SEVEN_BILLION)))


def test_a_model_too_narrow_is_never_compute_bound():
    """Its activations move more than its weights compute."""
    narrow = GPTConfig(vocab=256, context=64, layers=2, heads=4, width=64)
    assert compute_bound_batch(narrow, H100, "bf16") is None
    assert decode(narrow, 10**9, 1)["products"].intensity < ridge_point(H100, "bf16")


def test_the_kv_cache_fills_the_memory_first():
    assert kv_bytes(SEVEN_BILLION) == 2 * 32 * 4096 * 2
    batch = largest_batch(SEVEN_BILLION, H100, 2048)
    held = 2 * weight_count(SEVEN_BILLION) + batch * 2048 * kv_bytes(SEVEN_BILLION)
    assert held <= 80e9 < held + 2048 * kv_bytes(SEVEN_BILLION)
    assert batch < compute_bound_batch(SEVEN_BILLION, H100, "bf16")
    assert largest_batch(SEVEN_BILLION, H100, 10**6) == 0


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="batch must be at least 1, not 0"):
        decode(SEVEN_BILLION, 0, 10)
    with pytest.raises(ValueError, match="counted for dense models"):
        weight_count(GPTConfig(moe=MoEConfig(experts=4)))
