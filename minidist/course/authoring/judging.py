"""Gives each test the answers to judge, and turns its outcome into a verdict that a learner understands."""

import re
from dataclasses import asdict

import pytest

from minidist.comm.failures import Deadlock, RankFailed
from minidist.course.answers import Source, implementation_folder, read_answers, solutions
from minidist.course.authoring.mutants import Mutant
from minidist.course.dependencies import tasks_used
from minidist.course.sandbox.forbidden import VIOLATIONS, LibraryAnswer
from minidist.course.sandbox.in_rank import Contract
from minidist.course.sandbox.student import Student, WarmRanks
from minidist.course.sandbox.values import use_dtype
from minidist.course.stubs import definitions_by_task, stub_of, untouched
from minidist.course.tasks import Verdict, readable, tell

REMARK_CHARACTERS = 200
PRINTED_CHARACTERS, PRINTED_LINES = 2000, 20  # of an answer's last output, shown in the details of a verdict


class Judging:
    """The part of the plugin that knows the answers and what has been found about them in this session."""

    def __init__(self, config) -> None:
        self.config = config
        self.sources: dict[str, Source] | None = None  # read at the first task: a broken answer may delete its file
        self.given: dict[str, tuple[str, dict[str, list[str]]]] = {}  # chapter -> its stub, its definitions by task
        self.load_errors: dict[str, str] = {}  # chapter -> why its answers cannot be loaded, or ""
        self.done: set[tuple[str, str]] = set()  # (task, mutant) that have failed already
        self.chapter, self.needs_new_ranks = "", False  # the chapter judged last; whether something went wrong

    def student(self, item, warm_ranks: WarmRanks, mutant: Mutant | None) -> Student:
        """Return the answers that a test judges.

        Raises:
            ToDo: if the learner has not started the task.
        """
        task = item.get_closest_marker("task").args[0]
        if (task, _bug(mutant)) in self.done:
            pytest.skip("an earlier test of this task has failed")
        answers = item.get_closest_marker("answers")
        name, dtype = answers.args[0], getattr(item, "callspec", None) and item.callspec.params.get("dtype")
        shared = item.get_closest_marker("task").kwargs.get("shared", ())
        contract = Contract(task, answers.kwargs.get("forbidden", ()), shared, dtype)
        use_dtype(dtype)  # in this process too, for the values that tests expect
        if mutant is not None:
            return Student(mutant.source(), contract, warm_ranks)
        if self.needs_new_ranks or self.chapter != name:  # nothing that an answer leaves in its ranks may reach another
            warm_ranks.close()
        self.chapter, self.needs_new_ranks = name, False
        source = self._source(name)
        if name not in self.given:
            solution = solutions()[name].text
            self.given[name] = stub_of(solution, name), definitions_by_task(solution)
        stub, definitions = self.given[name]
        if untouched(source.text, stub, definitions[task]):
            if item.get_closest_marker("task").kwargs.get("kind") != "debugging":
                raise ToDo("not started yet")
            item.as_given = True  # its failure shows what to look for
        student = Student(source, contract, warm_ranks)
        self._check_loads(student)
        return student

    def _source(self, name: str) -> Source:
        if self.sources is None:
            try:
                self.sources = read_answers(implementation_folder(self.config.getoption("impl")))
            except ValueError as error:
                pytest.exit(str(error), returncode=4)
        if name not in self.sources:
            raise ToDo(f"{name}.py is missing from the answers")
        return self.sources[name]

    def _check_loads(self, student: Student) -> None:
        """Load a file of answers once on its own, so that one that hangs while loading costs the timeout only once."""
        name = student.source.name
        if name not in self.load_errors:
            try:
                student.on_ranks(1, _nothing)
                self.load_errors[name] = ""
            except (RankFailed, Deadlock, TimeoutError) as error:
                if isinstance(error, RankFailed) and error.summary.startswith(LibraryAnswer.__name__):
                    return  # what is forbidden depends on the task, and the test itself reports it
                self.load_errors[name] = f"{name}.py cannot be loaded: {explain(error, name)[0]}"
        if self.load_errors[name]:
            pytest.fail(self.load_errors[name], pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        marker = item.get_closest_marker("task")
        if marker is None or report.skipped or (report.passed and call.when != "call"):
            return report
        student = getattr(item, "student", None)
        mutant = item.callspec.params.get("mutant") if hasattr(item, "callspec") else None
        verdict = Verdict(marker.args[0], item.name.split("[")[0], "passed", mutant=_bug(mutant))
        if report.failed:
            name = item.get_closest_marker("answers").args[0]
            as_given = getattr(item, "as_given", False)
            verdict.state = "todo" if as_given or is_to_do(call.excinfo.value) else "failed"
            told = explain(call.excinfo.value, name, student.called if student else "the answer")
            verdict.message, verdict.details = map(readable, told)
            verdict.message = verdict.message.removesuffix(f" (task {verdict.task})")
            if verdict.state == "todo":
                report.longrepr = f"task {verdict.task} is still to do: {verdict.message}"
            elif report.capstdout:
                printed = readable(report.capstdout[-PRINTED_CHARACTERS:]).splitlines()[-PRINTED_LINES:]
                verdict.details += "\n".join(["\nthe last lines printed:", *printed])
            if not has_parts(marker) or mutant is not None or is_violation(call.excinfo.value) or not student:
                self.done.add((verdict.task, verdict.mutant))
            self.needs_new_ranks = True
            if is_violation(call.excinfo.value) and not as_given:
                verdict.remarks.append(" ".join(verdict.message.split())[:REMARK_CHARACTERS])
        if student is not None:
            verdict.remarks += student.remarks
            if report.failed and mutant is None:
                definitions = self.given[student.source.name][1]
                verdict.uses = tasks_used(student.source.text, definitions, verdict.task)
            self.needs_new_ranks |= bool(student.remarks)
        tell(self.config.getoption("verdicts"), verdict=asdict(verdict))
        return report


def _bug(mutant: Mutant | None) -> str:
    return mutant.bug if mutant else ""


def _nothing(world, answers) -> None:
    """Do nothing: ranks load the file before they call this function."""


class ToDo(Exception):
    """Raised if the learner has not started the task."""


def has_parts(marker) -> bool:
    """Return whether a task's tests are judged separately: in a worksheet, whose functions hardly need each other."""
    return marker.kwargs.get("kind") == "worksheet"


def explain(error: BaseException, name: str, called: str = "the answer") -> tuple[str, str]:
    """Return what is wrong, and the lines of the file of answers ``name`` that led there.

    Args:
        called: the function that the grader called last. A result that it cannot use is most often the None of a
            function without a ``return``.
    """
    unusable = f"the grader cannot use what {called} returned: "
    if isinstance(error, RankFailed):
        places = re.findall(rf'["/\\]{name}\.py", line (\d+), in (\S+)', error.traceback_text)
        if places and (stub := re.match(r"NotImplementedError: (task \d+\.\d+)", error.summary)):
            return f"{places[-1][1]} is still a stub ({stub[1]})", ""
        where = f" (rank {error.rank}, {name}.py:{places[-1][0]} in {places[-1][1]})" if places else ""
        summary = error.summary.removeprefix("AssertionError: ") or "the process ended"
        if not places and summary.startswith(("TypeError: ", "AttributeError: ")) and "the answer" not in summary:
            problem, lacking = summary.partition(": ")[2], f"module '{name}' has no attribute "
            missing = problem.removeprefix(lacking)
            if re.match(r"[\w.]+\(\) (takes|missing|got) ", problem):  # other arguments than the exercise's
                unusable = "the grader cannot call it: "
            summary = unusable + problem if missing == problem else f"{name}.py has no {missing}"
        return f"{summary}{where}", own_frames(error.traceback_text, name)
    if isinstance(error, Deadlock):
        return f"deadlock: {error}", ""
    message = str(error).partition("\nassert ")[0]  # the grader's own words, without pytest's analysis
    return unusable * isinstance(error, TypeError | AttributeError) + (message or type(error).__name__), ""


def own_frames(traceback_text: str, name: str) -> str:
    """Return the frames of a traceback that are in the file of answers ``name``: each place with its line of code."""
    kept, keeping = [], False
    for line in traceback_text.splitlines():
        if line.startswith("  File "):
            keeping = f'{name}.py"' in line and f"test_{name}" not in line
        elif not line.startswith("    "):
            keeping = False
        if keeping and not set(line) <= set(" ^~"):
            kept.append(line.strip() if line.startswith("  File ") else line)
    return "\n".join(kept)


def is_to_do(error: BaseException) -> bool:
    """Return whether the error means that a stub was reached, in the grading process or in a rank."""
    return isinstance(error, ToDo) or (
        isinstance(error, RankFailed) and error.summary.startswith("NotImplementedError")
    )


def is_violation(error: BaseException) -> bool:
    """Return whether the error is more than a wrong result: the answer hangs, ends its process, or violates a rule."""
    if isinstance(error, RankFailed):
        return error.exitcode is not None or error.summary.startswith(tuple(kind.__name__ for kind in VIOLATIONS))
    return isinstance(error, TimeoutError | pytest.fail.Exception)
