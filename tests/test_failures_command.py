"""``minidist failures``, as someone who plans a run types it, and docs/failures.md."""

import json
import re
import shlex
from pathlib import Path

import pytest
from planned import rows

from minidist.cli import main as cli
from minidist.plan.failures.goodput import daly_interval, first_order_waste, goodput, young_interval
from minidist.plan.failures.llama3 import llama3_mtbf_hours

MTBF = llama3_mtbf_hours() * 3600
LLAMA_3 = ["failures", "--gpus", "16384"]
PAGE = (Path(__file__).parent.parent / "docs" / "failures.md").read_text(encoding="utf-8")


def results(capsys, *command: str) -> dict:
    assert cli.main([*command, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_by_default_it_is_the_cluster_of_llama_3(capsys):
    assert cli.main(LLAMA_3) == 0
    out = capsys.readouterr().out
    table = rows(out)
    assert table["mean time between failures"] == ["3.09 h"] and table["failures per day"] == ["7.76"]
    assert table["interval: Young"] == ["19.3 min"] and table["interval: Daly"] == ["18.6 min"]
    assert table["waste, first order"] == ["13.08%"] and "simulat" not in out
    assert table["goodput, failed node: replaced at once"] == [f"{goodput(MTBF, daly_interval(MTBF, 60), 60, 300):.2%}"]
    with pytest.raises(SystemExit):
        cli.main(["failures", "--help"])
    assert "50,677" in capsys.readouterr().out


def test_json_has_the_numbers_of_the_formulas(capsys):
    flags = ["--save-seconds", "10", "--restart-seconds", "200", "--detection-seconds", "50"]
    found, interval = results(capsys, *LLAMA_3, *flags), daly_interval(MTBF, 10)
    (case,) = found["cases"]
    assert case["simulation"] is None and found["interval_seconds"] == found["daly_seconds"]
    told = [found[name] for name in ("mtbf_seconds", "young_seconds", "daly_seconds", "first_order_waste")]
    known = [MTBF, young_interval(MTBF, 10), interval, first_order_waste(MTBF, interval, 10, 250)]
    assert [*told, case["goodput"]] == pytest.approx([*known, goodput(MTBF, interval, 10, 250)], rel=1e-12)
    found = results(capsys, *LLAMA_3, "--save-seconds", "0", "--interval", "60")
    assert found["interval_seconds"] == 60 and found["young_seconds"] == found["daly_seconds"] == 0


def test_the_simulation_stands_beside_the_formula_and_a_seed_repeats_it(capsys):
    flags = ["--spares", "3", "--repair-hours", "24", "--simulate", "100", "--detection-seconds", "60"]
    assert cli.main([*LLAMA_3, *flags]) == 0
    table = {first: [float(cell.rstrip("%")) if "%" in cell else cell for cell in rest]
             for first, rest in rows(capsys.readouterr().out).items()}  # fmt: skip
    parts = [table[part] for part in ("useful", "saving", "lost", "detecting", "restarting", "waiting", "missing")]
    assert [sum(column) for column in zip(*parts, strict=True)] == pytest.approx([100] * 3, abs=0.04)  # rounded
    for case, column in (("run waits for a repair", 1), ("run goes on smaller", 2)):
        assert table[f"goodput, {case}"][1] == table["useful"][column] and len(table[f"waste, {case}"]) == 2
    assert [share > 0 for share in table["waiting"]] == [False, True, False]
    assert [share > 0 for share in table["missing"]] == [False, False, True]
    flags = [*LLAMA_3, "--simulate", "50", "--asynchronous", "600", "--save-seconds", "5"]
    found = results(capsys, *flags)
    assert found == results(capsys, *flags) != results(capsys, *flags, "--seed", "1")
    assert found["interval_seconds"] == 600  # no shorter than a write, where Daly's is
    assert sum(found["cases"][0]["simulation"]["microseconds"].values()) == 50 * 86_400_000_000
    assert cli.main(["failures", "--gpus", "1", "--simulate", "1"]) == 0  # which may not fail in the time
    assert rows(capsys.readouterr().out)["mean time between failures"] == ["2,112 days", "none failed"]


def tables_of_the_page() -> list[tuple[list[str], list[str]]]:
    """Each row of the page that begins with flags: the whole command, and the other cells."""
    found, command = [], ""
    for line in PAGE.splitlines():
        if line.startswith("minidist failures"):
            command = line
        elif (row := re.fullmatch(r"\| `(--(?:spares|save-seconds|gpus) .*?)` \| (.*\d.*) \|", line)) is not None:
            found.append((shlex.split(f"{command} {row[1]}")[1:], [cell.strip() for cell in row[2].split("|")]))
    return found


@pytest.mark.parametrize("simulated", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_page_shows_what_the_command_computes(simulated, capsys):
    """To the last digit shown: every formula, and a simulation of each table, which has a seed."""
    tables = tables_of_the_page()
    assert len(tables) == 14
    for command, cells in tables[::5] if simulated else tables:
        if not simulated:
            command = shlex.split(re.sub(r"--simulate \S+", "", shlex.join(command)))
        found = results(capsys, *command)
        shares = [[case["goodput"], (case["simulation"] or {}).get("goodput")] for case in found["cases"]]
        waste = [share and f"{100 * (1 - share):.2f} %" for both in shares for share in both]
        if len(found["cases"]) > 1:
            expected = waste[2:]
        else:
            intervals = [f"{found[name] / 60:,.1f}" for name in ("young_seconds", "daly_seconds")]
            failures = f"{found['cases'][0]['simulation']['failures']:,}" if simulated else None
            expected = [*intervals, f"{100 * found['first_order_waste']:.2f} %", *waste, failures]
        assert [cell for cell, known in zip(cells, expected, strict=True) if known not in (cell, None)] == [], command
