"""Every chapter runs from its first cell to its last, is committed with its outputs, and sends to all of its tasks.

So does every appendix, ``chapters/A1_name.ipynb``, but that it has no tasks.
"""

import ast
import json
import os
import pkgutil
import re
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

import pytest
from readable import POINTS

from minidist.course.answers import ROOT
from minidist.course.grading.run_graders import run_graders

CHAPTERS = sorted((ROOT / "chapters").glob("[0-9]*.ipynb"))
APPENDICES = sorted((ROOT / "chapters").glob("A*.ipynb"))
NOTEBOOKS = CHAPTERS + APPENDICES
NEEDS = {"A1": "mpi4py", "A2": "torch"}  # modules that minidist itself does without
SHORT = "02_ranks"  # the chapter that ``pytest`` alone runs
CELL_SECONDS = 600  # however busy the machine is
QUESTION = re.compile(r"\*\*Before you (run|look)\b")  # "before you step" is about a player: that one waits itself
FOLD = "<details><summary><b>The answer</b></summary>"
TABLE = 104  # characters of the words that cannot be broken: about 880 pixels, what JupyterLab has in a window of 1,000
PLOT_LINES = 25
BYTES = 600_000  # of a notebook with its pictures and players, of which dials make the most


def jupyter(name: str):
    """One of Jupyter's modules. They take seconds to import, so that no process does it that only collects tests."""
    return pytest.importorskip(name, reason="Jupyter is not installed")


def read(path: Path):
    return jupyter("nbformat").read(path, as_version=4)


def skip_if_it_cannot_run(path: Path) -> None:
    module = NEEDS.get(path.name[:2])
    if module and find_spec(module) is None:
        pytest.skip(f"needs {module}")


def text_of(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells)


@pytest.fixture(scope="module")
def tasks():
    return [one.task for one in run_graders("solutions", [], "--collect-only")]


def test_chapters_and_exercises_belong_together():
    assert [path.name[:2] for path in CHAPTERS] == [
        path.name[2:4] for path in sorted((ROOT / "solutions").glob("ch*.py"))
    ]


def test_every_notebook_is_a_chapter_or_an_appendix():
    assert set((ROOT / "chapters").glob("*.ipynb")) == set(NOTEBOOKS)
    assert all(path.name[:2] in NEEDS for path in APPENDICES)


