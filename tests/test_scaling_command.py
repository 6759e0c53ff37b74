"""``minidist scaling``, as someone who plans a run types it."""

import json

import pytest

from minidist.cli import main as cli
from minidist.plan.scaling import kaplan
from minidist.plan.scaling.laws import BESIROGLU, LAWS
from minidist.plan.scaling.overtraining import overtraining

CHINCHILLA = ["scaling", "--flops", "5.76e23"]
LLAMA_3_8B = ["scaling", "--params", "8e9", "--tokens", "15e12"]


def rows(text: str) -> dict[str, list[str]]:
    """First cell -> the other cells of its line."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {first: rest for first, *rest in lines}


def test_a_budget_has_its_best_size_by_each_law(capsys):
    assert cli.main(CHINCHILLA) == 0
    table = rows(capsys.readouterr().out)
    assert list(table) == ["kaplan", *LAWS]
    assert table["besiroglu"] == ["72.2 B", "1.33 T", "18.4", "1.974"]  # Chinchilla: 70 B, 1.4 T
    assert table["hoffmann"] == ["32.2 B", "2.98 T", "92.6", "1.931"]
    assert table["kaplan"] == ["485 B", "198 B", "0.408", "1.772"]


def test_json_has_the_numbers_of_the_laws(capsys):
    assert cli.main([*CHINCHILLA, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    best = kaplan.optimum(5.76e23)
    assert found["kaplan"] == {
        "parameters": best.parameters,
        "tokens": best.tokens,
        "loss": best.loss,
        "tokens_per_parameter": best.tokens / best.parameters,
    }
    assert found["besiroglu"]["parameters"] == BESIROGLU.optimum(5.76e23).parameters


def test_a_run_stands_beside_the_cheapest_with_its_loss(capsys):
    assert cli.main([*LLAMA_3_8B, "--json", "-"]) == 0
    captured = capsys.readouterr()
    found, table = json.loads(captured.out)["besiroglu"], rows(captured.err)
    expected = overtraining(BESIROGLU, 8e9, 15e12)
    assert found["loss"] == BESIROGLU.loss(8e9, 15e12)
    assert found["cheapest"]["parameters"] == expected.cheapest.parameters
    assert found["overhead"] == expected.overhead
    assert found["break_even_tokens"] == expected.break_even_tokens
    assert found["times_optimal_tokens"] == 15e12 / BESIROGLU.optimal_tokens(8e9)
    column = list(LAWS).index("besiroglu")
    assert [cells[column] for cells in table.values()] == ["2.022", "91.5", "33.8 B", "645 B", "451%", "11.4 T"]


def test_a_run_that_is_too_short_is_never_paid_back(capsys):
    assert cli.main(["scaling", "--params", "280e9", "--tokens", "300e9", "--json", "-"]) == 0  # Gopher
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert all(run["break_even_tokens"] is None and run["times_optimal_tokens"] < 1 for run in found.values())
    assert rows(captured.err)["tokens of inference until even"] == [""] * len(LAWS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give a budget, --flops 5.76e23, or a run, --params 8e9 --tokens 15e12"),
        (["--params", "8e9"], "give a budget, --flops 5.76e23, or a run"),
        (["--flops", "1e20", "--params", "8e9", "--tokens", "1e9"], "give a budget, --flops 5.76e23, or a run"),
        (["--flops", "0"], "--flops must be positive and finite, got 0"),
        (["--params", "8e9", "--tokens", "inf"], "--tokens must be positive and finite, got inf"),
        (["--flops", "1e20", "--json", "/nowhere/a.json"], "--json: cannot write '/nowhere/a.json'"),
    ],
)
def test_bad_input_is_one_line(flags, message, capsys):
    assert cli.main(["scaling", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and message in captured.err and not captured.out
