"""``minidist check --watch``: judges whatever the learner saves.

``python -m minidist.course.learner.watch REQUEST`` is a grading process on standby. It imports what graders need and
starts the server that forks ranks. Then it waits until the file REQUEST exists, which holds pytest's arguments as JSON.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from minidist.course.answers import ROOT, course_folder, implementation_folder, read_answers, write_atomically
from minidist.course.grading.run_graders import RunFiles, environment_of, pytest_arguments
from minidist.course.grading.workplace import Workplace
from minidist.course.learner.check import check
from minidist.course.tasks import TaskResult, Verdict

POLL_SECONDS = 0.02


def watch(console: Console, impl: str, target: str | None, all_chapters: bool) -> None:
    """Run ``check`` again whenever a file of answers is saved, until Ctrl-C.

    Raises:
        ValueError: if the package watchfiles is missing.
    """
    try:
        from watchfiles import watch as changes
    except ImportError:
        raise ValueError("--watch needs watchfiles: pip install -e '.[course]'") from None
    folder = implementation_folder(impl)
    # Also wake up twice a second without an event: a file may have been saved while another was being judged.
    saves = changes(folder, recursive=False, raise_interrupt=False, debounce=50, step=20, rust_timeout=500,
                    yield_on_timeout=True)  # fmt: skip
    judged = None
    with Standby() as judge:
        for _ in saves:
            try:
                now = {name: source.text for name, source in read_answers(folder).items()}
            except FileNotFoundError:  # an editor is replacing the file at this moment
                continue
            if now == judged:
                continue
            if judged is not None:
                console.clear()
                changed = sorted(name for name in now.keys() | judged.keys() if now.get(name) != judged.get(name))
                console.print("changed: " + ", ".join(f"{name}.py" for name in changed), style="dim")
            judged = now
            check(console, impl, target, all_chapters, judge)
            console.print("Save a file to check it again. Stop with Ctrl-C.", style="dim")
            judge.prepare()


class Standby:
    """Substitute for ``run_graders`` that starts its process in advance, since starting takes longer than judging.

    Every run has a new process, which reads the graders and the answers only after it is told what to judge, so nothing
    of an earlier version can be left in it. A context manager.
    """

    def __enter__(self) -> "Standby":
        self._workplace = Workplace()
        self._request = self._workplace.folder / "request"
        command = [sys.executable, "-m", "minidist.course.learner.watch", str(self._request)]
        output = RunFiles(self._workplace.folder).output
        self._thread = ThreadPoolExecutor(1)
        self._outcome = self._thread.submit(self._workplace.run, command, environment_of(self._workplace), ROOT, output)
        return self

    def __exit__(self, *_) -> None:
        self._workplace.__exit__()  # ends the process, and so the thread
        self._thread.shutdown()

    def __call__(
        self, impl: str, targets: Sequence[str], on_verdict: Callable[[Verdict], None] | None = None
    ) -> list[TaskResult]:
        files = RunFiles(self._workplace.folder, on_verdict)
        arguments = pytest_arguments(course_folder("tests/exercises"), files.verdicts, impl, targets)
        write_atomically(self._request, json.dumps(arguments))
        while not self._outcome.done():
            files.report()
            time.sleep(POLL_SECONDS)
        return files.results(self._outcome.result().status)

    def prepare(self) -> None:
        """Start the next process, if the last one has judged."""
        if self._outcome.done():
            self.__exit__()
            self.__enter__()


def main(request: Path) -> int:
    """Import what graders need, wait for the file of pytest's arguments, and run pytest once."""
    import pytest  # no other command needs these

    from minidist.comm.runtime.clusters import preload
    from minidist.course.authoring.plugin import RANK_MODULES

    preload(*RANK_MODULES)
    while not request.exists():
        time.sleep(POLL_SECONDS)
    return pytest.main(json.loads(request.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
