"""Runs the graders in a process of their own and collects their verdicts."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from minidist.course.answers import ROOT, chapter_of, course_folder, implementation_folder
from minidist.course.grading.workplace import Workplace
from minidist.course.tasks import TaskResult, Verdict, read_verdicts, results_of

USAGE_ERROR = 4  # pytest's exit status
# Other installed plugins take time and may interfere, and the user's options may belong to them. Graders need their
# asserts. Pytest's messages are passed on, so they must have no colours.
NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "", "PYTEST_ADDOPTS": ""}
NO_OTHER_PLUGINS |= {"PYTHONOPTIMIZE": "", "PY_COLORS": "0"}


def pytest_arguments(graders: Path, verdicts: Path, impl: str, targets: Sequence[str], *more: str) -> list[str]:
    """Return pytest's arguments to judge answers with the graders of the targets and write the verdicts to a file."""
    files = [str(graders / f"test_{name}.py") for name in sorted(set(map(chapter_of, targets)))] or [str(graders)]
    tasks = [argument for target in targets for argument in ("--task", target)]
    # --confcutdir: ignore the conftest.py of the other tests, in the folder above
    alone = ["--rootdir", str(graders), "--confcutdir", str(graders), "-c", "/dev/null"]
    plain = ["--tb", "native", "-p", "no:cacheprovider", "-q"]
    plugin = ["-p", "minidist.course.authoring.plugin", "--impl", impl, "--verdicts", str(verdicts)]
    return [*files, *alone, *plain, *plugin, *tasks, *more]


def grader_command(graders: Path, verdicts: Path, impl: str, targets: Sequence[str], *more: str) -> list[str]:
    """Return the command that judges answers. Run it with the environment variables ``NO_OTHER_PLUGINS``."""
    return [sys.executable, "-m", "pytest", *pytest_arguments(graders, verdicts, impl, targets, *more)]


def run_graders(
    impl: str, targets: Sequence[str] = (), *more: str, on_verdict: Callable[[Verdict], None] | None = None
) -> list[TaskResult]:
    """Judge answers and wait for the results.

    Args:
        impl: "exercises", "solutions" or a folder.
        targets: tasks ("3.4") and chapters ("3"); none for all.
        more: further arguments of pytest, such as "--mutants".
        on_verdict: called with each verdict as it arrives.

    Returns:
        One result for each task in the targets' chapters; tasks that are not targets have no verdicts.

    Raises:
        ValueError: if the graders cannot run, with what they printed.
    """
    with Workplace() as workplace:
        files = RunFiles(workplace.folder, on_verdict)
        answers = str(implementation_folder(impl).resolve())
        command = grader_command(course_folder("tests/exercises"), files.verdicts, answers, targets, *more)
        environment = environment_of(workplace)  # (in ROOT: a clone in the current folder would bring another judge)
        status = workplace.run(command, environment, ROOT, files.output, meanwhile=files.report).status
        return files.results(status)


def environment_of(workplace: Workplace) -> dict[str, str]:
    """Return the environment variables that the graders need."""
    return {"TMPDIR": str(workplace.folder)} | NO_OTHER_PLUGINS


class RunFiles:
    """The files that a run of the graders writes.

    Args:
        folder: the folder that holds them.
        on_verdict: called with each verdict that ``report`` finds.
    """

    def __init__(self, folder: Path, on_verdict: Callable[[Verdict], None] | None = None) -> None:
        self.verdicts, self.output = folder / "verdicts", folder / "output"
        self._on_verdict, self._reported = on_verdict, 0

    def report(self) -> None:
        """Report the verdicts that have arrived since the last call."""
        found = read_verdicts(self.verdicts)[1]
        for verdict in found[self._reported :]:
            if self._on_verdict is not None:
                self._on_verdict(verdict)
        self._reported = len(found)

    def results(self, status: int | None) -> list[TaskResult]:
        """Return the results of a run that has ended with this exit status of pytest; see ``run_graders``."""
        self.report()
        tasks, verdicts = read_verdicts(self.verdicts)
        printed = self.output.read_text(errors="replace")
        if status == USAGE_ERROR:
            raise ValueError(printed.partition("ERROR: ")[2].strip())
        if status not in (0, 1, 5) or not tasks:  # 5: no test was selected
            raise ValueError(f"the graders did not run:\n{printed.strip()[-3000:]}")
        return results_of(tasks, verdicts)
