"""Layouts as text, and bad input told in one line before any rank starts."""

import pytest

from minidist.train.config import TrainConfig
from minidist.train.layout import Layout


@pytest.mark.parametrize("text", ["dp=1", "dp=4", "dp=3,algorithm=tree", "dp=2,sync=naive", "dp=8,bucket_mb=0.01"])
def test_a_layout_reads_what_it_writes(text):
    assert str(Layout.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp=0", "dp=0: the number of data-parallel ranks must be from 1 to 64"),
        ("dp=65", "from 1 to 64"),
        ("dp=two", "dp=two is not a whole number"),
        ("dp=2,dp=3", "dp is given twice"),
        ("np=2", "'np=2' is not key=value with a key of dp, algorithm"),
        ("", "'' is not key=value"),
        ("dp=2,", "'' is not key=value"),
        ("dp", "'dp' is not key=value"),
        ("dp=2,algorithm=magic", "algorithm=magic: choose from auto, naive"),
        ("dp=2,sync=never", "choose from naive, bucketed, overlapped"),
        ("dp=2,bucket_mb=0", "larger than 0 MiB"),
        ("dp=2,bucket_mb=x", "bucket_mb=x is not a number"),
        ("dp=²", "dp=² is not a whole number: write it in the digits 0 to 9"),
        ("dp=１", "dp=１ is not a whole number"),
        ("dp=1_0", "dp=1_0 is not a whole number"),
        ("dp=" + "9" * 5000, "999... (5000 characters) is not a whole number"),  # more digits than Python reads
        ("tp=" + "9" * 400, "999... (400 characters) is too large: a whole number may be 9223372036854775807 at most"),
        ("dp=2,bucket_mb=1_0", "bucket_mb=1_0 is not a number: write it as in 12, 0.5 or 3e-4"),
        ("pp=2,stages=²+1", "stages=²+1: write how many layers each stage has, at least 1, as in stages=2+3+3"),
        ("pp=2,stages=１+1", "stages=１+1: write how many layers"),
        ("pp=2,stages=1_0+1", "stages=1_0+1: write how many layers"),
        ("pp=2,stages=-1+2", "stages=-1+2: write how many layers"),
        ("pp=2,stages=1+", "stages=1+: write how many layers"),
    ],
)
def test_bad_layouts(text, message):
    with pytest.raises(ValueError) as caught:
        Layout.parse(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_numbers_in_the_usual_forms_are_read():
    layout = Layout.parse("dp=+2, bucket_mb=5e-1")
    assert (layout.dp, layout.bucket_mb) == (2, 0.5)
    assert Layout.parse("bucket_mb=inf").bucket_mb == float("inf")
    assert Layout.parse("pp=2,stages=01+2").layers_of_stages == [1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"steps": 10**400}, r"steps must be below 2\^63"),
        ({"warmup": 2**63}, r"warmup must be below 2\^63"),
        ({"layers": 10**400}, r"layers must be below 2\^63"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"lr": 0.0}, "lr must be larger than 0"),
        ({"lr": float("inf")}, "lr must be a finite number"),
        ({"weight_decay": float("nan")}, "weight_decay must be a finite number"),
        ({"seed": -1}, "seed must not be negative"),
        ({"global_batch": 10, "micro_batch": 4}, "global_batch 10 must be a multiple of micro_batch 4"),
        ({"reduce_dtype": "float16"}, "float32 or float64"),
        ({"heads": 5}, "width 64 is not divisible by 5 heads"),
    ],
)
def test_bad_configs(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)


def test_more_ranks_than_micro_batches():
    with pytest.raises(
        ValueError, match="dp=8 needs at least 8 micro-batches, but global_batch 8 / micro_batch 2 makes 4"
    ):
        TrainConfig(global_batch=8, micro_batch=2).check(Layout(dp=8))
