"""The pytest plugin that graders are written with: ``@pytest.mark.task``, the ``student`` fixture, ``--impl``.

A grader is an ordinary test class for one task, marked with the task's number and points:

    pytestmark = pytest.mark.answers("ch03_collectives", forbidden=("minidist.comm.algorithms",))

    @pytest.mark.task("3.4", points=4)
    class TestReduceScatterRing:
        \"\"\"reduce_scatter_ring\"\"\"

        def test_values(self, student): ...

A task is passed when all its tests pass. After its first failure its other tests are skipped, so that the learner sees
one problem at a time. This file holds the options and fixtures; selection.py chooses the tests to run, judging.py turns
their outcomes into verdicts.
"""

import pytest

from minidist.comm.runtime.clusters import preload
from minidist.course.authoring.judging import Judging
from minidist.course.authoring.mutants import all_mutants, one_of_each_kind
from minidist.course.authoring.selection import Selection
from minidist.course.sandbox.limits import set_limits
from minidist.course.sandbox.warm_ranks import WarmRanks

# What graders need in a rank. (Pickle finds a grader's function by the name of its module, and that imports pytest.)
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
    group.addoption("--memory-limit", type=float, metavar="GIB", help="memory of the grading process and of each rank")
    group.addoption("--verdicts", metavar="FILE", help="write tasks and verdicts to this file, one JSON object a line")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "task(number, points, kind='code', dtypes=None, shared=()): the task that this test belongs to, the "
        "dtypes that its contract leaves open, and the functions that may return what they were lent",
    )
    config.addinivalue_line("markers", "one_dtype: this test counts messages, steps or memory, in the first dtype")
    config.addinivalue_line("markers", "answers(module, forbidden=()): the file of answers that these graders judge")
    if config.getoption("verdicts"):
        set_limits(config.getoption("memory_limit"))
        if not config.option.collectonly:
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
    """Dtype of the numbers in this test; None where the task names none."""


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
