"""``minidist failures``, as someone who plans a run types it, and docs/failures.md."""

import json
import re
from pathlib import Path

import pytest
from planned import rows

from minidist.cli import main as cli
from minidist.plan.goodput import daly_interval, first_order_waste, goodput, llama3_mtbf_hours, young_interval

MTBF = llama3_mtbf_hours() * 3600
LLAMA_3 = ["failures", "--gpus", "16384"]
PAGE = (Path(__file__).parent.parent / "docs" / "failures.md").read_text(encoding="utf-8")


def results(capsys, *command: str) -> dict:
    assert cli.main([*command, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_numbers_are_those_of_the_formulas(capsys):
    assert cli.main(LLAMA_3) == 0  # by default its cluster
    table = rows(capsys.readouterr().out)
    assert table["mean time between failures"] == ["3.09 h"] and table["interval: Daly"] == ["18.6 min"]
    assert table["goodput, failed node: replaced at once"] == [f"{goodput(MTBF, daly_interval(MTBF, 60), 60, 300):.2%}"]
    flags = ["--save-seconds", "10", "--restart-seconds", "200", "--detection-seconds", "50"]
    found, interval = results(capsys, *LLAMA_3, *flags), daly_interval(MTBF, 10)
    (case,) = found["cases"]
    assert case["simulation"] is None and found["interval_seconds"] == found["daly_seconds"]
    told = [found[name] for name in ("mtbf_seconds", "young_seconds", "daly_seconds", "first_order_waste")]
    known = [MTBF, young_interval(MTBF, 10), interval, first_order_waste(MTBF, interval, 10, 250)]
    assert [*told, case["goodput"]] == pytest.approx([*known, goodput(MTBF, interval, 10, 250)], rel=1e-12)


def test_the_simulation_stands_beside_the_formula_and_a_seed_repeats_it(capsys):
    flags = ["--spares", "3", "--repair-hours", "24", "--simulate", "100", "--detection-seconds", "60"]
    simulations = [case["simulation"] for case in results(capsys, *LLAMA_3, *flags)["cases"]]
    parts = [one["microseconds"] for one in simulations]  # replaced at once, waits for a repair, goes on smaller
    assert [(part["waiting"] > 0, part["missing"] > 0) for part in parts] == [(0, 0), (1, 0), (0, 1)]
    flags = [*LLAMA_3, "--simulate", "50", "--asynchronous", "600", "--save-seconds", "5"]
    found = results(capsys, *flags)
    assert found == results(capsys, *flags) != results(capsys, *flags, "--seed", "1")
    assert found["interval_seconds"] == 600  # no shorter than a write, where Daly's is
    assert sum(found["cases"][0]["simulation"]["microseconds"].values()) == 50 * 86_400_000_000
    assert cli.main(["failures", "--gpus", "1", "--simulate", "1"]) == 0  # which may not fail in the time
    assert rows(capsys.readouterr().out)["mean time between failures"] == ["2,112 d", "none failed"]


def test_the_page_shows_what_the_command_computes(capsys):
    """Every formula agrees to the last digit shown."""
    shown = 0
    for section in PAGE.split("\nminidist failures ")[1:]:
        command = re.sub(r"--simulate \S+", "", section.partition("\n")[0])
        for flags, row in re.findall(
            r"^\| `(--(?:spares|save-seconds|gpus) .*?)` \| (.*\d.*) \|$", section, re.MULTILINE
        ):
            cells, flags = row.split(" | "), re.sub(r"--simulate \S+", "", flags)
            found = results(capsys, "failures", *f"{command} {flags}".split())
            waste = [f"{100 * (1 - case['goodput']):.2f} %" for case in found["cases"]]
            if len(waste) > 1:
                assert cells[::2] == waste[1:], flags
            else:
                intervals = [f"{found[name] / 60:,.1f}" for name in ("young_seconds", "daly_seconds")]
                assert cells[:4] == [*intervals, f"{100 * found['first_order_waste']:.2f} %", *waste], flags
            shown += 1
    assert shown == 14