@pytest.fixture(scope="module")
def running(request, tmp_path_factory):
    """path -> the future of the notebook, run. Two run at a time: one process computes in much of what they do."""
    nbclient = jupyter("nbclient")
    # A notebook runs in a folder of its own, and finds minidist and the figures here. Its environment is copied once,
    # here: pytest writes PYTEST_CURRENT_TEST into ``os.environ`` while a thread would be copying it.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "chapters")))}

    def run(path: Path):
        notebook, resources = read(path), {"metadata": {"path": tmp_path_factory.mktemp(path.stem)}}
        return nbclient.NotebookClient(notebook, timeout=CELL_SECONDS, resources=resources).execute(env=environment)

    paths = [item.callspec.params["path"] for item in request.session.items if item.function is test_it_runs]
    chosen = [path for path in paths if find_spec(NEEDS.get(path.name[:2], "minidist"))]
    with ThreadPoolExecutor(2) as pool:
        yield {path: pool.submit(run, path) for path in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem.startswith(SHORT) else pytest.mark.long) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_it_runs(path, running):
    """An error in a cell, also a failed assertion about a number, is raised here."""
    skip_if_it_cannot_run(path)
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_imports_and_patches_exists(path):
    """Most chapters run in the long tests only: a name that has moved is found here."""
    skip_if_it_cannot_run(path)
    source = "\n".join(re.sub(r"^[%!].*", "", cell.source, flags=re.M) for cell in code_cells(read(path)))
    names = re.findall(r'patch\("([\w.]+)"', source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "minidist":
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    assert names
    for name in names:
        pkgutil.resolve_name(name)  # raises AttributeError or ImportError


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_with_outputs(path):
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from the top, in order"
    printed = [output for cell in cells for output in cell.outputs]
    assert not [output for output in printed if output.output_type == "error" or output.get("name") == "stderr"]
    assert path in APPENDICES or sum("image/png" in output.get("data", {}) for output in printed) >= 5
    assert path.stat().st_size < BYTES
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert raw["metadata"]["kernelspec"]["name"] == "python3"
    assert not re.search(r"/(home|root|tmp|Users|work)/", path.read_text(encoding="utf-8")), "a path of this machine"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_exactly_the_outputs_below_a_question_are_hidden(path):
    """The learner guesses first: the cells between a question, at the end of a text, and the next text."""
    asked = False
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            asked = bool(QUESTION.search(cell.source.split("\n\n")[-1]))
        else:
            hidden = asked and bool(cell.outputs)
            assert cell.metadata.get("jupyter", {}).get("outputs_hidden", False) == hidden, cell.source
            assert cell.metadata.get("collapsed", False) == hidden, cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_answers_are_folded_in_a_form_that_every_reader_of_notebooks_understands(path):
    """Markdown inside HTML needs an empty line around it."""
    folded = 0
    for cell in read(path).cells:
        rest = re.sub(rf"(?:^|\n\n){FOLD}\n\n(?:(?!<details).)+?\n\n</details>(?=\n\n|$)", "", cell.source, flags=re.S)
        assert "<details" not in rest and "</details" not in rest, cell.source
        folded += FOLD in cell.source
    assert path in APPENDICES or folded >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_carry_no_leftovers(path):
    """No times of a run, no state of an editor."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert set(cell["metadata"]) <= {"collapsed", "jupyter", "tags"}, cell["metadata"]
        assert set(cell["metadata"].get("jupyter", {})) <= {"outputs_hidden", "source_hidden"}, cell["metadata"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_that_plot_are_short(path):
    """A longer plot lives in chapters/figures/, or what it computes has a cell of its own."""
    plots = [cell.source for cell in code_cells(read(path)) if re.search(r"^figure.*plt\.", cell.source, re.M)]
    assert [plot for plot in plots if plot.count("\n") + 1 > PLOT_LINES] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_label_is_small(path):
    """Of what cells draw themselves; what figures draw is measured in their tests."""
    sizes = re.findall(
        r"(?:fontsize|labelsize|font\.size)\W+([\d.]+)", "\n".join(c.source for c in code_cells(read(path)))
    )
    assert all(float(size) >= POINTS for size in sizes)


def tables(notebook):
    """The rows of each Markdown table, written or shown by a cell; a row is a list of cells."""
    for cell in notebook.cells:
        shown = [output.data.get("text/markdown", "") for output in cell.get("outputs", []) if "data" in output]
        for text in [cell.source] * (cell.cell_type == "markdown") + shown:
            for table in re.findall(r"(?:^\|.*\|[ ]*$\n?)+", text, re.M):
                yield [
                    line.strip()[1:-1].split("|") for line in table.splitlines() if not re.fullmatch(r"[-:| ]+", line)
                ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_table_is_cut_at_the_right(path):
    """A column is as wide as its longest word; two characters separate it from the next."""
    for rows in tables(read(path)):
        columns = zip_longest(*rows, fillvalue="")
        widest = [max(map(len, re.split(r"[\s–-]+", " ".join(column).replace("`", "")))) for column in columns]
        assert sum(widest) + 2 * len(widest) <= TABLE, rows[0]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_it_sends_to_every_task(path, tasks):
    """Once each, in the order of their numbers: of the notebook, of the file, of its graders and its mutants."""
    mine = [task.number for task in tasks if task.chapter[2:4] == path.name[:2]]
    text = text_of(path)
    pointers = re.findall(r"\*\*Tasks? ([^*]+)\*\*", text)
    assert mine and [number for pointer in pointers for number in re.findall(r"\d+\.\d+", pointer)] == mine
    for named in re.findall(r"minidist (?:check|reset|check --hint) (\d+\.\d+)", text):
        assert named in [task.number for task in tasks], named


@pytest.mark.parametrize("kind", ("solutions/{}.py", "tests/exercises/test_{}.py", "tests/exercises/mutants/{}.py"))
def test_tasks_stand_in_order(kind, tasks):
    """What is a part of a task is marked in the solutions, in its grader, and in every mutant."""
    for chapter in {task.chapter: None for task in tasks}:
        source = (ROOT / kind.format(chapter)).read_text(encoding="utf-8")
        found = re.findall(r"# >>> (\d+\.\d+)|pytest\.mark\.task\(\s*\"(\d+\.\d+)\"|Mutant\(\s*\"(\d+\.\d+)\"", source)
        numbers = ["".join(groups) for groups in found]
        assert list(dict.fromkeys(numbers)) == [task.number for task in tasks if task.chapter == chapter]
        assert numbers == sorted(numbers, key=lambda number: int(number.split(".")[1])), chapter
