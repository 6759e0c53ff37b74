"""minidist grade: the leaderboard of a class, from answers that are judged again."""

import csv
import json
import zipfile

import pytest
from better_answers import better_answer
from rich.console import Console

from minidist.cli.main import main
from minidist.course import commands
from minidist.course.challenges import grade_challenges as challenge_class
from minidist.course.challenges.challenge import FOLDER, Result, library_answer
from minidist.course.challenges.command import FILE as OF_A_LEARNER
from minidist.course.challenges.grade_challenges import FILE, grade_challenges
from minidist.course.challenges.scoring import challenge_of
from minidist.course.grading.submissions import FILE_BYTES
from minidist.course.grading.workplace import Limits

EIGHT, NINE = challenge_of("8"), challenge_of("9")
WORSE = "def place_ranks(sent, per_node):\n    return list(reversed(range(len(sent))))\n"
KILLER = "import os, signal\nos.killpg(0, signal.SIGKILL)\n"
ASSASSIN = (  # of the process that watches over its judge
    "import psutil\nfor one in psutil.Process().parents():\n"
    "    if 'minidist.course.grading.supervisor' in one.cmdline():\n        one.kill()\n"
)
FORGED = json.dumps({"challenge": EIGHT.module, "score": 0.001, "unit": "%", "date": "", "sha256": ""})


@pytest.fixture(scope="module")
def submissions(tmp_path_factory):
    """One folder or zip file for each student: some answer challenges, some do not."""
    folder = tmp_path_factory.mktemp("class") / "submissions"
    nine, eight = (f"exercises/{FOLDER}/{one.module}.py" for one in (NINE, EIGHT))
    for name, text in {
        f"ada/{nine}": better_answer(NINE).text,
        f"ada/{eight}": better_answer(EIGHT).text,
        f"bob/{nine}": WORSE,
        f"bob/{eight}": KILLER,
        f"bob/old/{NINE.module}.py": better_answer(NINE).text,
        f"dora/{eight}": ASSASSIN,
        f"gina/{eight}": ASSASSIN,
        f"gina/{nine}": better_answer(NINE).text,
        f"hal/{nine}": "#" * (FILE_BYTES + 1),
        f"carl/exercises/{OF_A_LEARNER}": FORGED,
        f"carl/{eight}": "def plan_recomputation(*_):\n    return 0.001\n",
        f"dora/{nine}": library_answer(NINE).text,
        "eve/exercises/ch03_collectives.py": "",
        f"eve/solutions/{FOLDER}/{NINE.module}.py": better_answer(NINE).text,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    with zipfile.ZipFile(folder / "=fred.zip", "w") as archive:
        archive.writestr(f"deep/{NINE.module}.py", better_answer(NINE).text)
    return folder


@pytest.mark.long
def test_the_best_come_first_and_wrong_answers_and_forged_scores_have_no_score(submissions):
    out = submissions.parent / "grades"
    for student in ("ada", "carl"):
        (out / "students" / student).mkdir(parents=True)
        (out / "students" / student / "results.json").write_text('{"score": 3}', encoding="utf-8")
    console = Console(record=True, width=100)
    grade_challenges(console, submissions, out, Limits(), 2, [])
    with open(out / FILE, newline="", encoding="utf-8") as file:
        rows = {(row["chapter"], row["student"]): row for row in csv.DictReader(file)}
    assert [(*key, row["place"]) for key, row in rows.items()] == [
        ("8", "ada", "1"), ("8", "bob", ""), ("8", "carl", ""), ("8", "dora", ""), ("8", "gina", ""),
        ("9", "'=fred", "1"), ("9", "ada", "1"), ("9", "gina", "1"), ("9", "bob", "4"), ("9", "hal", ""),
    ]  # fmt: skip
    scores = [float(rows["9", name]["score"]) for name in ("ada", "'=fred", "bob")]
    assert scores[:2] == pytest.approx([NINE.known] * 2, rel=1e-3) and scores[2] > NINE.known
    assert rows["9", "bob"]["library"] == "1617" and rows["8", "ada"]["unit"] == "%"
    for student, remark in (
        ("carl", "expected a list of strings, got 0.001"),
        ("bob", "it ended the judging process"),
        ("dora", "could not be judged: RuntimeError: something has killed the process that supervises"),
        ("gina", "could not be judged: RuntimeError: something has killed the process that supervises"),
    ):
        assert rows["8", student]["score"] == "" and remark in rows["8", student]["remarks"]
    assert rows["9", "hal"]["remarks"] == (
        f"skipped {NINE.module}.py: 262,145 bytes is more than the limit of 262,144 for one file"
    )
    assert rows["9", "bob"]["remarks"] == f"found 2 files {NINE.module}.py; graded exercises/{FOLDER}/{NINE.module}.py"
    lines = [" ".join(line.replace("│", " ").split()) for line in console.export_text().splitlines()]
    assert "8 plan 1 ada 133 % 316 %" in lines and "8 plan carl no score 316 %" in lines
    ada, carl = (json.loads((out / "students" / name / "results.json").read_text()) for name in ("ada", "carl"))
    assert ada["score"] == 3 and carl == {"score": 3, "leaderboard": []}  # as Gradescope gets them
    assert [one["name"] for one in ada["leaderboard"]] == ["8 plan (%)", "9 placement (MB)"]
    assert ada["leaderboard"][0]["value"] == pytest.approx(EIGHT.known, rel=1e-3)


@pytest.mark.long
def test_grade_collects_them(submissions, tmp_path, monkeypatch, capsys):
    """Only challenges of graded chapters count; tasks have none. Without any answer no judge starts."""

    def only_folder(console, submissions, out, *more):
        out.mkdir(exist_ok=True)

    monkeypatch.setattr(commands, "grade_class", only_folder)
    out = tmp_path / "grades"
    for task, lines in (("9", 6), ("9.3", 1), ("3", 1)):
        assert main(["grade", str(submissions), "--out", str(out), "--task", task]) == 0
        assert len((out / FILE).read_text(encoding="utf-8").splitlines()) == lines
        assert ("leaderboard.csv is in" in capsys.readouterr().out) == (lines > 1)


def test_a_message_of_several_lines_is_one_cell(tmp_path):
    hangs = Result(None, "it hangs:\n  rank 0 is at")
    challenge_class._write(tmp_path, [challenge_class.Standing(EIGHT, "ann", hangs)])
    assert "it hangs: rank 0 is at" in (tmp_path / FILE).read_text(encoding="utf-8")
