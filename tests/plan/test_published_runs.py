"""Published models and runs: their figures against each other and against their plans, and the documents of them.

``python tests/plan/test_published_runs.py`` writes published_runs.md anew, and prints the table of plan.md.
"""

from pathlib import Path

import pytest

from minidist.cli.plan_tables import validation_tables
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.layout import PlannedLayout
from minidist.plan.models import model_of, published
from minidist.plan.published_runs import (
    Comparison,
    PublishedRun,
    compare_all,
    family_of,
    published_runs,
    spread_of,
    training_flops,
)

DOCS = Path(__file__).parents[2] / "docs"
HEAD = """# Published runs next to their plans

`minidist plan --validate` makes this table; [plan.md](plan.md#compared-with-published-runs) says what it means. Where a
step's seconds were not published, they follow from tokens or FLOPs a second, as the authors count them. Sources and
what was inferred are in [published_runs.toml](../minidist/plan/published_runs.toml)."""
ROUNDED = 0.015  # figures are printed with two or three digits, and some are themselves made from rounded ones

WEIGHTS = {  # elements of the published weights, as Hugging Face counts them in the files' headers
    "llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496, "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704, "deepseek-v3": 671_026_419_200,
}  # fmt: skip
MPT = {  # NumParams in MosaicML's table
    "70B": 64_862_437_376, "30B": 29_975_214_080, "13B": 12_853_954_560, "7B": 6_658_859_008, "3B": 2_651_837_440,
    "1B": 1_315_950_592,
}  # fmt: skip


def test_models_have_the_published_parameters_and_flops():
    """Narayanan et al., arXiv 2104.04473, equations 2 and 3: without the last norm; FLOPs take forward twice."""
    assert {name: model_of(name).parameters for name in WEIGHTS} == WEIGHTS
    assert {*WEIGHTS} < {*published()} and all(model.source and model.name for model in published().values())
    assert model_of("mixtral-8x7b").active_parameters == 12_879_925_248  # "13B"
    active = model_of("deepseek-v3").active_parameters
    assert round(active / 1e9, 1) == 37.6 and round((active - 7168 * 129_280) / 1e9, 1) == 36.6  # without the embedding
    for name in ("gpt3-175b", "megatron-22b", "megatron-530b", "megatron-1t"):
        model = model_of(name)
        h, n, v, s = model.width, model.layers, model.vocab, model.context
        assert model.parameters - 2 * h == 12 * n * h * h + 13 * n * h + (v + s) * h, name
        with_recomputation = 96 * s * n * h * h * (1 + s / (6 * h) + v / (16 * n * h))
        head = 2 * s * v * h  # is not recomputed
        assert 4 * s * model.forward_flops - head == pytest.approx(with_recomputation, rel=1e-12), name
    shapes = {run.name.partition(",")[0]: run.shape for run in published_runs() if run.shape.context == 2048}
    assert {size: shapes[f"MPT {size}"].parameters for size in MPT} == MPT


def speeds(run: PublishedRun, convention: str) -> dict[str, float]:
    """Tokens per second of one GPU, by each published figure that tells it."""
    cluster, model = ClusterSpec.parse(run.cluster), run.shape
    recompute = PlannedLayout.parse(run.layout, cluster.world_size).recompute
    peak = cluster.accelerator.flops[run.precision]
    found = {"tokens_per_second_per_gpu": run.tokens_per_second_per_gpu}
    if run.step_seconds:
        found["step_seconds"] = run.batch * model.context / run.step_seconds / cluster.world_size
    if run.mfu:
        found["mfu"] = run.mfu * peak / training_flops(model, convention, "model")
    if run.hfu and recompute == "full":  # of the selective ones, see Korthikanti below
        found["hfu"] = run.hfu * peak / training_flops(model, convention, "hardware", recompute)
    if run.tflops and run.tflops_count != "unknown":
        found["tflops"] = run.tflops * 1e12 / training_flops(model, convention, run.tflops_count, recompute)
    return {name: speed for name, speed in found.items() if speed}


def spread(run: PublishedRun, convention: str) -> float:
    found = speeds(run, convention).values()
    return max(found) / min(found) - 1 if found else 0.0


