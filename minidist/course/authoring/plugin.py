"""The pytest plugin that graders are written with: ``@pytest.mark.task``, the ``student`` fixture, ``--impl``.

A grader is an ordinary test class for one task, marked with the task's number, points and hint:

    pytestmark = pytest.mark.answers("ch03_collectives", closed=("minidist.comm.algorithms",))

    @pytest.mark.task("3.4", points=4, hint="Step s sends chunk (rank - 1 - s) % N.")
    class TestReduceScatterRing:
        \"\"\"reduce_scatter_ring\"\"\"

        def test_values(self, student): ...

A task is passed when all its tests pass. After its first failure the rest of its tests are left out, so that the
learner sees one thing to mend at a time.
"""

import json
import re
from dataclasses import asdict, replace

import pytest

from minidist.comm.failures import Deadlock, RankFailed
from minidist.course.answers import Source, course_folder, implementation_folder, read_answers
from minidist.course.authoring.mutants import Mutant, all_mutants
from minidist.course.authoring.stubs import owners_of, stub_of, untouched
from minidist.course.sandbox.student import Student, WarmRanks
from minidist.course.sandbox.violations import VIOLATIONS
from minidist.course.tasks import KINDS, Task, Verdict

REMARK_CHARACTERS = 200
FILE_BYTES = 512 << 20  # that any file may grow to; the shared memory of the ranks is one
MESSAGE_CHARACTERS = 2000


class ToDo(Exception):
    """The task has not been begun."""


def pytest_addoption(parser):
    group = parser.getgroup("minidist's exercises")
    group.addoption("--impl", default="solutions", help="judge these answers: exercises, solutions or a folder")
    group.addoption("--task", action="append", default=[], help="judge only this task (3.4) or chapter (3)")
    group.addoption(
        "--mutants", nargs="?", const="all", choices=("all", "one"), help="judge the mutants, or one of each task"
    )
    group.addoption("--memory-limit", type=float, metavar="GIB", help="of the judge, and of each rank")
    group.addoption("--verdicts", metavar="FILE", help="write tasks and verdicts to this file, a JSON object a line")


def pytest_configure(config):
    config.addinivalue_line("markers", "task(number, points, hint, kind='code'): the task that this test belongs to")
    config.addinivalue_line("markers", "answers(module, closed=()): the file of answers that a file of graders judges")
    if config.getoption("verdicts"):
        set_limits(config.getoption("memory_limit"))
    config.pluginmanager.register(Grading(config), "minidist-grading")


