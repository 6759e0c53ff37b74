"""What the tests of challenges share."""

import pytest

from minidist.course.answers import Source
from minidist.course.challenges.challenge import Challenge, Result, file_in
from minidist.course.challenges.judge import RANK_MODULES, judge
from minidist.course.sandbox.student import WarmRanks


@pytest.fixture(scope="session")
def judged(tmp_path_factory):
    """``judged(challenge, text)``: the Result of an answer with that text."""
    folder = tmp_path_factory.mktemp("answers")
    with WarmRanks(RANK_MODULES) as ranks:

        def result_of(challenge: Challenge, text: str) -> Result:
            file = file_in(folder, challenge)
            return judge(challenge, Source(challenge.module, str(file), text), ranks)

        yield result_of
