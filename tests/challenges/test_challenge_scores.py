"""The scores that the catalogue states are those of the library's answers and of better ones: there is headroom."""

import re

import pytest
from conftest import BETTER, better_answer

from minidist.course.answers import ROOT, course_folder
from minidist.course.challenges.catalogue import CHALLENGES, FOLDER, challenge_of, library_answer
from minidist.course.challenges.report import number

PAGE = (ROOT / "docs" / "course.md").read_text(encoding="utf-8").partition("## Challenges")[2]
DIGITS = 1e-3  # the catalogue states four


def test_there_is_one_for_each_chapter_from_3_on():
    assert [challenge.chapter for challenge in CHALLENGES] == list(range(3, 10))
    names = {f"{challenge.module}.py" for challenge in CHALLENGES}
    for folder in (course_folder("solutions") / FOLDER, BETTER):
        assert {file.name for file in folder.glob("*.py")} == names


@pytest.mark.long
def test_the_library_has_the_score_that_is_stated_by_the_course_too(judged):
    for challenge in CHALLENGES:
        found = judged(challenge, library_answer(challenge).text)
        assert found.score == pytest.approx(challenge.library, rel=DIGITS), found.message
        assert found.remarks == ()
        row = re.search(rf"^\| {challenge.chapter} \| .* \| (.*?) (.*) \| (.*?) (.*) \|$", PAGE, re.MULTILINE).groups()
        assert row == (number(challenge.library), challenge.unit, number(challenge.known), challenge.unit)
        (chapter,) = course_folder("chapters").glob(f"{challenge.chapter:02d}_*.ipynb")
        assert f"`minidist challenge {challenge.chapter}`" in chapter.read_text(encoding="utf-8")


@pytest.mark.long
def test_a_better_answer_has_the_best_known_score(judged):
    """Whatever numbers are drawn: chapters 3 and 6 draw other ones each time."""
    for challenge in CHALLENGES:
        found = [
            judged(challenge, better_answer(challenge).text) for _ in range(3 if challenge.chapter in (3, 6) else 1)
        ]
        assert found[0].score == pytest.approx(challenge.known, rel=DIGITS), found[0].message
        assert found[0].score < 0.75 * challenge.library and len({one.score for one in found}) == 1


IN_BETWEEN = {
    "3": """
from minidist import all_reduce
def fast_all_reduce(flat, alpha, beta, group):
    all_reduce(flat, group=group, algorithm="halving_doubling" if group.size == 8 else "auto")
""",
    "4": """
def choose_buckets(nbytes, completed, ranks, alpha, beta):
    buckets, room = [], 0
    for number in reversed(range(len(nbytes))):
        if nbytes[number] > room:
            buckets.append([])
            room = 2 * ranks * alpha / beta
        buckets[-1].append(number)
        room -= nbytes[number]
    return buckets
""",
    "9": """
import numpy as np
def place_ranks(sent, per_node):
    both, left, order = sent + sent.T, set(range(len(sent))), []
    while left:
        node = order[len(order) // per_node * per_node :]
        order.append(max(left, key=lambda rank: (both[rank, node].sum(), -rank)))
        left.remove(order[-1])
    return order
""",
}


@pytest.mark.long
def test_other_ideas_are_in_between(judged):
    for chapter, text in IN_BETWEEN.items():
        challenge = challenge_of(chapter)
        found = judged(challenge, text)
        assert found.score is not None, found.message
        assert challenge.known < found.score < challenge.library
