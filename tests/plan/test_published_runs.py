"""Published runs: well formed, possible, and their figures against each other through the FLOPs of a token."""

from math import prod

import pytest

from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.toml_tables import from_table
from minidist.plan.layout import PlannedLayout
from minidist.plan.models.library import model_of
from minidist.plan.validation.published import PublishedRun, published_runs, training_flops

KEYS = {"dp", "tp", "sp", "cp", "pp", "virtual", "ep", "zero", "recompute", "micro_batch", "attention"}
ROUNDED = 0.015  # figures are printed with two or three digits, and some are themselves made from rounded ones

RUNS = pytest.mark.parametrize("run", published_runs(), ids=lambda run: run.name)


def layout_of(run: PublishedRun) -> dict[str, str]:
    return dict(setting.split("=") for setting in run.layout.split(","))


def number(run: PublishedRun, key: str, default: int = 1) -> int:
    return int(layout_of(run).get(key, default))


def speeds(run: PublishedRun, convention: str) -> dict[str, float]:
    """Tokens per second of one GPU, by each published figure that tells it."""
    cluster, model, recompute = ClusterSpec.parse(run.cluster), run.shape, layout_of(run)["recompute"]
    peak = cluster.accelerator.flops[run.precision]
    found = {}
    if run.step_seconds:
        found["step_seconds"] = run.batch * model.context / run.step_seconds / cluster.world_size
    if run.tokens_per_second_per_gpu:
        found["tokens_per_second_per_gpu"] = run.tokens_per_second_per_gpu
    if run.mfu:
        found["mfu"] = run.mfu * peak / training_flops(model, convention, "model")
    if run.hfu and recompute == "full":  # of the selective ones, see Korthikanti below
        found["hfu"] = run.hfu * peak / training_flops(model, convention, "hardware", recompute)
    if run.tflops and run.tflops_count != "unknown":
        found["tflops"] = run.tflops * 1e12 / training_flops(model, convention, run.tflops_count, recompute)
    return found


def spread(run: PublishedRun, convention: str) -> float:
    found = speeds(run, convention).values()
    return max(found) / min(found) - 1


def test_there_are_many_of_dense_models_and_some_with_experts():
    runs = published_runs()
    assert len(runs) >= 150 and len({run.name for run in runs}) == len(runs)
    assert sum(run.shape.moe is not None for run in runs) >= 6
    assert {ClusterSpec.parse(run.cluster).accelerator.name.split()[0] for run in runs} >= {"V100", "A100", "H100"}


@RUNS
def test_a_layout_fills_its_cluster_and_its_batch(run):
    layout = layout_of(run)
    assert layout.keys() <= KEYS and {"recompute", "micro_batch", "attention"} <= layout.keys()
    assert layout["recompute"] in ("none", "selective", "full") and layout["attention"] in ("standard", "flash")
    cluster = ClusterSpec.parse(run.cluster)
    assert prod(number(run, axis) for axis in ("dp", "tp", "cp", "pp")) == cluster.world_size
    micro_batches, rest = divmod(run.batch, number(run, "dp") * number(run, "micro_batch"))
    assert rest == 0 and micro_batches > 0
    planned = PlannedLayout.parse(run.layout, cluster.world_size)
    assert planned.micro_batches(run.batch) == micro_batches


@RUNS
def test_a_layout_can_split_its_model(run):
    """Heads, tokens, experts and stages, and micro-batches in whole rounds where stages are interleaved."""
    PlannedLayout.parse(run.layout, ClusterSpec.parse(run.cluster).world_size).check(run.shape, run.batch)


@RUNS
def test_figures_of_one_run_agree_in_the_convention_it_names(run):
    if run.flops_convention == "unknown":
        assert len(speeds(run, "full")) < 2 or run.name.startswith("Llama 3 405B")  # see below
    else:
        assert spread(run, run.flops_convention) < ROUNDED


def test_llama_3_prints_mfu_and_tflops_but_no_time_so_its_convention_stays_open():
    runs = [run for run in published_runs() if run.name.startswith("Llama 3 405B")]
    for run in runs:
        assert spread(run, "full") < ROUNDED and spread(run, "causal") < ROUNDED
    assert len(runs) == 3


def test_the_other_convention_would_disagree_where_scores_are_many():
    """Megatron-Bridge counts what the causal mask leaves, NVIDIA's older recipes and all others count all scores."""
    other = {"full": "causal", "causal": "full"}
    long = [run for run in published_runs() if run.shape.context >= 8192 and len(speeds(run, "full")) > 1]
    told = [run for run in long if run.flops_convention != "unknown"]
    assert len(told) > 25
    for run in told:
        assert spread(run, other[run.flops_convention]) > 2 * ROUNDED, run.name
    causal = {run.name.split()[0] for run in published_runs() if run.flops_convention == "causal"}
    assert causal == {"Megatron-Bridge", "MegaScale"}


def test_korthikanti_s_hfu_counts_repeated_scores_three_times():
    """Its formulas: 72 B L s h^2 (1 + s/6h + v/12hL) for the model, with s/3h for the hardware."""
    runs = [run for run in published_runs() if run.name.startswith("Korthikanti") and run.hfu]
    for run in runs:
        model = training_flops(run.shape, "full", "model")
        once = training_flops(run.shape, "full", "hardware", "selective")
        thrice = model + 3 * (once - model)
        assert run.hfu / run.mfu == pytest.approx(thrice / model, rel=0.003)  # of figures with three digits
        assert run.hfu / run.mfu > once / model * 1.004
    assert len(runs) == 4


# NumParams in MosaicML's table: their shapes are held to the last parameter.
MPT = {
    "70B": 64_862_437_376, "30B": 29_975_214_080, "13B": 12_853_954_560, "7B": 6_658_859_008, "3B": 2_651_837_440,
    "1B": 1_315_950_592,
}  # fmt: skip


@pytest.mark.parametrize("size", MPT)
def test_mpt_has_the_published_number_of_parameters(size):
    shapes = {
        run.model for run in published_runs() if run.name.startswith(f"MPT {size},") and run.shape.context == 2048
    }
    assert [model_of(shape).parameters for shape in shapes] == [MPT[size]]


def test_zero_s_figure_has_sixteen_bytes_a_parameter_and_their_shares():
    """Rajbhandari et al.: 2 + 2 + 12 bytes, of which stage 1 shards 12, stage 2 another 2 and stage 3 all."""
    runs = [run for run in published_runs() if run.memory_count == "states"]
    for run, bytes_each in zip(runs, (16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64), strict=True):
        assert run.memory_bytes == pytest.approx(7.5e9 * bytes_each, rel=0.02)  # 1.9 GB has two digits
        assert run.shape.parameters == pytest.approx(7.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tflops_count": "hardwear"}, "tflops_count: the nearest is 'hardware'"),
        ({"flops_convention": "half"}, "flops_convention: the nearest is"),
        ({"mfu": None}, "no figure was published: give at least one of step_seconds"),
        ({"mfu": "43 %"}, "mfu: expected a number of at least 0, got '43 %'"),
        ({"layuot": "dp=8"}, "unknown key 'layuot': the nearest is 'layout'"),
        ({"source": None}, "the key 'source' is missing"),
    ],
)
def test_a_wrong_entry_is_named(change, message):
    table = {"name": "x", "model": "gpt3-175b", "cluster": "a100:1x8", "layout": "dp=8", "batch": 8, "source": "y"}
    table = {key: value for key, value in {**table, "mfu": 0.4, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        from_table(PublishedRun, table, "here")
