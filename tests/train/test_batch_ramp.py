"""A batch that grows: the sizes of Megatron-LM's rule, and a run that goes on in the middle of it."""

import pytest

from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.ramp import Ramp, read_ramp
from minidist.verify.interruption import Interruption, run_interrupted

CONFIG = TrainConfig(
    layers=2, heads=2, width=8, context=8, global_batch=8, micro_batch=1, steps=6, warmup=1, rampup_batch_size="4,2,20"
)


def test_the_batch_grows_as_megatron_s():
    """Megatron-LM's rule, from the samples consumed: start + int(consumed / (samples / increments)) increment."""
    for text, full, micro_batch in (
        ("12,12,120", 48, 2), ("1,1,7", 9, 1), ("3,3,0", 6, 3), ("256,128,50000", 1024, 4), ("2,6,100", 8, 2),
    ):  # fmt: skip
        start, increment, samples = map(int, text.split(","))
        ramp, consumed = read_ramp(text, full, micro_batch), 0
        for step in range(400):
            each = samples / ((full - start) / increment)
            size = full if consumed >= samples else start + int(consumed / each) * increment
            assert ramp.batch_at(step) == size <= full, (text, step)
            assert size in ramp.sizes
            consumed += size
        assert size == full
    assert Ramp(2, 2, 0, 8).batch_at(0) == 8  # over no samples
    ramp = Ramp(2, 2, 3 * 10**9, 8)  # 10^9 samples at each of 2, 4 and 6, found at once
    steps = [0, 5 * 10**8 - 1, 5 * 10**8, 75 * 10**7 - 1, 75 * 10**7, 10**12]
    assert [ramp.batch_at(step) for step in steps] == [2, 2, 4, 4, 6, 8]
    assert [CONFIG.batch_at(step) for step in range(6)] == [4, 4, 4, 6, 6, 8]
    assert CONFIG.tokens_of(range(6)) == 32 * 8 and CONFIG.tokens_of(range(5, 6)) == 8 * 8


@pytest.mark.long
def test_a_run_goes_on_in_the_middle_of_the_ramp():
    interruptions = [Interruption(Layout(dp=3), Layout(pp=2), 2), Interruption(Layout(pp=2), Layout(dp=2, zero=2), 4)]
    results = list(run_interrupted(interruptions, CONFIG, lambda _: None))
    assert len(results) == 3 and all(same for _, _, same in results)
