"""Every chapter runs from its first cell to its last, is committed with its outputs, and sends to all of its tasks.

So does every appendix, ``chapters/A1_name.ipynb``, but that it has no tasks.
"""

import ast
import os
import pkgutil
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from minidist.course.answers import ROOT, chapter_names
from minidist.course.tasks import tasks_of

CHAPTERS = sorted((ROOT / "chapters").glob("[0-9]*.ipynb"))
APPENDICES = sorted((ROOT / "chapters").glob("A*.ipynb"))
NOTEBOOKS = CHAPTERS + APPENDICES
NEEDS = {"A1": "mpi4py", "A2": "torch"}  # modules that minidist itself does without
CELL_SECONDS = 600  # however busy the machine is
QUESTION = re.compile(r"\*\*Before you (run|look)\b")  # "before you step" is about a player: that one waits itself
FOLD = "<details><summary><b>The answer</b></summary>"
FOLDED = re.compile(rf"(?:^|\n\n){FOLD}\n\n(?:(?!<details).)+?\n\n</details>(?=\n\n|$)", re.S)
MARKED = re.compile(r"# >>> (\d+\.\d+)\n|pytest\.mark\.task\(\s*\"(\d+\.\d+)\"|^\[\"(\d+\.\d+)\"", re.M)  # of a task
TAGS = {"collapsed", "jupyter", "tags"}  # what the metadata of a cell may have
BYTES = 600_000  # of a notebook with its pictures and players, of which dials make the most


def jupyter(name: str):
    """One of Jupyter's modules. They take seconds to import, so that no process does it that only collects tests."""
    return pytest.importorskip(name, reason="Jupyter is not installed")


def read(path: Path):
    return jupyter("nbformat").read(path, as_version=4)


def can_run(path: Path) -> bool:
    return find_spec(NEEDS.get(path.name[:2], "minidist")) is not None


def test_every_notebook_is_a_chapter_with_exercises_or_an_appendix():
    solutions = sorted((ROOT / "solutions").glob("ch*.py"))
    assert [path.name[:2] for path in CHAPTERS] == [path.name[2:4] for path in solutions]
    assert set((ROOT / "chapters").glob("*.ipynb")) == set(NOTEBOOKS)
    assert [path.name[:2] for path in APPENDICES] == list(NEEDS)


@pytest.fixture(scope="module")
def running(request, tmp_path_factory):
    """path -> the future of the notebook, run. Two run at a time: one process computes in much of what they do."""
    nbclient = jupyter("nbclient")
    # A notebook runs in a folder of its own, and finds minidist and the figures here. Its environment is copied once,
    # here: pytest writes PYTEST_CURRENT_TEST into ``os.environ`` while a thread would be copying it.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "chapters")))}

    def run(path: Path, folder: Path):
        notebook, resources = read(path), {"metadata": {"path": folder}}
        quiet = ["--log-level=ERROR"]  # ipykernel 7.4 warns each time that others on this machine could listen
        client = nbclient.NotebookClient(notebook, timeout=CELL_SECONDS, resources=resources, extra_arguments=quiet)
        return client.execute(env=environment)

    paths = [item.callspec.params["path"] for item in request.session.items if item.function is test_it_runs]
    with ThreadPoolExecutor(2) as pool:
        # Folders are made here: at the first call pytest makes the one above them, which two threads would do at once.
        yield {path: pool.submit(run, path, tmp_path_factory.mktemp(path.stem)) for path in paths if can_run(path)}
        pool.shutdown(cancel_futures=True)


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, running):
    """An error in a cell, also a failed assertion about a number, is raised here."""
    if not can_run(path):
        pytest.skip(f"needs {NEEDS[path.name[:2]]}")
    notebook = running[path].result()
    for before, after in zip(code_cells(read(path)), code_cells(notebook), strict=True):
        assert kinds(before) == kinds(after), f"committed with other outputs than it has now:\n{before.source}"


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell) -> list[tuple]:
    """Return the kinds of a cell's outputs, whatever their numbers: pictures, tables, and printed text as one piece."""
    found = [
        ("printed", output.name) if output.output_type == "stream" else (output.output_type, *sorted(output.data))
        for output in cell.outputs
    ]
    return list(dict.fromkeys(found))