def set_limits(memory: float | None) -> None:
    """Of this process and the ranks that it starts: GiB of memory, and how far any file may grow."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = [(resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_CORE, 0)]
    if memory is not None:
        limits.append((resource.RLIMIT_AS, int(memory * 2**30)))
    for kind, limit in limits:
        resource.setrlimit(kind, (limit, limit))


def pytest_generate_tests(metafunc):
    """With --mutants every test of a task runs once for each planted bug of the task."""
    marker = metafunc.definition.get_closest_marker("task")
    if marker and "mutant" in metafunc.fixturenames and metafunc.config.getoption("mutants"):
        bugs = [mutant for mutant in all_mutants() if mutant.task == marker.args[0]]
        if metafunc.config.getoption("mutants") == "one":
            del bugs[1:]
        metafunc.parametrize("mutant", bugs, ids=[mutant.bug for mutant in bugs])


@pytest.fixture
def mutant():
    """The planted bug to judge; None where the answers are."""


@pytest.fixture(scope="session")
def warm_ranks():
    """``warm_ranks(n)`` is a warm Cluster of n ranks, on which the answers run."""
    with WarmRanks() as ranks:
        yield ranks


@pytest.fixture
def student(request, warm_ranks, mutant):
    """The answers to judge, as a Student."""
    grading = request.config.pluginmanager.getplugin("minidist-grading")
    request.node.student = grading.student(request.node, warm_ranks, mutant)
    return request.node.student


class Grading:
    """What one session of pytest knows of tasks, answers and verdicts."""

    def __init__(self, config) -> None:
        self.config = config
        self.sources: dict[str, Source] | None = None  # read at the first task: a broken answer may delete its file
        self.given: dict[str, tuple[str, dict[str, list[str]]]] = {}  # chapter -> its stub, and whose each task is
        self.unloadable: dict[str, str] = {}  # file of answers -> why it cannot be loaded
        self.over: set[tuple[str, str]] = set()  # (task, mutant) of which nothing more need be judged
        self.chapter, self.trouble = "", False  # what was judged last, and whether something went wrong there

    # Choosing

    def pytest_collection_modifyitems(self, config, items):
        tasks: dict[str, Task] = {}
        for item in items:
            if marker := item.get_closest_marker("task"):
                task = describe(item, marker)
                known = tasks.setdefault(task.number, task)
                known.tests += 1
                if known != replace(task, tests=known.tests):
                    raise pytest.UsageError(f"task {task.number} is described twice, differently: {known} and {task}")
        self._write({"tasks": [asdict(task) for task in sorted(tasks.values(), key=lambda task: task.order)]})
        wished = config.getoption("task")
        if unknown := [wish for wish in wished if not any(task.belongs(wish) for task in tasks.values())]:
            raise pytest.UsageError(f"there is no task {', '.join(unknown)}; there are {', '.join(tasks)}")
        if wished or config.getoption("mutants"):
            wished = wished or list(tasks)
            chosen = {number for number, task in tasks.items() if any(task.belongs(wish) for wish in wished)}
            chosen = [i for i in items if (m := i.get_closest_marker("task")) and m.args[0] in chosen]
            config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
            items[:] = chosen

    # Judging

    def student(self, item, warm_ranks, mutant: Mutant | None) -> Student:
        """The answers that a test judges. Raises ToDo where the task has not been begun."""
        task = item.get_closest_marker("task").args[0]
        if (task, _bug(mutant)) in self.over:
            pytest.skip("an earlier test of this task has failed")
        answers = item.get_closest_marker("answers")
        name, closed = answers.args[0], answers.kwargs.get("closed", ())
        if mutant is not None:
            return Student(mutant.source(), closed, warm_ranks)
        if self.trouble or self.chapter != name:  # what one answer leaves behind in its ranks must not meet another
            warm_ranks.close()
        self.chapter, self.trouble = name, False
        source = self._source(name)
        if name not in self.given:
            solution = read_answers(course_folder("solutions"))[name].text
            self.given[name] = stub_of(solution, name), owners_of(solution)
        stub, owners = self.given[name]
        if untouched(source.text, stub, owners[task]):
            raise ToDo("this is still as it was given to you")
        student = Student(source, closed, warm_ranks)
        self._check_loads(student)
        return student

    def _source(self, name: str) -> Source:
        if self.sources is None:
            try:
                self.sources = read_answers(implementation_folder(self.config.getoption("impl")))
            except ValueError as error:
                pytest.exit(str(error), returncode=4)
        if name not in self.sources:
            raise ToDo(f"there is no file {name}.py among the answers")
        return self.sources[name]

    def _check_loads(self, student: Student) -> None:
        """Load a file of answers once by itself: one that hangs when it is loaded should not do so for every task."""
        name = student.source.name
        if name not in self.unloadable:
            try:
                student.on_ranks(1, _nothing)
                self.unloadable[name] = ""
            except (RankFailed, Deadlock, TimeoutError) as error:
                self.unloadable[name] = f"{name}.py cannot be loaded: {explain(error, name)[0]}"
        if self.unloadable[name]:
            pytest.fail(self.unloadable[name], pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        marker = item.get_closest_marker("task")
        if marker is None or report.skipped or (report.passed and call.when != "call"):
            return report
        student, mutant = (
            getattr(item, "student", None),
            item.callspec.params.get("mutant") if _has_spec(item) else None,
        )
        verdict = Verdict(marker.args[0], item.name.split("[")[0], "passed", mutant=_bug(mutant))
        if report.failed:
            name = item.get_closest_marker("answers").args[0]
            verdict.state = "todo" if is_to_do(call.excinfo.value) else "failed"
            verdict.message, verdict.details = map(readable, explain(call.excinfo.value, name))
            if verdict.state == "todo":
                report.longrepr = f"task {verdict.task} is still to do: {marker.kwargs['hint']}"
            elif report.capstdout:
                verdict.details += f"\nit printed:\n{readable(report.capstdout[-MESSAGE_CHARACTERS:])}"
            self.over.add((verdict.task, verdict.mutant))
            self.trouble = True
            if is_breach(call.excinfo.value):
                verdict.remarks.append(" ".join(verdict.message.split())[:REMARK_CHARACTERS])
        if student is not None:
            verdict.remarks += student.remarks
            self.trouble |= bool(student.remarks)
        self._write({"verdict": asdict(verdict)})
        return report

    def _write(self, entry: dict) -> None:
        if path := self.config.getoption("verdicts"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def describe(item, marker) -> Task:
    """The task of a marker.

    Raises:
        pytest.UsageError: where the marker lacks something.
    """
    keys = marker.kwargs
    answers = item.get_closest_marker("answers")
    title = (item.cls.__doc__ if item.cls else item.function.__doc__) or ""
    if len(marker.args) != 1 or not {"points", "hint"} <= keys.keys() or answers is None or not title:
        raise pytest.UsageError(
            f'{item.nodeid}: a task needs @pytest.mark.task("3.4", points=4, hint="..."), a docstring that names it, '
            'and pytestmark = pytest.mark.answers("chNN_name")'
        )
    kind = keys.get("kind", "code")
    if kind not in KINDS or not (course_folder("solutions") / f"{answers.args[0]}.py").is_file():
        raise pytest.UsageError(
            f"{item.nodeid}: {kind!r} is none of {KINDS}, or there is no solution {answers.args[0]}"
        )
    return Task(marker.args[0], keys["points"], keys["hint"], kind, title.strip().splitlines()[0], answers.args[0])


def own_frames(traceback_text: str, name: str) -> str:
    """Of a traceback, what stands in the file of answers of that name: each place, and the line there."""
    kept, keeping = [], False
    for line in traceback_text.splitlines():
        if line.startswith("  File "):
            keeping = f'{name}.py"' in line and f"test_{name}" not in line
        elif not line.startswith("    "):
            keeping = False
        if keeping and not set(line) <= set(" ^~"):
            kept.append(line.strip() if line.startswith("  File ") else line)
    return "\n".join(kept)


def _has_spec(item) -> bool:
    return hasattr(item, "callspec")


def _bug(mutant: Mutant | None) -> str:
    return mutant.bug if mutant else ""


def _nothing(world, answers) -> None:
    """The file was loaded before this function was called; that was all."""


def is_to_do(error: BaseException) -> bool:
    """Whether the error says that a stub was reached, here or in a rank."""
    return isinstance(error, ToDo) or (
        isinstance(error, RankFailed) and error.summary.startswith("NotImplementedError")
    )


def is_breach(error: BaseException) -> bool:
    """Whether the error is more than a wrong result: the answer hangs, ends its process, or breaks a rule."""
    if isinstance(error, RankFailed):
        return error.exitcode is not None or error.summary.startswith(tuple(kind.__name__ for kind in VIOLATIONS))
    return isinstance(error, TimeoutError | pytest.fail.Exception)


def readable(text: str) -> str:
    """The text as any file and any terminal can take it: not too long, and without characters that steer a terminal."""
    text = text if len(text) <= MESSAGE_CHARACTERS else text[:MESSAGE_CHARACTERS] + " [...]"
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def explain(error: BaseException, name: str) -> tuple[str, str]:
    """An error as a learner needs it: what is wrong, and where in the file of answers of that name."""
    if isinstance(error, RankFailed):
        places = re.findall(rf'["/\\]{name}\.py", line (\d+), in (\S+)', error.traceback_text)
        where = f" (rank {error.rank}, {name}.py:{places[-1][0]} in {places[-1][1]})" if places else ""
        said = error.summary or "the process ended"
        return f"{said}{where}", own_frames(error.traceback_text, name)
    if isinstance(error, Deadlock):
        return f"deadlock: {error}", ""
    said = str(error).partition("\nassert ")[0]  # the grader's own words, without pytest's analysis of the expression
    return said or type(error).__name__, ""
