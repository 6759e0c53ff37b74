"""``minidist plan``, as someone who plans a run types it."""

import json
import re

import pytest

from minidist.cli import main as cli
from minidist.plan.validation.compare import compare_all

RECIPE = ["--model", "gpt3-175b", "--cluster", "a100:1024", "--batch", "1536"]
ONE = [*RECIPE, "--layout", "dp=8,tp=8,pp=16,sp=1,zero=1,virtual=6,recompute=selective,micro_batch=1"]


def shown(capsys, *arguments: str, status: int = 0) -> str:
    assert cli.main(["plan", *arguments]) == status
    return capsys.readouterr().out


def numbers(capsys, *arguments: str, status: int = 0) -> dict:
    return json.loads(shown(capsys, *arguments, "--json", "-", status=status))


def test_one_layout_is_explained(capsys):
    out = shown(capsys, *ONE, "--price", "2")
    for words in ("matrix products", "tensor parallelism", "pipeline bubble", "optimizer state", "activations"):
        assert words in out
    assert "This does not fit" not in out and "192 micro-batches on each rank" in out
    assert re.search(r"cost +[\d.]+[MB]", out)


def test_the_numbers_of_a_layout_add_up(capsys):
    told = numbers(capsys, *ONE)
    (layout,) = told["layouts"]
    assert layout["step_seconds"] == pytest.approx(sum(layout["step_seconds_parts"].values()), rel=1e-12)
    assert layout["memory_bytes"] == pytest.approx(sum(layout["memory_bytes_parts"].values()), rel=1e-12)
    kinds = ("products", "attention", "elementwise", "recompute")
    phases = layout["compute_seconds_by_phase"]
    assert phases.keys() == {"forward", "backward", "recompute"} and 1.8 < phases["backward"] / phases["forward"] < 2.5
    assert sum(phases.values()) == pytest.approx(sum(layout["step_seconds_parts"][kind] for kind in kinds))
    assert told["gpus"] == 1024 and told["batch_tokens"] == 1536 * 2048 and told["memory_limit_bytes"] == 80e9
    assert 0.3 < layout["mfu"] < layout["hfu"] < 0.7  # selective recomputation counts in HFU alone
    assert layout["mfu"] == layout["mfu_all_pairs"] > layout["mfu_causal"]
    flops = 312e12 * layout["mfu"]
    assert layout["tflops_per_gpu"] * 1e12 == pytest.approx(flops, rel=1e-12)
    whole = layout["whole_run"]
    assert whole["days"] == pytest.approx(whole["busy_days"] / whole["goodput"]) and whole["cost"] is None
    assert whole["gpu_hours"] == pytest.approx(whole["days"] * 24 * 1024)
    assert {sent["axis"] for sent in layout["sent"]} == {"tp", "pp", "dp"}
    assert {sent["leaves_node"] for sent in layout["sent"] if sent["axis"] == "tp"} == {False}


def test_flash_attention_counts_the_pairs_that_it_computes(capsys):
    (flash,) = numbers(capsys, *ONE, "--attention", "flash")["layouts"]
    assert flash["mfu"] == flash["mfu_causal"] == flash["hfu"] < flash["mfu_all_pairs"]


@pytest.mark.long
def test_the_best_layouts_and_why_the_others_lose(capsys):
    out = shown(capsys, *RECIPE, "--top", "3")
    assert re.search(r"the quickest of [\d,]+ legal layouts", out)
    assert "2 loses to 1:" in out and "3 loses to 1:" in out and "4 loses" not in out
    told = numbers(capsys, *RECIPE, "--top", "3")
    steps = [layout["step_seconds"] for layout in told["layouts"]]
    assert len(steps) == 3 and steps == pytest.approx(sorted(steps), rel=1e-3)
    assert all(layout["fits"] for layout in told["layouts"]) and told["search"]["legal"] > told["search"]["planned"]


