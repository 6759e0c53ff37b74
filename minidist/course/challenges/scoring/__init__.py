"""All challenges, one file for each: its cases, what a right answer is, and what its score counts."""

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
    for module in (ch03_all_reduce, ch04_buckets, ch05_shards, ch06_mlp, ch07_schedule, ch08_recompute, ch09_placement)
)


def challenge_of(chapter: str) -> Challenge:
    """Return the challenge of a chapter such as "3".

    Raises:
        ValueError: if the chapter has none.
    """
    for challenge in CHALLENGES:
        if chapter.isdecimal() and int(chapter) == challenge.chapter:
            return challenge
    numbers = ", ".join(str(challenge.chapter) for challenge in CHALLENGES)
    raise ValueError(f"there is no challenge {chapter!r}: choose a chapter from {numbers}")
