"""What does not change is not run again: verdicts.json has what passed, and a hash of all that it depends on.

``pytest --all`` runs the long tests whose hash is another, and a tenth of the rest, drawn by the hash of the commit.
What passed is written to verdicts.json, for the next commit. ``pytest --all --fresh`` runs everything. A test that
fails although verdicts.json has its hash is flaky, or depends on something that its *slice* lacks: the summary says so.

The slice of a test is its file, what that imports, and what those import, read from the source: also imports inside
functions, and names of modules in strings, with which commands and ranks import. Data files belong to the modules
beside them, and the fixtures of its folders to the test. What a test reads without an import is in READS.
"""

import ast
import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
FILE = Path(__file__).with_name("verdicts.json")
IMPORTED_FROM = (ROOT, ROOT / "tests", ROOT / "chapters")  # in which folders a module is looked for
RANKS = ROOT / "minidist/comm/runtime/clusters.py"  # of all tests; what else conftest.py imports, the tests import too
READS = {  # the beginning of a test's id -> what it reads, beside what it imports
    "tests/exercises/": ("solutions/*.py", "minidist/course/authoring/*.py", "minidist/course/sandbox/*.py"),
    "tests/course/": ("solutions/**/*.py", "exercises/*.py", "tests/exercises/**/*"),
    "tests/challenges/": ("solutions/challenges/*.py", "tests/challenges/better/*.py"),
    "tests/gpu/": ("tests/gpu/**/*.py", "tests/verify/*.json"),
    "tests/verify/": ("tests/verify/*.json",),
    "tests/train/test_tokens_of_runs.py": ("tests/verify/*.json",),
    "tests/show/test_site.py": ("docs/*.*", "docs/site/*", "chapters/*.ipynb"),
    "tests/test_benchmarks.py": ("benchmarks/*.py", "minidist/**/*.py"),
    "tests/test_readme.py": ("README.md", "docs/*.md", "minidist/**/*.py"),
    "tests/test_chapters.py": ("chapters/figures/*.py", "chapters/figures/ch{0}*/*", "chapters/{0}*.ipynb"),
}
SINGLE = ("tests/test_chapters.py", "tests/course/test_mutants.py")  # of these each test has a hash of its own
SHARE = 26  # of 256: a tenth
MODULE = re.compile(r"minidist(\.\w+)+")


@cache
def text_of(path: Path) -> str:
    """The Python in a file, a notebook's cells included."""
    if path.suffix not in (".py", ".ipynb"):
        return ""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return text
    cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n".join(re.sub(r"^\s*[%!].*", "", "".join(cell), flags=re.M) for cell in cells)


@cache
def modules_in(path: Path) -> frozenset[str]:
    """The dotted names that a file imports, or has in a string."""
    found = set()
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {match[0] for match in MODULE.finditer(node.value)}
    return frozenset(found)


def files_of(module: str, importer: Path) -> Iterator[Path]:
    """The files of a module of ours: itself, the packages above it, and the data beside it."""
    parts = module.split(".")
    for place in (*IMPORTED_FROM, importer.parent):
        for count in range(1, len(parts) + 1):
            path = place.joinpath(*parts[:count])
            for file in (path / "__init__.py", path / "__main__.py", path.with_suffix(".py")):
                if file.is_file():
                    yield file
                    yield from data_beside(file)


def data_beside(file: Path) -> list[Path]:
    """The data files in a module's folder, notebooks aside; of tests/ itself none, since the verdicts are there."""
    if file.parent == TESTS:
        return []
    return [data for data in file.parent.glob("*.*") if data.is_file() and data.suffix not in (".py", ".pyc", ".ipynb")]


@cache
def directly(path: Path) -> frozenset[Path]:
    return frozenset(file for module in modules_in(path) for file in files_of(module, path)) - {path}


def slice_of(paths: Iterable[Path]) -> set[Path]:
    """All files that these depend on, and they themselves."""
    found, todo = set(), list(paths)
    while todo:
        if (path := todo.pop()) not in found:
            found.add(path)
            todo += directly(path)
    return found


@cache
def content_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def group_of(nodeid: str) -> str:
    """The tests that share a verdict: those of a file, but in some files each by itself."""
    return nodeid if nodeid.startswith(SINGLE) else nodeid.partition("::")[0]


def depends_on(group: str) -> set[Path]:
    """The files that a group of tests depends on: its slice, with those of the conftest.py below tests/, and data."""
    number = re.search(r"\[(\w+?)(?:_|])", group)  # of a chapter
    globs = [glob for begin, found in READS.items() if group.startswith(begin) for glob in found]
    reads = [path for glob in globs for path in ROOT.glob(glob.format(number[1] if number else "")) if path.is_file()]
    test = ROOT / group.partition("::")[0]
    fixtures = [folder / "conftest.py" for folder in test.parents if TESTS in folder.parents]
    found = slice_of([RANKS, test, *filter(Path.is_file, fixtures), *reads])
    return {TESTS / "conftest.py"} | found | set(data_beside(test))


@cache
def hash_of(group: str) -> str:
    """The hash of all that a group of tests depends on."""
    versions = [".".join(platform.python_version_tuple()[:2]), version("numpy")]
    content = [f"{path.relative_to(ROOT)} {content_of(path)}" for path in sorted(depends_on(group))]
    return hashlib.sha256("\n".join([*versions, group, *content]).encode()).hexdigest()[:16]


def drawn(group: str, commit: str) -> bool:
    """Whether a commit runs a group although nothing has changed: one in ten."""
    return hashlib.sha256(f"{commit} {group}".encode()).digest()[0] < SHARE


def recorded() -> dict[str, str]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


@cache
def commit() -> str:
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


class Records:
    """Says which long tests have to run, and writes down those that have passed. A plugin of pytest."""

    def __init__(self, fresh: bool) -> None:
        self.fresh, self.known = fresh, recorded()
        self.long: dict[str, list[str]] = {}  # group -> its long tests
        self.outcomes: dict[str, str] = {}

    def has_to_run(self, item: pytest.Item) -> bool:
        group = group_of(item.nodeid)
        self.long.setdefault(group, []).append(item.nodeid)
        return self.fresh or self.known.get(group) != hash_of(group) or drawn(group, commit())

    def pytest_runtest_logreport(self, report) -> None:
        before = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = report.outcome if report.outcome != "passed" else before

    def contradicted(self) -> list[str]:
        """The groups that failed now and have passed with the same hash."""
        failed = {group_of(nodeid) for nodeid, outcome in self.outcomes.items() if outcome == "failed"}
        return sorted(group for group in failed & self.known.keys() if self.known[group] == hash_of(group))

    def write(self) -> None:
        """Write down the groups all of whose long tests have passed now. A test that was skipped has not."""
        passed = {nodeid for nodeid, outcome in self.outcomes.items() if outcome == "passed"}
        now = {group: hash_of(group) for group, tests in self.long.items() if passed.issuperset(tests)}
        known = {group: key for group, key in self.known.items() if (ROOT / group.partition("::")[0]).exists()}
        if now.items() - known.items() or known != self.known:
            FILE.write_text(json.dumps(dict(sorted((known | now).items())), indent=1) + "\n")
