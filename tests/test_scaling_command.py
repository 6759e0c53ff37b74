"""``minidist scaling``: its JSON beside the laws. tests/plan/test_scaling.py has the tables of docs/scaling.md."""

import json

from minidist.cli import main as cli
from minidist.plan.scaling import kaplan
from minidist.plan.scaling.laws import BESIROGLU
from minidist.plan.scaling.overtraining import overtraining


def test_budgets_have_the_best_sizes_of_the_laws_and_runs_stand_beside_the_cheapest_with_their_loss(capsys):
    def told(flags: str) -> dict:
        assert cli.main(["scaling", *flags.split(), "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    found, best = told("--flops 5.76e23"), kaplan.optimum(5.76e23)
    assert list(found["kaplan"].values()) == [best.parameters, best.tokens, best.loss, best.tokens / best.parameters]
    assert found["besiroglu"]["parameters"] == BESIROGLU.optimum(5.76e23).parameters
    law, expected = told("--params 8e9 --tokens 15e12")["besiroglu"], overtraining(BESIROGLU, 8e9, 15e12)
    assert law["loss"] == BESIROGLU.loss(8e9, 15e12) and law["cheapest"]["parameters"] == expected.cheapest.parameters
    assert (law["overhead"], law["break_even_tokens"]) == (expected.overhead, expected.break_even_tokens)
    assert law["times_optimal_tokens"] == 15e12 / BESIROGLU.optimal_tokens(8e9)
    gopher = told("--params 280e9 --tokens 300e9").values()  # too short, and never paid back
    assert all(run["break_even_tokens"] is None and run["times_optimal_tokens"] < 1 for run in gopher)
