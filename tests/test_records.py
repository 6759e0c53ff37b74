"""No verdict is taken from an earlier run if anything has changed that the test depends on."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import records
from choosing import long
from records import ROOT, Records, drawn, hash_of, slice_of

LIMIT = 300
FILES = [
    "nn/test_optim", "train/test_elastic", "exercises/test_ch12_failures", "figures/test_figures_of_runs", "test_cli",
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_known():
    """Hashes are kept for a process; here files change."""
    records.hash_of.cache_clear()
    yield
    records.hash_of.cache_clear()


@pytest.mark.parametrize("name", [FILES[0], *map(long, FILES[1:])])
def test_all_that_a_test_imports_is_in_its_slice(name):
    """Read from the source, it is what Python imports, and more."""
    file = f"tests/{name}.py"
    script = f"""
        import runpy, sys
        sys.path[:0] = {[str(place) for place in (*records.IMPORTED_FROM, (ROOT / file).parent)]!r}
        runpy.run_path({str(ROOT / file)!r})
        print(*(module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)), sep="\\n")
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in script.splitlines())], cwd=ROOT,
        capture_output=True, text=True, timeout=LIMIT, check=True,
    )  # fmt: skip
    imported = {path for path in done.stdout.splitlines() if path.startswith(f"{ROOT}/") and path.endswith(".py")}
    found = {str(path) for path in slice_of([ROOT / file])}
    assert len(imported) > 2 and imported <= found, sorted(imported - found)


NOTEBOOK = '{"cells": [{"cell_type": "code", "source": ["%time\\n", "import figures.ch05.shards"]}]}'
OF_Z, OF_ZERO = "tests/x/y/test_z.py", "tests/test_chapters.py::test_it_runs[05_zero]"
TREE = {  # file -> its text, and the groups of tests that depend on it
    "minidist/__init__.py": ("", [OF_Z]),
    "minidist/comm/runtime/clusters.py": ("", [OF_Z, OF_ZERO]),  # the ranks
    "minidist/a.py": ("def f():\n    import minidist.b", [OF_Z]),
    "minidist/b.py": ("START = 'minidist.c.d'", [OF_Z]),  # imported in a function
    "minidist/c/__init__.py": ("", [OF_Z]),
    "minidist/c/d.py": ("", [OF_Z]),  # named in a string
    "minidist/c/table.toml": ("", [OF_Z]),  # data beside it
    "minidist/e.py": ("", []),
    "tests/conftest.py": ("", [OF_Z, OF_ZERO]),
    "tests/verdicts.json": ("", []),
    "tests/x/conftest.py": ("import minidist", [OF_Z]),
    "tests/x/y/conftest.py": ("", [OF_Z]),
    "tests/other/conftest.py": ("", []),
    "tests/x/y/test_z.py": ("import helper\nfrom minidist import a", [OF_Z]),
    "tests/x/y/helper.py": ("", [OF_Z]),
    "tests/x/y/expected.txt": ("", [OF_Z]),
    "tests/test_chapters.py": ("", [OF_ZERO]),
    "chapters/05_zero.ipynb": (NOTEBOOK, [OF_ZERO]),
    "chapters/06_tensor.ipynb": (NOTEBOOK, []),
    "chapters/figures/ch05/shards.py": ("", [OF_ZERO]),
    "chapters/figures/ch06/calls.py": ("", []),
    "chapters/figures/ulps.py": ("", [OF_ZERO]),
}


def test_a_verdict_depends_on_what_a_test_imports_and_on_its_fixtures_and_data(monkeypatch, tmp_path):
    for name in ("ROOT", "TESTS", "RANKS"):
        monkeypatch.setattr(records, name, tmp_path / getattr(records, name).relative_to(ROOT))
    moved = tuple(tmp_path / place.relative_to(ROOT) for place in records.IMPORTED_FROM)
    monkeypatch.setattr(records, "IMPORTED_FROM", moved)
    monkeypatch.setattr(records, "content_of", Path.read_text)
    for name, (text, _) in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for group in (OF_Z, OF_ZERO):
        hashes = []
        for name, (text, _) in [*TREE.items(), *list(TREE.items())[:1]]:
            records.hash_of.cache_clear()
            hashes.append(hash_of(group))
            (tmp_path / name).write_text(text + " ")
        changed = [name for name, (one, other) in zip(TREE, pairwise(hashes), strict=True) if one != other]
        assert changed == [name for name, (_, groups) in TREE.items() if group in groups]
        for name, (text, _) in TREE.items():
            (tmp_path / name).write_text(text)
    assert hash_of(OF_Z) != hash_of(OF_ZERO)


def test_a_commit_draws_a_tenth_and_another_one_another():
    groups = [f"tests/{number}.py" for number in range(2000)]
    one, other = ({group for group in groups if drawn(group, commit)} for commit in ("a", "b"))
    assert 150 < len(one) < 260 and 150 < len(other) < 260 and len(one & other) < 60


def test_what_passed_is_written_and_not_run_again(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "FILE", tmp_path / "verdicts.json")
    monkeypatch.setattr(records, "drawn", lambda group, commit: False)
    optim, gpt, bits = (f"tests/nn/test_{name}.py" for name in ("optim", "gpt", "bits"))
    names = {f"{optim}::a": "passed", f"{optim}::b": "passed", f"{gpt}::c": "failed", f"{bits}::d": "skipped"}
    items = [SimpleNamespace(nodeid=name) for name in names]
    first = Records(fresh=False)
    assert all(map(first.has_to_run, items))
    for name, outcome in names.items():
        for each in ("passed", outcome):  # its setup, and itself
            first.pytest_runtest_logreport(SimpleNamespace(nodeid=name, outcome=each))
    first.write()
    assert json.loads(records.FILE.read_text()) == {optim: hash_of(optim)}
    assert list(map(Records(fresh=False).has_to_run, items)) == [False, False, True, True]
    fresh = Records(fresh=True)
    assert all(map(fresh.has_to_run, items)) and fresh.contradicted() == []
    fresh.pytest_runtest_logreport(SimpleNamespace(nodeid=f"{optim}::b", outcome="failed"))
    assert fresh.contradicted() == [optim]  # flaky, or its slice lacks a file
