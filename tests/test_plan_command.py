"""``minidist plan``, as someone who plans a run types it."""

import json
import re

import pytest

from minidist.cli import main as cli
from minidist.plan.published_runs import compare_all, family_of, published_runs
from minidist.plan.units import in_bytes, in_count, in_time

RECIPE = ["--model", "gpt3-175b", "--cluster", "a100:1024", "--batch", "1536"]
ONE = [*RECIPE, "--layout", "dp=8,tp=8,pp=16,sp=1,zero=1,virtual=6,recompute=selective,micro_batch=1"]

SMALL_CHIP = """\
[accelerator.mine]
name = "mine"
memory = 2e9
memory_bandwidth = 1e12
flops = { bf16 = 80e12 }
source = "none"
[node.mine]
name = "mine"
accelerator = "mine"
size = 2
inside = "pcie4"
between = "ndr"
source = "none"
"""


@pytest.fixture
def shown(capsys, monkeypatch):
    """``shown(*flags)`` is what the command prints, ``shown(*flags, json=True)`` the numbers."""
    monkeypatch.setenv("COLUMNS", "120")

    def show(*flags: str, status: int = 0, json_too: bool = False):
        assert cli.main(["plan", *flags, *["--json", "-"] * json_too]) == status
        out = capsys.readouterr().out
        return json.loads(out) if json_too else out

    return show


def test_one_layout_is_explained_and_its_numbers_add_up(shown):
    told = shown(*ONE, json_too=True)
    (layout,), kinds = told["layouts"], ("products", "attention", "elementwise", "recompute")
    for total, parts in (("step_seconds", "step_seconds_parts"), ("memory_bytes", "memory_bytes_parts")):
        assert layout[total] == pytest.approx(sum(layout[parts].values()), rel=1e-12)
    phases = layout["compute_seconds_by_phase"]
    assert phases.keys() == {"forward", "backward", "recompute"} and 1.8 < phases["backward"] / phases["forward"] < 2.5
    assert sum(phases.values()) == pytest.approx(sum(layout["step_seconds_parts"][kind] for kind in kinds))
    assert told["gpus"] == 1024 and told["batch_tokens"] == 1536 * 2048 and told["memory_limit_bytes"] == 80e9
    assert 0.3 < layout["mfu"] < layout["hfu"] < 0.7  # selective recomputation counts in HFU alone
    assert layout["mfu"] == layout["mfu_all_pairs"] > layout["mfu_causal"]
    assert layout["tflops_per_gpu"] * 1e12 == pytest.approx(312e12 * layout["mfu"], rel=1e-12)
    whole = layout["whole_run"]
    assert whole["days"] == pytest.approx(whole["busy_days"] / whole["goodput"]) and whole["cost"] is None
    assert whole["gpu_hours"] == pytest.approx(whole["days"] * 24 * 1024)
    assert whole["busy_days"] == pytest.approx(whole["steps"] * layout["step_seconds"] / 86400)
    assert {(sent["axis"], sent["leaves_node"]) for sent in layout["sent"]} >= {("tp", False), ("dp", True)}
    (flash,) = shown(*ONE, "--attention", "flash", json_too=True)["layouts"]  # counts the pairs that it computes
    assert flash["mfu"] == flash["mfu_causal"] == flash["hfu"] < flash["mfu_all_pairs"]
    spread, family = layout["published_runs"], family_of(False)
    slow = [one.slowdown for one in compare_all() if one.slowdown and one.family == family]
    assert spread["step_seconds"] == [layout["step_seconds"] * spread[end] for end in ("low", "high")]
    within = sum(spread["low"] <= one <= spread["high"] for one in slow)
    assert spread["count"] == len(slow) and within == round(0.8 * len(slow)) and 0.5 < spread["held"] < 1
    out = shown(*ONE, "--price", "2")
    stages = [float(gb) for gb in re.findall(r"stage \d+ +│ +([\d.]+)", out)]
    assert len(stages) == 16 and max(stages) == pytest.approx(layout["memory_bytes"] / 1e9, abs=0.05)
    assert re.search(rf"2,048 tokens +│ +{max(stages)} ", out) and "typical " in out
    assert "This does not fit" not in out and "micro-batches on each rank: 192" in out and "cost " in out


def test_the_best_are_compared_and_what_does_not_fit_says_by_how_much_and_what_would_help(shown, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(SMALL_CHIP)
    model = "layers=32,width=4096,heads=32,vocab=32000,context=2048"
    for flags, status, said in (
        ("llama3-8b --cluster=h100:16 --batch=64 --top=3", 0, r"\b3 against 1:(?!.*4 against)"),
        (f"{model} --cluster=h100:8 --batch=64 --layout=dp=8", 0, r"This does not fit: [\d.]+ GB too much on each GPU"),
        ("llama3-8b --cluster=h100:8 --batch=64 --layout=zero=3 --gpu-mtbf-hours=0.001", 0, "never ends"),
        ("llama3-8b --cluster=h100:8 --batch=64 --layout=zero=3 --tokens=1e9", 0, r"whole run +3\.\d+ h "),
        ("llama3-405b --cluster=h100:8 --batch=8", 1, "94 GPUs could hold them"),
        ("deepseek-v3 --cluster=h100:64 --batch=64", 1, r"188.7 GB a GPU, spread\s+evenly: 155 GPUs could hold them"),
        (f"{model} --context=1 --cluster=h100:2 --batch=1 --layout=tp=2", 0, r"stage 0(?!.* [12] tokens).* 4 tokens"),
        (f"llama3-8b --cluster={own}:2 --batch=2", 1, "no number of GPUs could hold them"),
        ("llama3-8b --cluster=h100:41x1 --batch=8", 1, "legal: 41 GPUs cannot share 8 sequences evenly"),
    ):
        assert re.search(said, shown(*f"--model={flags}".split(), status=status), re.DOTALL), flags


def test_a_step_in_tokens_another_context_and_all_published_runs(shown):
    told = shown("--model=llama3-8b", "--cluster=h100:8", "--batch-tokens=1M", "--layout=zero=3", json_too=True)
    assert told["batch"] == 128 and told["batch_tokens"] == 2**20
    gpt3 = ["--model", "gpt3-175b", "--cluster", "a100:64", "--layout", "tp=8,pp=8"]
    assert shown(*gpt3, "--batch", "64", "--context", "4096", json_too=True)["context"] == 4096
    told = shown("--validate", json_too=True)
    assert len(told["runs"]) == len(published_runs()) and not any(run["problem"] for run in told["runs"])
    assert set(told["errors"]["tensor and pipeline parallel"]) == {"step_seconds", "mfu", "memory_bytes"}


def test_a_unit_has_at_least_one_as_it_is_rounded():
    assert [in_time(seconds) for seconds in (0, 4.4e-5, 59.99, 86_000, 86_364)] == [
        "0 µs",
        "44 µs",
        "1 min",
        "23.9 h",
        "1 d",
    ]
    assert [in_count(count) for count in (0.5, 999, 999.9e6, 16_777_216, 1e18)] == [
        "0.5",
        "999",
        "1B",
        "16.8M",
        "1e+06T",
    ]
    assert (in_bytes(0), in_bytes(999_700_000), in_bytes(20.6e9)) == ("0 bytes", "1 GB", "20.6 GB")
