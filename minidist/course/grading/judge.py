"""Running the graders, in a process of their own, and adding their verdicts up to the state of each task."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from minidist.course.answers import course_folder
from minidist.course.tasks import Task, Verdict

SHORT = "md-"  # the name of a folder for temporary files: the sockets in it may have no long path
POLL_SECONDS = 0.05
END_SECONDS = 5.0  # for the judge to end its ranks
USAGE_ERROR = 4  # pytest's exit status
NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # what else is installed takes time, and may interfere


@dataclass
class Judged:
    """One task, and what the graders found."""

    task: Task
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def state(self) -> str:
        """ "passed" when every test of the task has passed; else "failed", "todo", or "" where it was not judged."""
        states = [verdict.state for verdict in self.verdicts]
        if "failed" in states or "todo" in states:
            return "failed" if "failed" in states else "todo"
        return "passed" if states and len(states) >= self.task.tests else ""

    @property
    def points(self) -> int:
        return self.task.points if self.state == "passed" else 0

    @property
    def failure(self) -> Verdict | None:
        """The first verdict that is not "passed"."""
        return next((verdict for verdict in self.verdicts if verdict.state != "passed"), None)


def grader_command(graders: Path, verdicts: Path, impl: str, wished: Sequence[str], *more: str) -> list[str]:
    """The command that judges: pytest on the graders, writing verdicts to a file.

    Raises:
        ValueError: where pytest is missing.
    """
    if find_spec("pytest") is None:
        raise ValueError("the course needs pytest: pip install -e '.[course]'")
    tasks = [argument for wish in wished for argument in ("--task", wish)]
    plain = ["--rootdir", str(graders), "-c", "/dev/null", "--tb", "native", "-p", "no:cacheprovider", "-q"]
    plugin = ["-p", "minidist.course.authoring.plugin", "--impl", impl, "--verdicts", str(verdicts)]
    return [sys.executable, "-m", "pytest", str(graders), *plain, *plugin, *tasks, *more]


def judge(
    impl: str, wished: Sequence[str] = (), *more: str, on_verdict: Callable[[Verdict], None] | None = None
) -> list[Judged]:
    """Judge answers here and now; returns every task of the course, those that were not wished for without verdicts.

    Args:
        impl: "exercises", "solutions" or a folder.
        wished: tasks ("3.4") and chapters ("3"); none for all.
        more: further arguments of pytest, such as "--mutants".
        on_verdict: called with each verdict as it comes.

    Raises:
        ValueError: where the graders cannot run, with what they printed.
    """
    with tempfile.TemporaryDirectory(prefix=SHORT) as folder:
        verdicts, output = Path(folder) / "verdicts", Path(folder) / "output"
        command = grader_command(course_folder("tests/exercises"), verdicts, impl, wished, *more)
        with open(output, "w") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"TMPDIR": folder, **NO_OTHER_PLUGINS},
            )
        try:
            seen = 0
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                entries = read_verdicts(verdicts)[1]
                for verdict in entries[seen:]:
                    if on_verdict is not None:
                        on_verdict(verdict)
                seen = len(entries)
        finally:
            _end(process)
        tasks, entries = read_verdicts(verdicts)
        if process.returncode == USAGE_ERROR:
            raise ValueError(output.read_text(errors="replace").partition("ERROR: ")[2].strip())
        if process.returncode not in (0, 1, 5) or not tasks:  # 5: no test was chosen
            raise ValueError(f"the graders did not run:\n{output.read_text(errors='replace').strip()[-3000:]}")
    return add_up(tasks, entries)


def _end(process: subprocess.Popen) -> None:
    """Interrupt the judge, if it still runs, so that it ends its ranks; kill it only if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    process.kill()
    process.wait()


def read_verdicts(path: Path) -> tuple[list[Task], list[Verdict]]:
    """What the plugin has written so far."""
    tasks: list[Task] = []
    verdicts: list[Verdict] = []
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        entry = json.loads(line)
        if "tasks" in entry:
            tasks = [Task(**task) for task in entry["tasks"]]
        else:
            verdicts.append(Verdict(**entry["verdict"]))
    return tasks, verdicts


def add_up(tasks: Sequence[Task], verdicts: Sequence[Verdict]) -> list[Judged]:
    judged = {task.number: Judged(task) for task in tasks}
    for verdict in verdicts:
        judged[verdict.task].verdicts.append(verdict)
    return list(judged.values())
