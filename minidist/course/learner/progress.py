"""What a learner has reached, kept beside the exercises from one ``minidist check`` to the next."""

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from minidist.course.answers import course_folder, read_answers, write_whole
from minidist.course.grading.judge import Judged
from minidist.course.tasks import Task, Verdict

FILE = ".progress.json"


class Progress:
    """The last verdicts on every task, and the answers that they were about.

    Args:
        folder: the learner's answers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.judged: list[Judged] = []
        self._files: dict[str, str] = {}  # chapter -> the hash of its answers and graders, when it was judged
        try:
            kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
            self._files = dict(kept["files"])
            self.judged = [
                Judged(Task(**one["task"]), [Verdict(**verdict) for verdict in one["verdicts"]])
                for one in kept["tasks"]
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.judged, self._files = [], {}  # there is none, or another version's: judge everything anew

    def stale_chapters(self, chapters: list[str]) -> list[str]:
        """The chapters whose answers have changed since they were judged."""
        now = self._hashes()
        return [name for name in chapters if name not in self._files or self._files[name] != now.get(name)]

    def update(self, judged: list[Judged], hashes: dict[str, str]) -> None:
        """Take over what was judged just now, keep the rest, and write it down.

        Args:
            judged: every task of the course; those without verdicts keep their old ones.
            hashes: of the files of the chapters that were judged wholly, as they were before.
        """
        before = {one.task.number: one.verdicts for one in self.judged}
        self.judged = [Judged(one.task, one.verdicts or before.get(one.task.number, [])) for one in judged]
        self._files |= hashes
        tasks = [{"task": asdict(one.task), "verdicts": [asdict(v) for v in one.verdicts]} for one in self.judged]
        try:
            write_whole(self.folder / FILE, json.dumps({"files": self._files, "tasks": tasks}))
        except OSError as error:
            print(f"minidist: your progress cannot be kept in {self.folder / FILE}: {error.strerror}", file=sys.stderr)

    def newest(self, chapters: list[str]) -> str | None:
        """Of these chapters, the one whose file of answers was saved last."""
        files = {name: self.folder / f"{name}.py" for name in chapters if (self.folder / f"{name}.py").exists()}
        return max(files, key=lambda name: files[name].stat().st_mtime, default=None)

    def hashes(self, chapters: list[str]) -> dict[str, str]:
        """The hashes of these chapters' files as they are now."""
        now = self._hashes()
        return {name: now[name] for name in chapters if name in now}

    def _hashes(self) -> dict[str, str]:
        graders = course_folder("tests/exercises")
        texts = {name: source.text.encode() for name, source in read_answers(self.folder).items()}
        return {
            name: hashlib.sha256(text + (graders / f"test_{name}.py").read_bytes()).hexdigest()
            for name, text in texts.items()
            if (graders / f"test_{name}.py").exists()
        }