def test_what_does_not_fit_says_by_how_much_and_what_would_help(capsys):
    seven = [
        "--model",
        "layers=32,width=4096,heads=32,vocab=32000,context=2048",
        "--cluster",
        "h100:8",
        "--batch",
        "64",
    ]
    out = shown(capsys, *seven, "--layout", "dp=8")
    assert re.search(r"This does not fit: [\d.]+ GB too much on each GPU", out) and "zero=1: " in out
    told = numbers(capsys, *seven, "--layout", "dp=8")
    assert not told["layouts"][0]["fits"] and told["layouts"][0]["changes"]["zero=3"]["fits"]


def test_where_nothing_fits(capsys):
    big = ["--model", "llama3-405b", "--cluster", "h100:8", "--batch", "8"]
    out = shown(capsys, *big, status=1)
    assert re.search(r"None of [\d,]+ legal layouts fits 80.0 GB", out) and "94 GPUs could hold them" in out
    assert numbers(capsys, *big, status=1)["smallest"][0]["memory_bytes"] > 80e9
    none = shown(capsys, "--model", "llama3-8b", "--cluster", "h100:41x1", "--batch", "8", status=1)
    assert "No layout is legal: 41 GPUs cannot share 8 sequences evenly" in none


def test_a_step_in_tokens(capsys):
    told = numbers(capsys, "--model", "llama3-8b", "--cluster", "h100:8", "--batch-tokens", "1M", "--layout", "zero=3")
    assert told["batch"] == 128 and told["batch_tokens"] == 2**20
    gpt3 = ["--model", "gpt3-175b", "--cluster", "a100:64", "--layout", "tp=8,pp=8"]
    assert numbers(capsys, *gpt3, "--batch-tokens", "3276800")["batch"] == 1600
    with_context = numbers(capsys, *gpt3, "--batch", "64", "--context", "4096")
    assert with_context["context"] == 4096


def test_plans_are_held_against_published_runs(capsys):
    out = shown(capsys, "--validate")
    assert "Korthikanti 22B" in out and "errors" in out
    told = numbers(capsys, "--validate")
    assert len(told["runs"]) == len(compare_all()) and not any(run["problem"] for run in told["runs"])
    errors = told["errors"]["tensor and pipeline parallel"]
    assert set(errors) == {"step_seconds", "mfu", "memory_bytes"}
    assert errors["step_seconds"]["mean"] < 0.15  # 0.11 when it was written: the table is shown however it turns out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model is missing: name one, such as --model llama3-8b; or --validate"),
        (["--model", "llama3-8b"], "--cluster is missing"),
        (
            ["--model", "llama4", "--cluster", "h100:8", "--batch", "8"],
            "unknown model 'llama4': the nearest is 'llama3-",
        ),
        (["--model", "llama3-8b", "--cluster", "h1:8", "--batch", "8"], "unknown hardware 'h1': the nearest is 'h100'"),
        (["--model", "llama3-8b", "--cluster", "h100:8"], "give the size of a step once"),
        ([*RECIPE, "--batch-tokens", "1M"], "give the size of a step once"),
        ([*RECIPE[:4], "--batch-tokens", "1000"], "do not divide it: choose --batch 1 "),
        ([*RECIPE[:4], "--batch", "0"], "--batch must be above 0, got 0"),
        ([*RECIPE, "--layout", "tp=5"], "6 GPUs|choose"),
        ([*RECIPE, "--layout", "tp=64,pp=16"], "tp=64 does not divide the 96 heads: the nearest legal are 48 and 96"),
        ([*RECIPE, "--precision", "fp8"], "A100 SXM4 80 GB has no fp8 arithmetic"),
        ([*RECIPE, "--context", "0"], "context must be at least 1, got 0"),
        (["--validate", "--json", "/nowhere/x.json"], "--json"),
    ],
)
def test_input_that_cannot_be(arguments, message, capsys):
    assert cli.main(["plan", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
