"""The memory ledger: what exists is counted once and while it exists, and nothing else."""

import gc
import tracemalloc

import numpy as np
import pytest

import minidist as md
from minidist import ledger
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.optim.optimizers import AdamW

CONFIG = GPTConfig(layers=3, heads=4, width=64, context=64)


@pytest.fixture
def memory():
    yield ledger.start()
    ledger.stop()


def test_an_array_counts_while_it_exists(memory):
    x = np.zeros(100)
    ledger.hold("parameters", x)
    y = np.zeros(50)
    ledger.hold("gradients", y)
    assert memory.held == {"parameters": 800, "gradients": 400, "optimizer": 0, "activations": 0}
    del x
    assert memory.held["parameters"] == 0 and memory.total == 400
    assert memory.peaks["parameters"] == 800 and memory.peak == 1200
    assert memory.at_peak["gradients"] == 400
    assert memory.as_dict() == {"parameters": 800, "gradients": 400, "optimizer": 0, "activations": 0, "peak": 1200}


def test_views_and_second_entries_count_once(memory):
    x = np.zeros((10, 10))
    ledger.hold("parameters", x)
    ledger.hold("activations", x)
    ledger.hold("activations", x[2:4].T.reshape(-1))  # a copy: that is new
    view = x[3]
    ledger.hold("activations", view)
    assert memory.held["parameters"] == 800 and memory.held["activations"] == 0
    del x
    assert memory.held["parameters"] == 800  # the view keeps it
    del view
    assert memory.total == 0


def test_a_new_array_in_an_old_ones_place_counts(memory):
    for _ in range(100):  # ids are used again
        ledger.hold("activations", np.zeros(1000))
    assert memory.total == 0 and memory.peak == 8000


def test_a_watch_sees_every_change():
    seen = []
    memory = ledger.start(lambda memory: seen.append(memory.total))
    try:
        x = np.zeros(100)
        ledger.hold("parameters", x)
        ledger.hold("parameters", x)  # no change
        ledger.hold("gradients", np.zeros(50))  # freed at once
        del x
    finally:
        ledger.stop()
    assert seen == [800, 1200, 800, 0] and memory.peak == 1200


def test_without_a_ledger_nothing_is_entered():
    ledger.stop()
    ledger.hold("parameters", np.zeros(3))


def test_peaks_of_kinds_and_of_all_are_different_moments(memory):
    x = np.zeros(100)
    ledger.hold("parameters", x)
    del x
    y = np.zeros(70)
    ledger.hold("gradients", y)
    assert memory.peaks["parameters"] == 800 and memory.peaks["gradients"] == 560 and memory.peak == 800


def test_against_tracemalloc(memory):
    """What the ledger holds after a forward pass, and after backward, is what Python and NumPy have allocated."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, (4, 64))
    GPT(CONFIG)(tokens, tokens).backward()  # what is made once only is there now
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        model = GPT(CONFIG)
        for parameter in model.parameters():
            ledger.hold("parameters", parameter.data)
        optimizer = AdamW(model.parameters(), 1e-3)
        for array in optimizer.state().values():
            ledger.hold("optimizer", array)

        def traced() -> int:
            gc.collect()
            return tracemalloc.get_traced_memory()[0] - before

        # besides arrays there are the objects that hold them: nodes, tensors, names
        assert memory.total <= traced() <= memory.total + 100_000
        loss = model(tokens, tokens)
        held = memory.held["activations"]
        assert held > 1_000_000 and memory.total <= traced() <= 1.02 * memory.total + 100_000
        loss.backward()
        del loss
        assert memory.held["activations"] == tokens.nbytes  # saved by the embedding; they are this test's own
        assert memory.held["gradients"] == 8 * sum(parameter.size for parameter in model.parameters())
        assert memory.total <= traced() <= memory.total + 150_000
    finally:
        tracemalloc.stop()


def test_what_a_layer_saves():
    """Bytes that one layer saves for backward: 4 B T (17 C + H T + H + 2), as chapter 0 counts them."""
    found = []
    for layers in (1, 2):
        memory = ledger.start()
        loss = GPT(GPTConfig(layers=layers, heads=4, width=64, context=32))(*[np.zeros((2, 32), int)] * 2)
        found.append(memory.held["activations"])
        del loss
        ledger.stop()
    batch, length, width, heads = 2, 32, 64, 4
    assert found[1] - found[0] == 4 * batch * length * (17 * width + heads * length + heads + 2)


def test_a_run_brings_it_back(ranks):
    from minidist.train.config import TrainConfig
    from minidist.train.layout import Layout
    from minidist.train.trainer import run

    config = TrainConfig(layers=1, heads=2, width=16, context=16, steps=2, global_batch=4)
    result = run(ranks(2), config, Layout(2))
    parameters = sum(parameter.data.nbytes for parameter in GPT(config.model).parameters())
    for memory in result.as_dict()["memory"]:
        assert memory["parameters"] == parameters and memory["optimizer"] == 2 * parameters
        assert memory["gradients"] == 3 * parameters  # float64 sums, and their float32 averages
        assert memory["activations"] > 0
        assert max(memory[kind] for kind in ledger.KINDS) < memory["peak"] <= sum(memory[kind] for kind in ledger.KINDS)
    assert md.backend is not None
