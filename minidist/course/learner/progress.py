"""What a learner has achieved, stored next to the exercises between calls of ``minidist check``."""

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from minidist.course.answers import course_folder, read_answers, write_atomically
from minidist.course.tasks import Task, TaskResult, Verdict

FILE = ".progress.json"


class Progress:
    """The latest verdicts on every task, and hashes of the answers they apply to.

    Args:
        folder: the learner's answers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: list[TaskResult] = []
        self._files: dict[str, str] = {}  # chapter -> the hash of its answers and graders when it was judged
        try:
            stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
            self._files = dict(stored["files"])
            self.results = [
                TaskResult(Task(**entry["task"]), [Verdict(**verdict) for verdict in entry["verdicts"]])
                for entry in stored["tasks"]
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.results, self._files = [], {}  # missing, damaged, or another version's: judge everything again

    def stale_chapters(self, chapters: list[str]) -> list[str]:
        """The chapters whose answers have changed since they were judged."""
        now = self._hashes()
        return [name for name in chapters if name not in self._files or self._files[name] != now.get(name)]

    def update(self, results: list[TaskResult], hashes: dict[str, str]) -> None:
        """Merge new results into the known ones and store them.

        Args:
            results: every task of the course; tasks without verdicts keep their old ones.
            hashes: of the chapters that were judged completely, taken before judging.
        """
        before = {result.task.number: result.verdicts for result in self.results}
        self.results = [
            TaskResult(result.task, result.verdicts or before.get(result.task.number, [])) for result in results
        ]
        self._files |= hashes
        tasks = [
            {"task": asdict(result.task), "verdicts": [asdict(verdict) for verdict in result.verdicts]}
            for result in self.results
        ]
        try:
            write_atomically(self.folder / FILE, json.dumps({"files": self._files, "tasks": tasks}))
        except OSError as error:
            print(f"minidist: cannot save your progress in {self.folder / FILE}: {error.strerror}", file=sys.stderr)

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
