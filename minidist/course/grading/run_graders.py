"""Runs the graders in a process of their own and collects their verdicts."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from minidist.course.answers import course_folder
from minidist.course.tasks import TaskResult, Verdict, results_of
from minidist.course.verdict_file import read_verdicts

SHORT = "md-"  # prefix of temporary folders: a socket's path must not be long
POLL_SECONDS = 0.05
END_SECONDS = 30.0  # for the grading process to end its ranks
USAGE_ERROR = 4  # pytest's exit status
# Other installed plugins take time and may interfere, and the user's options may be theirs.
NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}


def grader_command(graders: Path, verdicts: Path, impl: str, targets: Sequence[str], *more: str) -> list[str]:
    """The command that judges answers: pytest on the graders, writing verdicts to a file.

    Run it with the environment variables ``NO_OTHER_PLUGINS``.

    Raises:
        ValueError: if pytest is missing.
    """
    if find_spec("pytest") is None:
        raise ValueError("the course needs pytest: pip install -e '.[course]'")
    tasks = [argument for target in targets for argument in ("--task", target)]
    plain = ["--rootdir", str(graders), "-c", "/dev/null", "--tb", "native", "-p", "no:cacheprovider", "-q"]
    plugin = ["-p", "minidist.course.authoring.plugin", "--impl", impl, "--verdicts", str(verdicts)]
    return [sys.executable, "-m", "pytest", str(graders), *plain, *plugin, *tasks, *more]


def run_graders(
    impl: str, targets: Sequence[str] = (), *more: str, on_verdict: Callable[[Verdict], None] | None = None
) -> list[TaskResult]:
    """Judge answers and wait for the results of all tasks; those outside the targets have no verdicts.

    Args:
        impl: "exercises", "solutions" or a folder.
        targets: tasks ("3.4") and chapters ("3"); none for all.
        more: further arguments of pytest, such as "--mutants".
        on_verdict: called with each verdict as it arrives.

    Raises:
        ValueError: if the graders cannot run, with what they printed.
    """
    with tempfile.TemporaryDirectory(prefix=SHORT) as folder:
        verdicts, output = Path(folder) / "verdicts", Path(folder) / "output"
        command = grader_command(course_folder("tests/exercises"), verdicts, impl, targets, *more)
        with open(output, "w") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"TMPDIR": folder} | NO_OTHER_PLUGINS,
            )
        try:
            reported = 0
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                found = read_verdicts(verdicts)[1]
                for verdict in found[reported:]:
                    if on_verdict is not None:
                        on_verdict(verdict)
                reported = len(found)
        finally:
            _end(process)
        tasks, found = read_verdicts(verdicts)
        if process.returncode == USAGE_ERROR:
            raise ValueError(output.read_text(errors="replace").partition("ERROR: ")[2].strip())
        if process.returncode not in (0, 1, 5) or not tasks:  # 5: no test was selected
            raise ValueError(f"the graders did not run:\n{output.read_text(errors='replace').strip()[-3000:]}")
    return results_of(tasks, found)


def _end(process: subprocess.Popen) -> None:
    """Interrupt the grading process, if it still runs, so that it ends its ranks; kill it if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    process.kill()
    process.wait()