def test_every_run_s_figures_agree_in_the_convention_it_names():
    runs, offenders = published_runs(), []
    for run in runs:
        if run.flops_convention != "unknown":
            disagree = spread(run, run.flops_convention) >= ROUNDED
        elif run.name.startswith("Llama 3 405B"):  # prints MFU and TFLOP/s, but no time: its convention stays open
            disagree = max(spread(run, "full"), spread(run, "causal")) >= ROUNDED
        else:
            disagree = len(speeds(run, "full")) >= 2  # then its convention follows
        offenders += [run.name] * disagree
    assert not offenders and len({run.name for run in runs}) == len(runs) >= 150
    assert {ClusterSpec.parse(run.cluster).accelerator.name.split()[0] for run in runs} >= {"V100", "A100", "H100"}


def test_korthikanti_s_hfu_follows_from_his_formulas():
    """72 B L s h^2 (1 + s/6h + v/12hL) for the model, with s/3h for the hardware: repeated scores count three times."""
    runs = [run for run in published_runs() if run.name.startswith("Korthikanti") and run.hfu]
    for run in runs:
        model, once = (training_flops(run.shape, "full", *count) for count in (("model",), ("hardware", "selective")))
        thrice = model + 3 * (once - model)
        assert run.hfu / run.mfu == pytest.approx(thrice / model, rel=0.003)  # of figures with three digits
        assert run.hfu / run.mfu > once / model * 1.004
    assert len(runs) == 4


STATED = {  # mean sizes of errors in docs/plan.md, rounded up
    ("tensor and pipeline parallel", "step_seconds"): 0.115,
    ("tensor and pipeline parallel", "memory_bytes"): 0.125,
    ("fully sharded", "step_seconds"): 0.33,  # PyTorch adds what the plan does not know
    ("fully sharded", "memory_bytes"): 0.48,
}


@pytest.fixture(scope="module")
def compared() -> list[Comparison]:
    return compare_all()


def test_every_plan_is_within_the_stated_error_of_what_was_published(compared):
    """MFU is the step once more. Korthikanti's runs say most: they were tuned by hand, and all is known of them."""
    assert [f"{one.run.name}: {one.problem}" for one in compared if one.problem] == []
    errors = [(one.family, figure.name, one.run.name, abs(figure.error)) for one in compared for figure in one.figures]
    for stated, most in STATED.items():
        sizes = [size for *which, _, size in errors if tuple(which) == stated]
        assert sum(sizes) / len(sizes) <= most, stated
    tuned = [size for _, name, run, size in errors if run.startswith("Korthikanti") and name == "step_seconds"]
    assert max(tuned) <= 0.09
    states = [figure.error for one in compared for figure in one.figures if one.run.memory_count == "states"]
    assert states == pytest.approx([0] * 4, abs=0.02)  # Rajbhandari et al., without ZeRO and with each of its stages


def tables(compared: list[Comparison]) -> list[str]:
    """Return what ``minidist plan --validate`` prints, for documents: a table of each family, and the errors."""
    texts = []
    for table in validation_tables(compared):
        rows = [[column.header for column in table.columns], ["---", *["---:"] * (len(table.columns) - 1)]]
        rows += zip(*(column.cells for column in table.columns), strict=True)
        texts.append(
            "\n".join([f"## {table.title[0].upper()}{table.title[1:]}\n", *(f"| {' | '.join(row)} |" for row in rows)])
        )
    return texts


def runs_document(compared: list[Comparison]) -> str:
    return "\n\n".join([HEAD, *tables(compared)[:-1]]) + "\n"


def test_the_tables_of_the_documents_are_those_of_now(compared):
    assert (DOCS / "published_runs.md").read_text(encoding="utf-8") == runs_document(compared)
    said = [tables(compared)[-1].partition("\n\n")[2]]
    said.append(f"every run: {len(compared)} of them, {sum(len(one.figures) for one in compared)} figures")
    split, sharded = (spread_of(family_of(one)) for one in (False, True))
    said.append(f"8 in 10 steps took {split.low:.2f} to {split.high:.2f} times as long as planned")
    said.append(f"{sharded.low:.2f} to {sharded.high:.2f} times on fully sharded ones")
    said.append(f"{split.held:.0%} and {sharded.held:.0%} of\n  them")
    text = (DOCS / "plan.md").read_text(encoding="utf-8")
    assert [words for words in said if words not in text] == []


def test_the_example_prints_what_it_says(capsys):
    text = (DOCS / "plan.md").read_text(encoding="utf-8")
    code, _, expected = text.partition("```python\n")[2].partition("```")[0].rpartition("# ")
    exec(code, {})
    assert capsys.readouterr().out == expected


if __name__ == "__main__":
    now = compare_all()
    (DOCS / "published_runs.md").write_text(runs_document(now), encoding="utf-8")
    print(tables(now)[-1])
