"""All challenges, and where their answers are."""

from pathlib import Path

from minidist.course.answers import Source, course_folder, read_source
from minidist.course.challenges.challenge import Challenge
from minidist.course.challenges.scoring import (
    ch03_all_reduce,
    ch04_buckets,
    ch05_shards,
    ch06_mlp,
    ch07_schedule,
    ch08_recompute,
    ch09_placement,
)

CHALLENGES: tuple[Challenge, ...] = tuple(
    module.CHALLENGE
    for module in (
        ch03_all_reduce,
        ch04_buckets,
        ch05_shards,
        ch06_mlp,
        ch07_schedule,
        ch08_recompute,
        ch09_placement,
    )
)
FOLDER = "challenges"  # of their answers, inside a folder of answers


def challenge_of(chapter: str) -> Challenge:
    """The challenge of a chapter such as "3".

    Raises:
        ValueError: if it has none.
    """
    for challenge in CHALLENGES:
        if chapter.isdecimal() and int(chapter) == challenge.chapter:
            return challenge
    numbers = ", ".join(str(challenge.chapter) for challenge in CHALLENGES)
    raise ValueError(f"there is no challenge {chapter!r}: choose a chapter from {numbers}")


def file_in(folder: Path, challenge: Challenge) -> Path:
    """Where the answer is in a folder of answers."""
    return folder / FOLDER / f"{challenge.module}.py"


def library_answer(challenge: Challenge) -> Source:
    """The library's answer, which is also what a learner begins with."""
    return read_source(file_in(course_folder("solutions"), challenge))


def answer_in(folder: Path, challenge: Challenge) -> Source | None:
    """The answer in a folder of answers; None if the file is missing, or still the library's answer."""
    file = file_in(folder, challenge)
    if not file.is_file():
        return None
    source = read_source(file)
    return None if source.text == library_answer(challenge).text else source
