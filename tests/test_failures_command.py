"""``minidist failures``, as someone who plans a run types it."""

import json
import re
import shlex
from pathlib import Path

import pytest

from minidist.cli import main as cli
from minidist.plan.failures.goodput import daly_interval, first_order_waste, goodput, young_interval
from minidist.plan.failures.llama3 import llama3_mtbf_hours

MTBF = llama3_mtbf_hours() * 3600
LLAMA_3 = ["failures", "--gpus", "16384"]


def results(capsys, *flags: str) -> dict:
    assert cli.main([*LLAMA_3, *flags, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def rows(text: str) -> dict[str, list[str]]:
    """First cell -> the other cells of its line, of all tables."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {first: rest for first, *rest in lines}


def test_by_default_it_is_the_cluster_of_llama_3(capsys):
    assert cli.main(LLAMA_3) == 0
    out = capsys.readouterr().out
    table = rows(out)
    assert table["mean time between failures"] == ["3.09 h"] and table["failures per day"] == ["7.76"]
    assert table["interval: Young"] == ["19.3 min"] and table["interval: Daly"] == ["18.6 min"]
    assert table["waste, first order"] == ["13.08%"]
    assert table["goodput, failed node: replaced at once"] == [f"{goodput(MTBF, daly_interval(MTBF, 60), 60, 300):.2%}"]
    assert "simulation" not in out and "simulated" not in out


def test_json_has_the_numbers_of_the_formulas(capsys):
    found = results(capsys, "--save-seconds", "10", "--restart-seconds", "200", "--detection-seconds", "50")
    interval = daly_interval(MTBF, 10)
    assert found["mtbf_seconds"] == pytest.approx(MTBF, rel=1e-14)
    assert found["young_seconds"] == pytest.approx(young_interval(MTBF, 10), rel=1e-14)
    assert found["interval_seconds"] == found["daly_seconds"] == pytest.approx(interval, rel=1e-14)
    assert found["first_order_waste"] == pytest.approx(first_order_waste(MTBF, interval, 10, 250), rel=1e-12)
    (case,) = found["cases"]
    assert case["goodput"] == pytest.approx(goodput(MTBF, interval, 10, 250), rel=1e-12)
    assert case["simulation"] is None


def test_the_simulation_stands_beside_the_formula(capsys):
    flags = ["--spares", "3", "--repair-hours", "24", "--simulate", "300", "--detection-seconds", "60"]
    assert cli.main([*LLAMA_3, *flags]) == 0
    out = capsys.readouterr().out
    table = rows(out)
    parts = ("useful", "saving", "lost", "detecting", "restarting", "waiting", "missing")
    for column in range(3):
        assert sum(float(table[part][column].rstrip("%")) for part in parts) == pytest.approx(100, abs=0.04)  # rounded
    for case, column in (("run waits for a repair", 1), ("run goes on smaller", 2)):
        assert table[f"goodput, {case}"][1] == table["useful"][column]
        assert len(table[f"waste, {case}"]) == 2
    assert [float(share.rstrip("%")) > 0 for share in table["waiting"]] == [False, True, False]
    assert [float(share.rstrip("%")) > 0 for share in table["missing"]] == [False, False, True]


def test_a_seed_repeats_a_simulation(capsys):
    flags = ["--simulate", "50", "--asynchronous", "600", "--save-seconds", "5"]
    found = results(capsys, *flags)
    assert found == results(capsys, *flags) != results(capsys, *flags, "--seed", "1")
    assert found["interval_seconds"] == 600  # no shorter than a write, where Daly's is
    assert sum(found["cases"][0]["simulation"]["microseconds"].values()) == 50 * 86_400_000_000


def test_one_gpu_may_not_fail_in_the_time(capsys):
    assert cli.main(["failures", "--gpus", "1", "--simulate", "1"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["mean time between failures"] == ["2,112 days", "none failed"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpus", "0"], "--gpus must be more than 0 and finite, got 0"),
        (["--save-seconds", "-1"], "--save-seconds must be 0 or more and finite, got -1"),
        (["--simulate", "inf"], "--simulate must be more than 0 and finite, got inf"),
        (["--gpu-mtbf-hours", "inf"], "--gpu-mtbf-hours must be more than 0 and finite, got inf"),
        (["--save-seconds", "0"], "--save-seconds 0 has no best interval: name one with --interval"),
        (["--interval", "5", "--asynchronous", "9"], "--interval must be at least --asynchronous, 9"),
        (["--spares", "2"], "--spares needs --repair-hours"),
        (["--gpus-per-node", "6"], "--gpus-per-node 6 does not divide --gpus 16384"),
        (["--json", "/nowhere/a.json"], "--json: cannot write '/nowhere/a.json'"),
    ],
)
def test_bad_input_is_one_line(flags, message, capsys):
    assert cli.main([*LLAMA_3, *flags]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and message in captured.err and not captured.out


def test_no_cost_of_saves_and_an_interval_is_allowed(capsys):
    found = results(capsys, "--save-seconds", "0", "--interval", "60")
    assert found["interval_seconds"] == 60 and found["young_seconds"] == found["daly_seconds"] == 0


def test_help_names_the_default_of_llama_3(capsys):
    with pytest.raises(SystemExit):
        cli.main(["failures", "--help"])
    assert re.search(r"50,677", capsys.readouterr().out)


# ── The page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def tables_of_the_page() -> list[tuple[str, list[str]]]:
    """Each row of docs/failures.md that begins with flags: the whole command, and the other cells."""
    text = (Path(__file__).parent.parent / "docs" / "failures.md").read_text(encoding="utf-8")
    found, command = [], ""
    for line in text.splitlines():
        if line.startswith("minidist failures"):
            command = line
        elif (row := re.fullmatch(r"\| `(--(?:spares|save-seconds|gpus) .*?)` \| (.*\d.*) \|", line)) is not None:
            found.append((f"{command} {row[1]}", [cell.strip() for cell in row[2].split("|")]))
    return found


def test_the_page_has_its_tables():
    assert len(tables_of_the_page()) == 14


ROWS = [  # one of each table is short
    pytest.param(*row, marks=pytest.mark.long if number % 5 else ()) for number, row in enumerate(tables_of_the_page())
]


@pytest.mark.parametrize(("command", "cells"), ROWS, ids=lambda value: str(value)[len("minidist ") :])
def test_the_page_shows_what_the_command_computes(command, cells, capsys):
    """To the last digit shown, simulation included: it has a seed."""
    assert cli.main([*shlex.split(command)[1:], "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    waste = [
        f"{100 * (1 - share):.2f} %"
        for case in found["cases"]
        for share in (case["goodput"], case["simulation"]["goodput"])
    ]
    if len(found["cases"]) > 1:
        assert cells == waste[2:]
    else:
        intervals = [f"{found[name] / 60:,.1f}" for name in ("young_seconds", "daly_seconds")]
        failures = f"{found['cases'][0]['simulation']['failures']:,}"
        assert cells == [*intervals, f"{100 * found['first_order_waste']:.2f} %", *waste, failures]
