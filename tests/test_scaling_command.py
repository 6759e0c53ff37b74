"""``minidist scaling``, as someone who plans a run types it."""

import json

from planned import rows

from minidist.cli import main as cli
from minidist.plan.scaling import kaplan
from minidist.plan.scaling.laws import BESIROGLU, LAWS
from minidist.plan.scaling.overtraining import overtraining


def told(capsys, flags: str) -> tuple[dict, dict[str, list[str]]]:
    """The JSON, and the table: first cell -> the other cells of its line."""
    assert cli.main(["scaling", *flags.split(), "--json", "-"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), rows(captured.err)


def test_a_budget_has_its_best_size_by_each_law(capsys):
    found, table = told(capsys, "--flops 5.76e23")
    assert list(table) == ["kaplan", *LAWS]
    assert table["besiroglu"] == ["72.2 B", "1.33 T", "18.4", "1.974"]  # Chinchilla: 70 B, 1.4 T
    assert table["kaplan"] == ["485 B", "198 B", "0.408", "1.772"]
    best = kaplan.optimum(5.76e23)
    assert list(found["kaplan"].values()) == [best.parameters, best.tokens, best.loss, best.tokens / best.parameters]
    assert found["besiroglu"]["parameters"] == BESIROGLU.optimum(5.76e23).parameters


def test_a_run_stands_beside_the_cheapest_with_its_loss(capsys):
    found, table = told(capsys, "--params 8e9 --tokens 15e12")  # Llama 3 8B
    law, expected = found["besiroglu"], overtraining(BESIROGLU, 8e9, 15e12)
    assert law["loss"] == BESIROGLU.loss(8e9, 15e12) and law["cheapest"]["parameters"] == expected.cheapest.parameters
    assert (law["overhead"], law["break_even_tokens"]) == (expected.overhead, expected.break_even_tokens)
    assert law["times_optimal_tokens"] == 15e12 / BESIROGLU.optimal_tokens(8e9)
    column = list(LAWS).index("besiroglu")
    assert [cells[column] for cells in table.values()] == ["2.022", "91.5", "33.8 B", "645 B", "451%", "11.4 T"]
    found, table = told(capsys, "--params 280e9 --tokens 300e9")  # Gopher: too short, and never paid back
    assert all(run["break_even_tokens"] is None and run["times_optimal_tokens"] < 1 for run in found.values())
    assert table["tokens of inference until even"] == [""] * len(LAWS)
