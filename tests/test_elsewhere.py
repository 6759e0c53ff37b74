"""macOS and Windows, as far as Linux can imitate them: elsewhere/sitecustomize.py has what is taken away.

Their own memory, processes and file systems are what an imitation cannot show: .github/workflows runs there.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
from scripts import python

HERE = Path(__file__).parent
WORKFLOW = ".github/workflows/tests.yml"
TEXT = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252:strict"}
ELSEWHERE = TEXT | {"PYTHONPATH": str(HERE / "elsewhere")}
SIZES = "--layers 2 --width 16 --heads 2 --context 8 --global-batch 6"
FAILING = """
import minidist as md
import numpy as np
def fail(world):
    if world.rank == 1:
        raise ValueError("this rank fails")
    md.recv(np.empty(1), (world.rank + 1) % 3, world)
if __name__ == "__main__":
    try:
        md.launch(fail, 3)
    except md.RankFailed as error:
        print(error)
"""


def run(folder, *arguments: str, system: dict = ELSEWHERE) -> str:
    """Return what Python prints for these arguments, within another system's limits."""
    done = python(*arguments, cwd=folder, env=os.environ | system, encoding="cp1252" if system else "utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def minidist(folder, command: str, **more) -> str:
    return run(folder, "-m", "minidist.cli", *command.split(), **more)


def fingerprint(shown: str) -> str:
    return re.search(r"[0-9a-f]{64}", shown)[0]


def test_it_is_another_system(tmp_path):
    script = "import os, sys, signal; print(sys.platform, hasattr(os, 'fork'), hasattr(signal, 'SIGKILL'))"
    assert run(tmp_path, "-c", script + "; open('text', 'w').write('a\\n')").split() == ["elsewhere", "False", "False"]
    assert (tmp_path / "text").read_bytes() == b"a\r\n"


def test_layouts_agree_there_and_with_here(tmp_path):
    command = f"verify dp=3 tp=2,pp=2 --steps 2 {SIZES}"
    assert fingerprint(minidist(tmp_path, command)) == fingerprint(minidist(tmp_path, command, system={}))


@pytest.mark.long
def test_a_checkpoint_goes_from_there_to_here(tmp_path):
    minidist(tmp_path, f"train --dp 3 --steps 2 --save run {SIZES}")
    moved = minidist(tmp_path, f"train --tp 2 --steps 3 --resume run {SIZES}", system={})
    assert fingerprint(moved) == fingerprint(minidist(tmp_path, f"train --steps 3 {SIZES}", system={}))


@pytest.mark.long
def test_prepared_documents_are_the_same_bytes(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "lines.txt").write_bytes("some lines\nof text, größer\n".encode() * 9)
    minidist(tmp_path, "data texts --out there")
    minidist(tmp_path, "data texts --out here", system={})
    there, here = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("there", "here"))
    assert there == here
    minidist(tmp_path, f"train --dp 2 --steps 2 --text there --packing best-fit {SIZES}")


@pytest.mark.long
@pytest.mark.parametrize("name", ["ring", "failure"])
def test_a_demonstration_is_shown_and_written(tmp_path, name):
    assert "also: --scene" in minidist(tmp_path, f"demo {name}")
    minidist(tmp_path, f"demo {name} --html page.html")
    assert "<html" in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.long
def test_an_answer_is_graded(tmp_path):
    shutil.copytree(HERE.parent / "solutions", tmp_path / "answers")
    assert "1 of 151 tasks" in minidist(HERE.parent, f"check 3.1 --impl {tmp_path / 'answers'}")


def test_a_failing_rank_ends_the_others(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING, "utf-8")
    shown = run(tmp_path, "failing.py")
    assert "rank 1 of 3 failed: ValueError: this rank fails" in shown and "ranks 0, 2 were ended" in shown


def test_every_system_can_hold_the_files():
    """No two names of a folder differ in their case alone, none has a character or is a name that Windows reserves."""
    reserved = re.compile(r'[<>:"|?*\\]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)
    tracked = [path for top in HERE.parent.iterdir() if not top.name.startswith(".") for path in (top, *top.rglob("*"))]
    names = [path.relative_to(HERE.parent).as_posix() for path in tracked if "__pycache__" not in path.parts]
    assert [name for name in names if reserved.search(name.rpartition("/")[2])] == []
    assert len({name.casefold() for name in names}) == len(names) > 900


def test_workflows_install_the_oldest_numpy_that_there_may_be():
    project, workflow = ((HERE.parent / file).read_text("utf-8") for file in ("pyproject.toml", WORKFLOW))
    assert re.findall(r"numpy==([\d.]+)", workflow) == re.findall(r'"numpy>=([\d.]+)"', project) != []
