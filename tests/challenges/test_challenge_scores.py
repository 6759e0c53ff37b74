"""The scores that the catalogue states are those of the library's answers and of better ones: there is headroom."""

import re

import pytest
from better_answers import BETTER, better_answer

from minidist.course.answers import ROOT, course_folder
from minidist.course.challenges.challenge import FOLDER, library_answer
from minidist.course.challenges.command import number
from minidist.course.challenges.scoring import CHALLENGES

PAGE = (ROOT / "docs" / "course.md").read_text(encoding="utf-8").partition("## Challenges")[2]
DIGITS = 1e-3  # the catalogue states four


def test_there_is_one_for_each_chapter_from_3_on():
    assert [challenge.chapter for challenge in CHALLENGES] == list(range(3, 10))
    names = {f"{challenge.module}.py" for challenge in CHALLENGES}
    for folder in (course_folder("solutions") / FOLDER, BETTER):
        assert {file.name for file in folder.glob("*.py")} == names


@pytest.mark.long
def test_the_scores_of_the_library_and_of_a_better_answer_are_those_that_are_stated(judged):
    """Whatever numbers are drawn: chapters 3 and 6 draw other ones each time."""
    for challenge in CHALLENGES:
        library = judged(challenge, library_answer(challenge).text)
        assert library.score == pytest.approx(challenge.library, rel=DIGITS), library.message
        assert library.remarks == ()
        count = 3 if challenge.chapter in (3, 6) else 1
        better = [judged(challenge, better_answer(challenge).text) for _ in range(count)]
        assert better[0].score == pytest.approx(challenge.known, rel=DIGITS), better[0].message
        assert better[0].score < 0.75 * challenge.library and len({one.score for one in better}) == 1
        row = re.search(rf"^\| {challenge.chapter} \| .* \| (.*?) (.*) \| (.*?) (.*) \|$", PAGE, re.MULTILINE).groups()
        assert row == (number(challenge.library), challenge.unit, number(challenge.known), challenge.unit)
        (chapter,) = course_folder("chapters").glob(f"{challenge.chapter:02d}_*.ipynb")
        assert f"`minidist challenge {challenge.chapter}`" in chapter.read_text(encoding="utf-8")