def test_what_chapters_import_and_patch_exists():
    """Most chapters run in the long tests only: a name that has moved is found here."""
    for path in filter(can_run, NOTEBOOKS):
        source = "\n".join(re.sub(r"^[%!].*", "", cell.source, flags=re.M) for cell in code_cells(read(path)))
        names = re.findall(r'patch\("([\w.]+)"', source)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "minidist":
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        assert names, path
        for name in names:
            pkgutil.resolve_name(name)  # raises AttributeError or ImportError


def test_a_cell_runs_again_after_the_last_one_which_closes_the_clusters(monkeypatch):
    jupyter("matplotlib_inline")
    monkeypatch.syspath_prepend(ROOT / "chapters")
    clusters = import_module("lab").clusters
    for _ in range(2):
        first = clusters[1]
        assert first.run(lambda world: world.size) == [1] and clusters[1] is first
        first.close()


def faults_of_form(path: Path) -> Iterator[str]:
    """Return what is wrong with the form of a notebook, in words."""
    notebook, text = read(path), path.read_text(encoding="utf-8")
    cells = code_cells(notebook)
    printed = [output for cell in cells for output in cell.outputs]
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        yield "it was not run from the top, in order"
    if [output for output in printed if output.output_type == "error" or output.get("name") == "stderr"]:
        yield "it was committed with an error"
    if path.stat().st_size >= BYTES:
        yield f"it has {path.stat().st_size:,} bytes"
    if notebook.metadata.kernelspec.name != "python3" or re.search(r"/(home|root|tmp|Users|work)/", text):
        yield "it names a kernel or a path of one machine"
    asked = False
    for cell in notebook.cells:
        jupyters = cell.metadata.get("jupyter", {})
        if not (set(cell.metadata) <= TAGS and set(jupyters) <= {"outputs_hidden", "source_hidden"}):
            yield f"times of a run, or the state of an editor: {cell.metadata}"
        if cell.cell_type == "markdown":
            asked = bool(QUESTION.search(cell.source.split("\n\n")[-1]))
            if "<details" in FOLDED.sub("", cell.source):  # Markdown inside HTML needs an empty line around it
                yield f"an answer is folded in another form: {cell.source}"
            continue
        hidden = asked and bool(cell.outputs)  # the learner guesses first
        if {jupyters.get("outputs_hidden", False), cell.metadata.get("collapsed", False)} != {hidden}:
            yield f"exactly the outputs below a question are hidden, but not here: {cell.source}"


def test_the_form_of_every_notebook():
    assert [f"{path.stem}: {fault}" for path in NOTEBOOKS for fault in faults_of_form(path)] == []


def test_chapters_send_to_every_task():
    """Once each, in the order of their numbers: of the notebook, of the file, of its graders and its mutants."""
    tasks = [task for name in chapter_names() for task in tasks_of(name)]  # (test_dependencies.py: as pytest collects)
    order = [task.number for task in tasks]
    for path in CHAPTERS:
        mine = [task.number for task in tasks if task.chapter[2:4] == path.name[:2]]
        text = "\n".join(cell.source for cell in read(path).cells)
        pointers = re.findall(r"\*\*Tasks? ([^*]+)\*\*", text)
        assert mine and [number for pointer in pointers for number in re.findall(r"\d+\.\d+", pointer)] == mine, path
        assert set(re.findall(r"minidist (?:check|reset|check --hint) (\d+\.\d+)", text)) <= set(order), path
    for kind in ("solutions/{}.py", "tests/exercises/test_{}.py", "tests/exercises/mutants/{}.toml"):
        for chapter in dict.fromkeys(task.chapter for task in tasks):
            source = (ROOT / kind.format(chapter)).read_text(encoding="utf-8")
            numbers = list(dict.fromkeys("".join(groups) for groups in MARKED.findall(source)))
            mine = [number for number in order if number.split(".")[0] == str(int(chapter[2:4]))]
            assert numbers == mine, (kind, chapter)
