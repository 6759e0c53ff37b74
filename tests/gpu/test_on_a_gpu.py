"""On a real GPU, shared by all ranks: ``pytest tests/gpu/test_on_a_gpu.py``. Skipped where there is none."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest

from minidist import backend
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run
from minidist.verify.layouts import DEFAULT_LAYOUTS, MORE_LAYOUTS

try:
    backend.find("cupy")
except RuntimeError as error:
    pytest.skip(str(error), allow_module_level=True)

CONFIG = TrainConfig(layers=2, heads=4, width=64, context=32, steps=5, backend="cupy")
# A float32 has 24 bits, and a loss is a mean of some thousand products of sums of some hundred terms, which a GPU adds
# in another order: a few hundred roundings of 6e-8 after a few steps.
LOSSES = 2e-5  # relative


@pytest.fixture(scope="module")
def one_process(ranks):
    found = {}

    def reference(config: TrainConfig):
        if config not in found:
            found[config] = run(ranks(1), config, Layout())
        return found[config]

    return reference


def config_for(layout: Layout, precision: str = "fp32") -> TrainConfig:
    """With the sequence chunks and the experts that a layout needs."""
    experts = 0 if layout.ep == 1 else 10 if layout.ep == 5 else 8
    return replace(CONFIG, precision=precision, sequence_chunks=4 if layout.cp > 1 else 1, experts=experts)


@pytest.mark.parametrize("layout", [*DEFAULT_LAYOUTS, *MORE_LAYOUTS], ids=str)
def test_every_layout_has_the_bits_of_one_process(ranks, one_process, layout):
    config = config_for(layout)
    assert run(ranks(layout.world_size), config, layout).fingerprint == one_process(config).fingerprint


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize("text", ["zero=3,dp=2", "tp=2,sp=1", "pp=2,recompute=full", "dp=4,ep=2,zero=2"])
def test_every_precision_has_the_bits_of_one_process(ranks, one_process, precision, text):
    layout = Layout.parse(text)
    config = config_for(layout, precision)
    assert run(ranks(layout.world_size), config, layout).fingerprint == one_process(config).fingerprint


def test_a_run_repeats(ranks, one_process):
    for _ in range(3):
        assert run(ranks(1), CONFIG, Layout()).fingerprint == one_process(CONFIG).fingerprint


def test_losses_are_near_those_of_numpy(ranks, one_process):
    expected = np.array(run(ranks(1), replace(CONFIG, backend="numpy"), Layout()).losses)
    distance = np.abs(np.array(one_process(CONFIG).losses) / expected - 1).max()
    print(f"largest relative distance from NumPy's losses: {distance:.1e}")
    assert distance < LOSSES


def test_float32_products_keep_24_bits():
    """TF32 would keep 11."""
    import cupy

    assert os.environ.get("CUPY_TF32", "0") == "0"
    a = cupy.full((64, 64), 1 + 2.0**-20, np.float32)
    product = (a @ cupy.eye(64, dtype=np.float32)).get()
    assert math.isclose(float(product[0, 0]), 1 + 2.0**-20, rel_tol=2.0**-23)
