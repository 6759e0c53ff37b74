"""What all tests share: which of them run, on how many cores, compiled modules, and warm ranks.

``pytest`` leaves out what is marked ``long`` or needs a browser, and of each exercise's grader all but the first test.
``pytest --all`` runs those too that have not passed on the same code before (records.py), ``--fresh`` all of them. A
test that is named by its node id (``tests/x.py::test_y``) always runs.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from clusters import PatientCluster
from records import Records

from minidist.comm.runtime.clusters import WarmClusters, preload
from minidist.comm.transports.cores import cores
from minidist.course.authoring.plugin import RANK_MODULES

FIRST = (  # the longest, so that none of them begins when the other cores have nothing left to do
    "test_mutants.py",
    "test_chapters.py",
    "test_conformance_on_mpi.py",
    "test_on_the_standin.py",
    "test_check.py",
    "test_grade.py",
    "test_matrix.py",
    "test_verify.py",
    "test_elastic.py",
    "test_corrupted_numbers.py",
    "test_goes_on.py",
)

POINTS = 8  # the smallest text of a picture
INCHES = 11.5  # JupyterLab shrinks what is wider in a window of 1,000 pixels, with the 80 dots per inch of the chapters
left_out, passed_before = pytest.StashKey[int](), pytest.StashKey[int]()
records = pytest.StashKey[Records]()
begun = set()  # the tasks of the exercises with a test so far; each is a class


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the long tests too, if anything that they use has changed")
    parser.addoption("--fresh", action="store_true", help="with --all, whether or not anything has changed")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: left out, unless pytest is given --all or the test's node id")
    config.stash[left_out] = config.stash[passed_before] = 0
    config.stash[records] = Records(config.getoption("fresh"))
    config.pluginmanager.register(config.stash[records], "minidist-records")
    if sys.dont_write_bytecode and config.pluginmanager.hasplugin("cacheprovider"):
        share_bytecode(config.cache.mkdir("bytecode"))
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(Workers(), "minidist-workers")


def share_bytecode(folder: Path) -> None:
    """Keep compiled modules in this folder, where Python is told to write none beside the source.

    Containers often tell it so (PYTHONDONTWRITEBYTECODE). Each of the hundreds of processes that the tests start would
    then compile all modules for itself.
    """
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config):
    """Let the tests share all cores, file by file, where no files are named."""
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    alone = config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput")  # workers start no workers
    option = config.option
    if everything and alone and option.numprocesses is None and not option.usepdb:
        option.numprocesses, option.dist, option.loadscopereorder = cores(), "loadfile", False
        if option.maxworkerrestart is None:
            option.maxworkerrestart = "0"  # pytest-xdist 3.8 waits for ever where a worker crashed and is started again


def pytest_itemcollected(item):
    """Mark as long all but the first test of each task's grader, and tests that need a browser."""
    if "browser" in getattr(item, "fixturenames", ()):
        item.add_marker("long")
    if item.path.parent.name == "exercises":
        if item.cls in begun:
            item.add_marker("long")
        begun.add(item.cls)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.path.name not in FIRST)
    if any("::" in argument for argument in config.args):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    has_to_run = config.stash[records].has_to_run
    out = {item for item in long if not has_to_run(item)} if config.option.all else set(long)
    config.stash[passed_before if config.option.all else left_out] = len(out)
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]


class Workers:
    """Each worker of pytest-xdist tells what it has left out: all of them the same."""

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            stash = session.config.stash
            session.config.workeroutput["told"] = stash[left_out], stash[passed_before], stash[records].long

    def pytest_testnodedown(self, node):
        if told := getattr(node, "workeroutput", {}).get("told"):
            node.config.stash[left_out], node.config.stash[passed_before], node.config.stash[records].long = told


def pytest_terminal_summary(terminalreporter, config):
    if config.stash[left_out]:
        terminalreporter.write_line(f"{config.stash[left_out]} long tests left out; pytest --all runs them")
    if count := config.stash[passed_before]:
        terminalreporter.write_line(f"{count} tests have passed on this code before; --fresh runs them too")
    for group in config.stash[records].contradicted():
        terminalreporter.write_line(f"{group} has passed on this code before: it is flaky, or records.py misses a file")
    for report in terminalreporter.getreports("failed"):
        terminalreporter.write_line(f'to repeat it alone: pytest "{report.nodeid}"')
    whole = not config.option.keyword and not any("::" in argument for argument in config.args)
    if config.option.all and whole and not config.option.collectonly and not hasattr(config, "workerinput"):
        config.stash[records].write()


@pytest.fixture(scope="session")
def ranks():
    """``ranks(n)`` is a warm Cluster of n ranks, the same one in every test."""
    preload(*RANK_MODULES, "minidist.cli.main")  # a rank imports the file of a test, and that imports pytest
    with WarmClusters(PatientCluster) as clusters:
        yield clusters


@pytest.fixture
def scratch():
    """A folder for temporary files with a short path: sockets may have no long one."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


@pytest.fixture
def readable_figures(monkeypatch):
    """Every figure that the test makes has texts of at least 8 points, as wide as a notebook shows it."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    made, make = [], Figure.__init__

    def make_and_remember(figure, *arguments, **settings):
        make(figure, *arguments, **settings)
        made.append(figure)

    monkeypatch.setattr(Figure, "__init__", make_and_remember)
    yield
    for figure in made:
        figure.draw_without_rendering()  # makes the labels of ticks
        shrunk = min(1, INCHES / figure.get_figwidth())
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        sizes = [(text.get_text(), shrunk * text.get_fontsize()) for text in texts]
        assert [(text, points) for text, points in sizes if points < POINTS] == []
