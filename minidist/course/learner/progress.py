"""Stores a learner's progress next to the exercises, between calls of ``minidist check``.

A verdict applies until something that it depends on changes (dependencies.py). The latest verdicts on earlier versions
of a task are kept too, so that nobody waits again after undoing a change.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from minidist.course.answers import Source, read_answers, solutions, write_atomically
from minidist.course.dependencies import dependencies
from minidist.course.stubs import definitions_by_task, stub_of, untouched
from minidist.course.tasks import Task, TaskResult, Verdict, grader_of, tasks_of

FILE = ".progress.json"
VERSIONS = 3  # latest versions of a task whose verdicts are kept


@dataclass
class Standing:
    """A learner's standing in one task.

    Attributes:
        keys: the two hashes of the code that verdicts depend on now; see ``dependencies``.
        untouched: whether the answer is still as it was given to the learner.
        judged: (key, verdicts) of the latest versions, the newest first.
    """

    task: Task
    keys: tuple[str, str]
    untouched: bool
    judged: list[tuple[str, list[Verdict]]] = field(default_factory=list)

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts that apply to the answer as it is now; [] if it has to be judged."""
        return next((verdicts for key, verdicts in self.judged if key in self.keys), [])

    @property
    def result(self) -> TaskResult:
        to_do = [Verdict(self.task.number, "", "todo", "not started yet")] if self.untouched else []
        return TaskResult(self.task, self.verdicts or to_do)

    def add(self, result: TaskResult) -> None:
        """Store new verdicts. A failure names lines, so it applies only until they move."""
        key = self.keys[result.state == "failed"]
        self.task = result.task
        others = [each for each in self.judged if each[0] not in self.keys]
        self.judged = [(key, result.verdicts), *others][:VERSIONS]


class Progress:
    """A learner's standing in every task of these chapters, with the answers in one folder."""

    def __init__(self, folder: Path, chapters: Sequence[str]) -> None:
        self.folder = folder
        self._sources = read_answers(folder)
        known, right = _read(folder / FILE), solutions()
        self._files: dict[str, str] = {}  # chapter -> the hash of its files
        self._standings: dict[str, Standing] = {}  # by the task's number
        for name in chapters:
            source, graders, solution = self._sources.get(name), grader_of(name), right[name].text
            texts = json.dumps([source and source.text, graders, solution])
            self._files[name] = hashlib.sha256(texts.encode()).hexdigest()
            before, standings = known.get(name, ("", []))
            if before != self._files[name]:
                standings = _standings(name, source, graders, solution, standings)
            self._standings |= {standing.task.number: standing for standing in standings}

    @property
    def results(self) -> list[TaskResult]:
        """Results of all tasks, in order."""
        return [standing.result for standing in self._standings.values()]

    def to_judge(self, chapter: str) -> list[str]:
        """Return the numbers of the tasks that have changed since they were judged.

        A task that the learner has not touched is not judged, except a debugging task of ``chapter``: its program has a
        bug to show.
        """
        return [
            number
            for number, standing in self._standings.items()
            if not standing.verdicts and standing.task.chapter in self._sources
            if not standing.untouched or (standing.task.kind == "debugging" and standing.task.chapter == chapter)
        ]

    def current_chapter(self) -> str:
        """Return the chapter whose file was saved last, of those that the learner has begun; else the first chapter."""
        chapters = dict.fromkeys(standing.task.chapter for standing in self._standings.values())
        begun = {standing.task.chapter for standing in self._standings.values() if not standing.untouched}
        saved = {name: Path(self._sources[name].path).stat().st_mtime for name in chapters if name in begun}
        return max(saved, key=saved.__getitem__, default=next(iter(chapters)))

    def update(self, results: Sequence[TaskResult]) -> None:
        """Add new results and store everything."""
        judged = [result for result in results if result.state]
        for result in judged:
            self._standings[result.task.number].add(result)
        now = read_answers(self.folder)
        if any(now.get(result.task.chapter) != self._sources.get(result.task.chapter) for result in judged):
            return  # saved while it was judged: either version may be the one judged
        chapters = {
            name: {"files": hashed, "tasks": [asdict(s) for s in self._standings.values() if s.task.chapter == name]}
            for name, hashed in self._files.items()
        }
        try:
            write_atomically(self.folder / FILE, json.dumps(chapters))
        except OSError as error:
            print(f"minidist: cannot save your progress in {self.folder / FILE}: {error.strerror}", file=sys.stderr)


def _read(file: Path) -> dict[str, tuple[str, list[Standing]]]:
    """Read the file: chapter -> (hash of its files, standings). One that is missing, damaged or of another version
    counts as {}, so that everything is judged again."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {
            name: (chapter["files"], [_standing(**entry) for entry in chapter["tasks"]])
            for name, chapter in stored.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _standing(task: dict, keys: list, untouched: bool, judged: list) -> Standing:
    versions = [(key, [Verdict(**verdict) for verdict in verdicts]) for key, verdicts in judged]
    return Standing(Task(**task), tuple(keys), untouched, versions)


def _standings(
    chapter: str, source: Source | None, graders: str, solution: str, before: Sequence[Standing]
) -> list[Standing]:
    """Return the standings in a chapter whose files have changed, with the verdicts of the standings before."""
    definitions = definitions_by_task(solution)
    if source is None:
        return [Standing(task, ("", ""), True) for task in tasks_of(chapter)]
    keys, stub = dependencies(source.text, graders, definitions), stub_of(solution, chapter)
    known = {standing.task.number: standing for standing in before}
    standings = []
    for task in tasks_of(chapter):
        old = known.get(task.number)
        is_untouched = untouched(source.text, stub, definitions[task.number])
        judged = old.judged if old else []
        task.tests = old.task.tests if old else 0  # only pytest counts them, and it did when it judged
        standings.append(Standing(task, keys[task.number], is_untouched, judged))
    return standings
