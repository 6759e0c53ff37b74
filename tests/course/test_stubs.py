"""Exercises are their solutions without the bodies, and nobody's work is overwritten."""

import errno
import os
import re
import shutil
import subprocess
import sys

import pytest

from minidist.course import stubs
from minidist.course.answers import chapter_names, course_folder, read_answers, solutions
from minidist.course.stubs import (
    ANSWER,
    definitions_by_task,
    plan_reset,
    release,
    replace_definitions,
    stub_of,
    untouched,
    without_answers,
    write_reset,
    write_stubs,
)

SOLUTION = '''
LIMIT = 3

def first(x):
    """Add one."""
    # >>> 9.1
    y = x + 1
    return y
    # <<<

class Second:
    def begin(self):
        # >>> 9.2
        self.x = 0
        # <<<

    def go(self, step):
        if step:
            # >>> 9.2
            return step
            # === given to the learner
            # for i in range(3):
            #     step += i
            # <<<
        return 0
'''
STUB = (
    SOLUTION.replace(
        "    # >>> 9.1\n    y = x + 1\n    return y\n    # <<<", '    raise NotImplementedError("task 9.1")'
    )
    .replace("# >>> 9.2\n        self.x = 0\n        # <<<", 'raise NotImplementedError("task 9.2")')
    .replace("# >>> 9.2\n            return step\n            # === given to the learner\n            # for", "for")
    .replace("            #     step += i\n            # <<<", "                step += i")
)


def test_stubs_have_no_bodies():
    assert stub_of(SOLUTION) == STUB and definitions_by_task(SOLUTION) == {"9.1": ["first"], "9.2": ["Second"]}


def test_untouched():
    begun = STUB.replace('raise NotImplementedError("task 9.1")', "return x")
    commented = STUB.replace('"""Add one."""\n', '"""Add one."""\n    # where to begin?\n\n')
    below = [  # an answer below its stub: Python calls the last one
        f"{STUB}\n{answer}"
        for answer in (
            "def first(x):\n    return x + 1",
            "first = lambda x: x + 1",
            "if 1:\n    def first(x): return x + 1",
        )
    ]
    for mine, names, expected in (
        (STUB, ["first", "Second"], True),
        (commented, ["first"], True),
        (begun, ["first"], False),
        (begun, ["Second"], True),
        ("def first(:", ["first"], False),
        *((text, ["first"], False) for text in below),
    ):
        assert untouched(mine, STUB, names) == expected, mine


def test_replacing_definitions_changes_one_task_only():
    mine = STUB.replace("LIMIT = 3", "LIMIT = 4  # mine").replace("step += i", "step += 2 * i")
    begun = mine.replace('raise NotImplementedError("task 9.1")', "y = x + 1\n    return y")
    assert begun != mine and replace_definitions(begun, STUB, ["first"]) == mine
    assert 'NotImplementedError("task 9.1")' in replace_definitions("x = 1\n", STUB, ["first"])


def test_committed_exercises_are_those_of_the_solutions():
    """This fails, as it should, in a clone where you solve the exercises; use `minidist check` there."""
    exercises = read_answers(course_folder("exercises"))
    for name, source in solutions().items():
        assert exercises[name].text == stub_of(source.text, name), f"{name}: run `minidist stubs --force`"
    assert list(exercises) == chapter_names()


def test_a_release_has_no_answers_and_is_a_course(tmp_path):
    folder = tmp_path / "handed out"
    release(folder, solutions=False)
    for name, source in solutions().items():
        kept, exercise = (folder / part / f"{name}.py" for part in ("solutions", "exercises"))
        hidden = kept.read_text(encoding="utf-8")
        assert stub_of(hidden) == stub_of(source.text) == exercise.read_text(encoding="utf-8")
        assert definitions_by_task(hidden) == definitions_by_task(source.text)
        for ours, theirs in zip(ANSWER.finditer(source.text), ANSWER.finditer(hidden), strict=True):
            between = theirs[0].partition("\n")[2].partition("# ===")[0].partition("# <<<")[0]
            assert between.rstrip() == stub_of(ours[0]).rstrip()
    hidden = without_answers(SOLUTION)
    assert "y = x + 1" not in hidden and stub_of(hidden) == STUB
    assert "# for i in range(3):\n            #     step += i\n            # <<<" in hidden
    assert without_answers(hidden) == hidden
    assert not (folder / "tests" / "exercises" / "mutants").exists()
    for page in (folder / "README.md", folder / "AGENTS.md"):
        links = re.findall(r"\]\(([\w/.-]+)", page.read_text(encoding="utf-8"))
        assert links and not [link for link in links if not (folder / link).exists()]
    for place, why in (
        (folder, "exists already"),
        (course_folder("chapters") / "handed out", "would then contain itself"),
    ):
        with pytest.raises(ValueError, match=f"handed out.* {why}"):
            release(place, solutions=False)


