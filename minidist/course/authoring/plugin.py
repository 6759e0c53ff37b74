"""The pytest plugin that graders are written with: ``@pytest.mark.task``, the ``student`` fixture, ``--impl``.

A grader is an ordinary test class for one task, marked with the task's number and points:

    pytestmark = pytest.mark.answers("ch03_collectives", forbidden=("minidist.comm.algorithms",))

    @pytest.mark.task("3.4", points=4)
    class TestReduceScatterRing:
        \"\"\"reduce_scatter_ring\"\"\"

        def test_values(self, student): ...

A task is passed when all its tests pass. After its first failure its other tests are skipped, so that the learner sees
one problem at a time; the parts of a worksheet are judged apart. This file holds the options and fixtures and chooses
the tests to run; judging.py turns their outcomes into verdicts.
"""

from dataclasses import asdict, replace

import pytest

from minidist.comm.runtime.clusters import preload
from minidist.course.answers import course_folder
from minidist.course.authoring.judging import Judging
from minidist.course.authoring.mutants import all_mutants, one_of_each_kind
from minidist.course.sandbox.student import WarmRanks
from minidist.course.tasks import KINDS, Task, tell

# Modules that graders need in a rank. (Pickle imports the module of a grader's function, and that imports pytest.)
RANK_MODULES = (
    "minidist.course.sandbox.student",
    "minidist.course.authoring.assertions",
    "minidist.train.trainer",
    "pytest",
    "minidist.course.sandbox.warm_start",
)


def pytest_addoption(parser):
    group = parser.getgroup("minidist's exercises")
    group.addoption("--impl", default="solutions", help="judge these answers: exercises, solutions or a folder")
    group.addoption("--task", action="append", default=[], help="judge only this task (3.4) or chapter (3)")
    group.addoption(
        "--mutants",
        nargs="?",
        const="all",
        choices=("all", "kinds"),
        help="judge all mutants, or one of each task and kind",
    )
    group.addoption("--verdicts", metavar="FILE", help="write tasks and verdicts to this file, one JSON object a line")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "task(number, points, kind='code', dtypes=None, shared=()): the task that this test belongs to, the "
        "dtypes that its contract leaves open, and the functions that may return what they were lent",
    )
    config.addinivalue_line("markers", "one_dtype: this test counts messages, steps or memory, in the first dtype")
    config.addinivalue_line("markers", "answers(module, forbidden=()): the file of answers that these graders judge")
    if config.getoption("verdicts") and not config.option.collectonly:
        preload(*RANK_MODULES)  # the server that forks ranks starts while the graders are collected
    config.pluginmanager.register(Selection(), "minidist-selection")
    config.pluginmanager.register(Judging(config), "minidist-judging")


def pytest_generate_tests(metafunc):
    """Run every test of a task once for each of its dtypes, and with --mutants once for each of its mutants."""
    marker = metafunc.definition.get_closest_marker("task")
    if marker and "student" in metafunc.fixturenames and (dtypes := marker.kwargs.get("dtypes")):
        metafunc.parametrize("dtype", dtypes[:1] if metafunc.definition.get_closest_marker("one_dtype") else dtypes)
    if marker and "mutant" in metafunc.fixturenames and metafunc.config.getoption("mutants"):
        mutants = [mutant for mutant in all_mutants() if mutant.task == marker.args[0]]
        if metafunc.config.getoption("mutants") == "kinds":
            mutants = one_of_each_kind(mutants)
        metafunc.parametrize("mutant", mutants, ids=[mutant.bug for mutant in mutants])


@pytest.fixture
def dtype():
    """Dtype of the numbers in this test; None if the task names none."""


@pytest.fixture
def mutant():
    """The mutant to judge; None when answers are judged."""


@pytest.fixture(scope="session")
def warm_ranks():
    """``warm_ranks(n)`` is a warm Cluster of n ranks, on which the answers run."""
    with WarmRanks(RANK_MODULES) as ranks:
        yield ranks


@pytest.fixture
def student(request, warm_ranks, dtype, mutant):
    """The answers to judge, as a Student."""
    judging = request.config.pluginmanager.getplugin("minidist-judging")
    request.node.student = judging.student(request.node, warm_ranks, mutant)
    return request.node.student


class Selection:
    """The part of the plugin that pytest calls after it has collected the graders."""

    def pytest_collection_modifyitems(self, config, items):
        tasks: dict[str, Task] = {}
        for item in items:
            if marker := item.get_closest_marker("task"):
                task = task_of(item, marker)
                known = tasks.setdefault(task.number, task)
                known.tests += 1
                if known != replace(task, tests=known.tests):
                    raise pytest.UsageError(f"task {task.number} has two different descriptions: {known} and {task}")
        in_order = sorted(tasks.values(), key=lambda task: task.order)
        tell(config.getoption("verdicts"), tasks=[asdict(task) for task in in_order])
        targets = config.getoption("task")
        if unknown := [target for target in targets if not any(task.matches(target) for task in tasks.values())]:
            raise pytest.UsageError(f"there is no task {', '.join(unknown)}; choose from {', '.join(tasks)}")
        if targets or config.getoption("mutants"):
            targets = targets or list(tasks)
            numbers = {number for number, task in tasks.items() if any(task.matches(target) for target in targets)}
            chosen = [i for i in items if (m := i.get_closest_marker("task")) and m.args[0] in numbers]
            config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
            items[:] = chosen


def task_of(item, marker) -> Task:
    """Return the task that a test's marker describes.

    Raises:
        pytest.UsageError: if the description is incomplete.
    """
    keys = marker.kwargs
    answers = item.get_closest_marker("answers")
    title = (item.cls.__doc__ if item.cls else item.function.__doc__) or ""
    if len(marker.args) != 1 or "points" not in keys or answers is None or not title:
        raise pytest.UsageError(
            f'{item.nodeid}: a task needs @pytest.mark.task("3.4", points=4), a docstring with its title, '
            'and pytestmark = pytest.mark.answers("chNN_name")'
        )
    kind = keys.get("kind", "code")
    if kind not in KINDS:
        raise pytest.UsageError(f"{item.nodeid}: expected a kind from {', '.join(KINDS)}, got {kind!r}")
    if not (course_folder("solutions") / f"{answers.args[0]}.py").is_file():
        raise pytest.UsageError(f"{item.nodeid}: there is no file solutions/{answers.args[0]}.py")
    return Task(marker.args[0], keys["points"], kind, title.strip().splitlines()[0], answers.args[0])
