"""No verdict is taken from an earlier run if anything has changed that the test depends on."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import records
from choosing import long
from records import ROOT, Records, depends_on, drawn, hash_of, slice_of

LIMIT = 300
FILES = [
    "nn/test_optim", "train/test_elastic", "comm/test_launch", "plan/test_hardware", "exercises/test_ch12_failures",
    "figures/test_figures_of_runs", "test_cli",
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


@pytest.mark.parametrize("group", ["tests/nn/test_optim.py", long("tests/test_chapters.py::test_it_runs[05_zero]")])
def test_whatever_changes_in_a_slice_invalidates(monkeypatch, group):
    before, path = hash_of(group), ROOT / group.partition("::")[0]
    content_of = records.content_of
    files = slice_of([records.RANKS, path])
    files |= set((ROOT / "chapters").glob("05*")) if "05" in group else set()
    assert len(files) > 50
    for changed in files:
        records.hash_of.cache_clear()
        monkeypatch.setattr(records, "content_of", lambda p, changed=changed: "" if p == changed else content_of(p))
        assert hash_of(group) != before, changed
    records.hash_of.cache_clear()
    monkeypatch.setattr(records, "content_of", content_of)
    assert hash_of(group) == before != hash_of(group.replace("optim", "gpt").replace("05_zero", "06_tensor"))


def test_fixtures_and_data_are_what_a_test_depends_on():
    for test, file in (
        ("show/demos/test_parallelism.py", "show/demos/conftest.py"),
        ("show/demos/test_parallelism.py", "show/conftest.py"),
        ("gpu/test_on_the_standin.py", "gpu/standin/cupy/signatures.json"),
        ("comm/test_job_commands.py", "comm/one_core.xml"),
        ("plan/test_refusals.py", "plan/refusals.txt"),
    ):
        assert ROOT / "tests" / file in depends_on(f"tests/{test}"), file
    assert records.FILE not in depends_on("tests/test_cli.py")


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
