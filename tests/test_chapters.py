"""Every chapter runs from its first cell to its last, is committed with its outputs, and sends to all of its tasks."""

import ast
import json
import os
import pkgutil
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minidist.course.answers import ROOT
from minidist.course.grading.run_graders import run_graders

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
SHORT = "02_ranks"  # the chapter that ``pytest`` alone runs
CELL_SECONDS = 600  # however busy the machine is
BYTES = 750_000  # of a notebook with its pictures and players, of which dials make the most


def jupyter(name: str):
    """One of Jupyter's modules. They take seconds to import, so that no process does it that only collects tests."""
    return pytest.importorskip(name, reason="Jupyter is not installed")


def read(path: Path):
    return jupyter("nbformat").read(path, as_version=4)


def text_of(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells)


@pytest.fixture(scope="module")
def tasks():
    return [one.task for one in run_graders("solutions", [], "--collect-only")]


def test_chapters_and_exercises_belong_together():
    assert [path.name[:2] for path in CHAPTERS] == [
        path.name[2:4] for path in sorted((ROOT / "solutions").glob("ch*.py"))
    ]


@pytest.fixture(scope="module")
def running(request, tmp_path_factory):
    """path -> the future of the notebook, run. Two run at a time: one process computes in much of what they do."""
    nbclient = jupyter("nbclient")
    # a notebook runs in a folder of its own, and finds minidist and the figures here
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "chapters")))

    def run(path: Path):
        notebook, resources = read(path), {"metadata": {"path": tmp_path_factory.mktemp(path.stem)}}
        return nbclient.NotebookClient(notebook, timeout=CELL_SECONDS, resources=resources).execute()

    chosen = [item.callspec.params["path"] for item in request.session.items if item.function is test_it_runs]
    with ThreadPoolExecutor(2) as pool:
        yield {path: pool.submit(run, path) for path in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem.startswith(SHORT) else pytest.mark.long) for path in CHAPTERS],
    ids=lambda path: path.stem,
)
def test_it_runs(path, running):
    """An error in a cell, also a failed assertion about a number, is raised here."""
    notebook = running[path].result()
    for before, after in zip(code_cells(read(path)), code_cells(notebook), strict=True):
        assert kinds(before) == kinds(after), f"committed with other outputs than it has now:\n{before.source}"


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell) -> list[tuple]:
    """What comes out of a cell, whatever its numbers: pictures, tables, and printed text as one piece."""
    found = [
        ("printed", output.name) if output.output_type == "stream" else (output.output_type, *sorted(output.data))
        for output in cell.outputs
    ]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_it_imports_and_patches_exists(path):
    """Most chapters run in the long tests only: a name that has moved is found here."""
    source = "\n".join(re.sub(r"^[%!].*", "", cell.source, flags=re.M) for cell in code_cells(read(path)))
    names = re.findall(r'patch\("([\w.]+)"', source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "minidist":
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    assert names
    for name in names:
        pkgutil.resolve_name(name)  # raises AttributeError or ImportError


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_it_is_committed_with_outputs(path):
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from the top, in order"
    printed = [output for cell in cells for output in cell.outputs]
    assert not [output for output in printed if output.output_type == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in printed) >= 5
    assert path.stat().st_size < BYTES
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert raw["metadata"]["kernelspec"]["name"] == "python3"
    assert not re.search(r"/(home|root|tmp|Users|work)/", path.read_text(encoding="utf-8")), "a path of this machine"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_it_sends_to_every_task(path, tasks):
    mine = [task.number for task in tasks if task.chapter[2:4] == path.name[:2]]
    text = text_of(path)
    assert mine and [number for number in mine if not re.search(rf"[Tt]ask.*\b{re.escape(number)}\b", text)] == []
    for named in re.findall(r"minidist (?:check|reset|check --hint) (\d+\.\d+)", text):
        assert named in [task.number for task in tasks], named
