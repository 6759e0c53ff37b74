"""The memory ledger: what exists is counted once and while it exists, and nothing else."""

import gc
import tracemalloc

import numpy as np

from minidist import ledger
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.optim.optimizers import AdamW

CONFIG = GPTConfig(layers=3, heads=4, width=64, context=64)


def test_an_array_counts_once_and_while_it_exists():
    seen = []
    memory = ledger.start(lambda memory: seen.append(memory.total))
    x = np.zeros((10, 10))
    ledger.enter("parameters", x)
    ledger.enter("activations", x)  # a second entry is no change
    ledger.enter("gradients", np.zeros(50))  # freed at once
    assert seen == [800, 1200, 800] and memory.held["parameters"] == memory.total == 800
    assert memory.peak == 1200 and memory.at_peak["gradients"] == 400  # peaks of kinds and of all: other moments
    view = x[3]
    ledger.enter("activations", view)
    del x
    assert memory.total == 800  # the view keeps it
    del view
    known = {"parameters": 800, "gradients": 400, "optimizer": 0, "activations": 0, "peak": 1200}
    assert memory.total == 0 and memory.as_dict() == known
    for _ in range(100):  # ids are used again
        ledger.enter("activations", np.zeros(1000))
    assert memory.total == 0 and memory.peak == 8000
    ledger.stop()
    ledger.enter("parameters", np.zeros(3))  # without a ledger nothing is entered
    assert memory.total == 0


def test_it_holds_what_tracemalloc_finds():
    """After a forward pass, and after backward, it is what Python and NumPy have allocated."""
    memory, tokens = ledger.start(), np.random.default_rng(0).integers(0, 256, (4, 64))
    GPT(CONFIG)(tokens, tokens).backward()  # what is made once only is there now
    tracemalloc.start()
    try:
        model = GPT(CONFIG)
        for parameter in model.parameters():
            ledger.enter("parameters", parameter.data)
        optimizer = AdamW(model.parameters(), 1e-3)
        for array in optimizer.state().values():
            ledger.enter("optimizer", array)

        def traced() -> int:
            gc.collect()
            others = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, ledger.__file__)])
            return sum(trace.size for trace in others.traces)

        # besides arrays there are the objects that hold them: nodes, tensors, names
        assert memory.total <= traced() <= memory.total + 100_000
        loss = model(tokens, tokens)
        held = memory.held["activations"]
        assert held > 1_000_000 and memory.total <= traced() <= 1.02 * memory.total + 100_000
        loss.backward()
        del loss
        assert memory.held["activations"] == 0
        assert memory.held["gradients"] == 8 * sum(parameter.size for parameter in model.parameters())
        assert memory.total <= traced() <= memory.total + 150_000
    finally:
        tracemalloc.stop()
        ledger.stop()
