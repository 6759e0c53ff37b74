"""A grading process that starts before it is known what to judge: the start takes longer than to judge one task."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minidist.course.answers import course_folder, write_atomically
from minidist.course.grading.run_graders import RunFiles, environment_of, pytest_arguments
from minidist.course.grading.workplace import Workplace
from minidist.course.tasks import TaskResult, Verdict

POLL_SECONDS = 0.02
PROGRAM = "minidist.course.authoring.stand_by"
REQUEST = "request"  # the file for which the process waits


class Standby:
    """One process, for one run of the graders. A context manager.

    The process is new in every run and reads the graders and the answers after it has been told what to judge, so
    nothing of an earlier version can be left in it.
    """

    def __enter__(self) -> "Standby":
        self._workplace = Workplace()
        self._request = self._workplace.folder / REQUEST
        command = [sys.executable, "-m", PROGRAM, str(self._request)]
        output = RunFiles(self._workplace.folder).output
        self._thread = ThreadPoolExecutor(1)
        self._outcome = self._thread.submit(
            self._workplace.run, command, environment_of(self._workplace), Path.cwd(), output
        )
        return self

    def __exit__(self, *_) -> None:
        self._workplace.__exit__()  # ends the process, and so the thread
        self._thread.shutdown()

    def run_graders(
        self, impl: str, targets: Sequence[str] = (), on_verdict: Callable[[Verdict], None] | None = None
    ) -> list[TaskResult]:
        """Judge answers as the function ``run_graders`` does."""
        files = RunFiles(self._workplace.folder, on_verdict)
        arguments = pytest_arguments(course_folder("tests/exercises"), files.verdicts, impl, targets)
        write_atomically(self._request, json.dumps(arguments))
        while not self._outcome.done():
            files.report()
            time.sleep(POLL_SECONDS)
        return files.results(self._outcome.result().status)
