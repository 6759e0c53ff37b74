"""The learner's leaderboard: a file beside the exercises with one JSON object per line, one for each new score.

It is for the learner alone: ``minidist grade`` judges every answer again and never reads it.
"""

import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from minidist.course.answers import Source
from minidist.course.challenges.challenge import Challenge

FILE = "leaderboard.jsonl"


@dataclass(frozen=True)
class Entry:
    """One score of one answer."""

    challenge: str  # the name of the file of answers
    score: float
    unit: str
    date: str  # ISO 8601, UTC
    sha256: str  # of the answer's text


def hash_of(source: Source) -> str:
    return hashlib.sha256(source.text.encode("utf-8", "backslashreplace")).hexdigest()


def add(folder: Path, challenge: Challenge, source: Source, score: float) -> None:
    """Append a score, unless the same answer is there with the same score already."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = Entry(challenge.module, score, challenge.unit, now, hash_of(source))
    known = {(one.challenge, one.score, one.sha256) for one in entries(folder)}
    if (entry.challenge, entry.score, entry.sha256) in known:
        return
    try:
        with open(folder / FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")
    except OSError as error:
        print(f"minidist: cannot save your score in {folder / FILE}: {error.strerror}", file=sys.stderr)


def entries(folder: Path) -> list[Entry]:
    """All entries, in the order in which they were made. Lines that are none are ignored."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            entry = Entry(**json.loads(line))
            found.append(Entry(str(entry.challenge), float(entry.score), *map(str, list(asdict(entry).values())[2:])))
        except (ValueError, TypeError, RecursionError):
            continue
    return found


def best(folder: Path, challenge: Challenge) -> float | None:
    """The learner's best score; None if there is none."""
    return min((entry.score for entry in entries(folder) if entry.challenge == challenge.module), default=None)
