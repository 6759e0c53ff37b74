"""minidist challenge: a first file, a score beside the library's, a leaderboard that keeps it."""

import json
import re

import pytest
from better_answers import better_answer

from minidist.cli.main import main
from minidist.course.challenges.challenge import file_in, library_answer
from minidist.course.challenges.command import FILE, best, comparison, entries
from minidist.course.challenges.scoring import CHALLENGES, challenge_of

EIGHT = challenge_of("8")


def challenge(folder, capsys, *arguments: str) -> tuple[int, str]:
    """The exit status, and what is printed, in one line."""
    status = main(["challenge", *arguments, "--impl", str(folder)])
    return status, " ".join(capsys.readouterr().out.split())


def test_it_begins_with_the_librarys_answer(tmp_path, capsys):
    status, shown = challenge(tmp_path, capsys, "8")
    mine = file_in(tmp_path, EIGHT)
    assert mine.read_text(encoding="utf-8") == library_answer(EIGHT).text
    assert status == 0 and "your plan: 316 %, the library's: 316 % (the same)" in shown
    mine.write_text("mine", encoding="utf-8")
    assert challenge(tmp_path, capsys, "8")[0] == 1 and mine.read_text(encoding="utf-8") == "mine"  # nothing is lost
    assert entries(tmp_path) == []


@pytest.mark.long
def test_a_score_stands_beside_the_librarys_and_is_kept(tmp_path, capsys):
    challenge(tmp_path, capsys, "8")
    file_in(tmp_path, EIGHT).write_text(better_answer(EIGHT).text, encoding="utf-8")
    for _ in range(2):  # judged twice, noted once
        status, shown = challenge(tmp_path, capsys, "8")
        assert status == 0 and "your plan: 133 %, the library's: 316 % (57.9 % less) noted in" in shown
    (entry,) = map(json.loads, (tmp_path / FILE).read_text(encoding="utf-8").splitlines())
    assert entry["challenge"] == "challenge08_recompute" and entry["unit"] == "%"
    assert entry["score"] == pytest.approx(EIGHT.known, rel=1e-3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*", entry["date"]) and len(entry["sha256"]) == 64
    assert best(tmp_path, EIGHT) == entry["score"]
    assert re.search(r"│ % │ 133 │ 316 │ 133 │", challenge(tmp_path, capsys)[1])


def test_lines_of_the_leaderboard_that_are_none_are_ignored(tmp_path, capsys):
    rubbish = ["", "not json", "[]", "{}", '{"challenge": "x", "score": "y", "unit": 1, "date": 1, "sha256": 1}']
    good = '{"challenge": "challenge08_recompute", "score": 140, "unit": "%", "date": "", "sha256": ""}'
    (tmp_path / FILE).write_text("\n".join([*rubbish, good]), encoding="utf-8")
    assert [entry.score for entry in entries(tmp_path)] == [140.0] and best(tmp_path, EIGHT) == 140


def test_the_list_names_every_challenge_and_comparisons_their_difference(tmp_path, capsys):
    status, shown = challenge(tmp_path, capsys)
    assert status == 0 and list(tmp_path.iterdir()) == []
    assert all(one.title.split()[1] in shown for one in CHALLENGES)
    assert comparison(challenge_of("3"), 70.0) == "your all-reduce: 70 us, the library's: 57.8 us (21.1 % more)"
    assert comparison(challenge_of("9"), 999.7) == "your placement: 1,000 MB, the library's: 1,617 MB (38.2 % less)"