def test_a_release_on_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(source, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr(shutil, "copyfile", full)
    monkeypatch.setattr(stubs, "HANDED_OUT", ("minidist",))  # a folder, of which shutil collects all errors
    with pytest.raises(ValueError, match=r"^the course cannot be written to .*course: No space left on device"):
        release(tmp_path / "course", solutions=True)
    assert not any(tmp_path.iterdir())


@pytest.mark.long
def test_students_are_judged_in_a_release(tmp_path):
    folder = tmp_path / "course"
    release(folder, solutions=False)
    (folder / "exercises" / "ch03_collectives.py").write_text(solutions()["ch03_collectives"].text)
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONUTF8": "1"}
    for task, status, words in (("3.3", 0, "passed"), ("4.1", 1, "to do")):
        command = [sys.executable, "-m", "minidist.cli", "check", task]
        found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")
        assert (found.returncode, words in found.stdout) == (status, True), found.stdout + found.stderr


def test_stubs_do_not_overwrite_work(tmp_path, monkeypatch):
    for name in ("solutions", "exercises"):
        (tmp_path / name).mkdir()
    (tmp_path / "solutions" / "ch09_a.py").write_text(SOLUTION)
    monkeypatch.setattr("minidist.course.stubs.clone_here", lambda: tmp_path)
    assert write_stubs() == ["ch09_a.py"] and write_stubs() == []
    mine = tmp_path / "exercises" / "ch09_a.py"
    assert mine.read_text() == STUB
    mine.write_text("my work")
    with pytest.raises(ValueError, match=r"ch09_a\.py in .*exercises/ would be overwritten.*minidist reset"):
        write_stubs()
    assert mine.read_text() == "my work"
    assert write_stubs(force=True) == ["ch09_a.py"] and mine.read_text() == STUB


def test_reset_of_one_task_and_of_a_chapter(tmp_path):
    solution = solutions()["ch03_collectives"].text
    mine, stub = tmp_path / "ch03_collectives.py", stub_of(solution)
    mine.write_text(solution)
    file, text, _ = plan_reset("3.3", tmp_path)
    assert file == mine and mine.read_text() == solution  # only a plan so far
    (tmp_path / ".backups").mkdir()
    (tmp_path / ".backups" / "ch03_collectives-mine.py").touch()
    copy = write_reset(file, text)
    again = write_reset(*plan_reset("3.4", tmp_path)[:2])  # in the same second
    assert again != copy and copy.read_text() == solution and again.read_text() == text
    assert untouched(mine.read_text(), stub, ["reduce_scatter_ring", "all_gather_ring"])
    assert untouched(mine.read_text(), solution, ["all_reduce_ring", "broadcast_tree"])
    mine.unlink()
    with pytest.raises(ValueError, match=r"no task 3\.99; chapter 3 has 3\.1, "):
        plan_reset("3.99", tmp_path)
    assert write_reset(*plan_reset("3.3", tmp_path)[:2]) is None  # without a file, the whole chapter is written
    assert mine.read_text() == stub
    mine.write_text("def broken(:\n")
    assert plan_reset("3", tmp_path)[1] == stub


def test_reset_reads_lines_as_python_does(tmp_path):
    """The file has a byte order mark, and characters that end a line for str.splitlines alone."""
    solution = solutions()["ch03_collectives"].text
    mine, odd = tmp_path / "ch03_collectives.py", solution.replace("import numpy", "# \u2028 \x0c\nimport numpy")
    mine.write_text(odd, encoding="utf-8-sig")
    text = plan_reset("3.3", tmp_path)[1]
    assert text == replace_definitions(solution, stub_of(solution), ["reduce_scatter_ring"]).replace(
        "import numpy", "# \u2028 \x0c\nimport numpy"
    )
    mine.write_bytes(b"# \xe9\n")
    with pytest.raises(ValueError, match=r"ch03_collectives\.py is not saved as UTF-8\. .*minidist reset 3$"):
        plan_reset("3.3", tmp_path)
