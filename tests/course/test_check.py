"""minidist check as a learner sees it: one chapter from untouched to solved."""

import os
import subprocess
import sys
import time
from threading import Timer

import pytest
from rich.console import Console

from minidist.cli.main import main
from minidist.course.answers import chapter_of, course_folder, read_answers
from minidist.course.grading.run_graders import run_graders
from minidist.course.learner.check import check
from minidist.course.learner.hints import hints_of
from minidist.course.source.stubs import replace_definitions, stub_of
from minidist.course.source.task_list import tasks_of
from minidist.course.tasks import Verdict, results_of

NAME = "ch03_collectives"
LIMIT = 300  # seconds for one wait
SOLUTION = read_answers(course_folder("solutions"))[NAME].text
STUB = stub_of(SOLUTION)


@pytest.fixture
def folder(tmp_path):
    """A learner's folder with the stub of chapter 3."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / f"{NAME}.py").write_text(STUB)
    return mine


def solve(*names: str, start: str = STUB) -> str:
    """The stub with these functions solved."""
    return replace_definitions(start, SOLUTION, list(names))


def checked(folder, capsys, *arguments) -> tuple[int, str]:
    status = main(["check", "--impl", str(folder), *arguments])
    return status, capsys.readouterr().out


def test_untouched(folder, capsys):
    status, shown = checked(folder, capsys, "3")
    assert status == 1
    assert shown.count("to do") == 8 and "failing" not in shown and "Traceback" not in shown
    assert "next: 3.1" in shown and "hint: minidist check --hint 3.1" in shown
    assert "Number the ranks" not in shown  # a hint is shown to those who ask


def test_all_chapters_are_shown_one_by_one_as_they_are_judged(folder, capsys):
    """Who reads the first line only, as ``| head -1`` does, need not wait for the last chapter."""
    shown_before, judged = [], []

    def judge(impl, targets, on_verdict):
        verdicts = [Verdict(number, "test", "passed") for number in targets]
        for verdict in verdicts:
            on_verdict(verdict)
            judged.append(chapter_of(verdict.task))
            shown_before.append(capsys.readouterr().out)
        tasks = [task for name in dict.fromkeys(judged) for task in tasks_of(name)]
        return results_of(tasks, verdicts)

    check(Console(highlight=False, markup=False), str(folder), None, True, judge)
    tables = ["chapter " + str(int(name[2:4])) + ":" for name in dict.fromkeys(judged)]
    for number, table in enumerate(tables[:-1]):
        first_of_next = judged.index(list(dict.fromkeys(judged))[number + 1])
        assert table in shown_before[first_of_next]
    assert tables[-1] in (rest := capsys.readouterr().out) and not any(table in rest for table in tables[:-1])


@pytest.mark.long
def test_a_debugging_task_shows_its_failing_test_from_the_start(folder, capsys):
    status, shown = checked(folder, capsys, "3.6")
    assert status == 1 and "to do" in shown and "the program fails in test_values" in shown and "rank " in shown


@pytest.mark.long
def test_a_debugging_task_that_is_the_last_one_left(folder, capsys):
    (folder / f"{NAME}.py").write_text(replace_definitions(SOLUTION, STUB, ["global_max"]))
    shown = checked(folder, capsys, "3")[1]
    assert "next: 3.6" in shown and "the program fails in test_values" in shown and "failing" not in shown


@pytest.mark.long
def test_from_failing_to_passed(folder, capsys):
    mine = folder / f"{NAME}.py"
    mine.write_text(solve("broadcast_tree").replace("distance *= 2", "distance *= 3"))
    status, shown = checked(folder, capsys, "3.1")
    assert status == 1 and "failing" in shown and "3.1 fails in test_values" in shown and "rank" in shown
    mine.write_text(solve("broadcast_tree"))
    status, shown = checked(folder, capsys, "3.1")
    assert status == 0 and "passed" in shown and "3 of " in shown and "Well done" in shown


@pytest.mark.long
def test_a_chapter_with_one_task_passed_and_seven_to_do(folder, capsys):
    (folder / f"{NAME}.py").write_text(solve("broadcast_tree"))
    status, shown = checked(folder, capsys, "3")
    assert status == 1 and shown.count("to do") == 7 and shown.count("passed") == 1


@pytest.mark.long  # test_uses.py has the rule, test_from_failing_to_passed what a failing task looks like
def test_a_task_that_uses_one_that_fails(folder, capsys):
    """all_reduce_ring is right; it fails because reduce_scatter_ring does."""
    mine = folder / f"{NAME}.py"
    right = solve("reduce_scatter_ring", "all_gather_ring", "all_reduce_ring")
    mine.write_text(right.replace("(rank - 1 - step) % size]\n        mine", "(rank - step) % size]\n        mine"))
    _, shown = checked(folder, capsys, "3")
    assert "3.3 fails in test_values" in shown and "also failing: 3.5 (uses 3.3)" in shown
    _, shown = checked(folder, capsys, "3.5")  # on its own too, from what was found before
    assert "3.5 uses 3.3, which fails: fix that first" in shown
    mine.write_text(right.replace("chunks = chunks_of(flat, group.size)", "chunks = chunks_of(-flat, group.size)"))
    _, shown = checked(folder, capsys, "3")
    assert "3.5 fails in" in shown and "uses" not in shown  # its own bug


@pytest.mark.long
def test_a_stub_called_inside_a_rank_is_to_do(folder, capsys):
    """all_reduce_ring is written, but the two functions it calls are not."""
    (folder / f"{NAME}.py").write_text(solve("all_reduce_ring"))
    status, shown = checked(folder, capsys, "3.5")
    assert status == 1 and "to do" in shown and "Traceback" not in shown and "hint: minidist check --hint 3.5" in shown


@pytest.mark.long
def test_an_error_names_the_line(folder, capsys):
    mine = folder / f"{NAME}.py"
    mine.write_text(solve("all_gather_ring").replace("incoming = chunks[(rank - 1 - step) % size]", "incoming = chunk"))
    line = mine.read_text().splitlines().index("        incoming = chunk") + 1
    status, shown = checked(folder, capsys, "3.4")
    assert status == 1 and "NameError" in shown and f"{NAME}.py:{line}" in shown
    assert "details:" not in shown  # these are the details
    assert "details: minidist check 3.4" in checked(folder, capsys)[1]


@pytest.mark.long
def test_an_endless_loop_and_a_deadlock_end(folder, capsys):
    mine = folder / f"{NAME}.py"
    mine.write_text(solve("broadcast_tree").replace("distance *= 2", "distance = int(np.sum(distance))"))
    _, shown = checked(folder, capsys, "3.1")
    # one rank waits forever for another that loops forever; both are in this function
    assert "3.1 fails" in shown and "did not end within 10 s" in shown and shown.count(f"{NAME}.py:") == 2, shown
    mine.write_text(solve("all_gather_ring").replace("sendrecv(outgoing, right, incoming", "recv(incoming"))
    _, shown = checked(folder, capsys, "3.4")
    assert "deadlock" in shown and f"{NAME}.py:" in shown


@pytest.mark.long
def test_a_file_that_is_not_python(folder, capsys):
    (folder / f"{NAME}.py").write_text(STUB + "\ndef broken(:\n")
    status, shown = checked(folder, capsys, "3.1")
    assert status == 1 and "cannot be loaded" in shown and "SyntaxError" in shown
    status, shown = checked(folder, capsys, "3")
    assert shown.count("cannot be loaded") == 1  # once, not for every task


@pytest.mark.long
def test_the_chapter_being_worked_on_is_shown(folder, capsys):
    """Chapter 0 is untouched; a learner who edits chapter 3 sees chapter 3."""
    for name, source in read_answers(course_folder("solutions")).items():
        (folder / f"{name}.py").write_text(stub_of(source.text))
    assert "chapter 0:" in checked(folder, capsys)[1]
    (folder / f"{NAME}.py").write_text(solve("broadcast_tree"))
    shown = checked(folder, capsys)[1]
    assert "chapter 3:" in shown and "chapter 0:" not in shown and "next: 3.2" in shown


@pytest.mark.long
def test_a_traceback_shows_only_the_learners_lines(folder, capsys):
    mine = folder / f"{NAME}.py"
    mine.write_text(solve("all_gather_ring").replace("incoming = chunks[(rank - 1 - step) % size]", "incoming = chunk"))
    shown = checked(folder, capsys, "3.4")[1]
    assert "incoming = chunk" in shown and "student.py" not in shown and "test_ch03" not in shown


@pytest.fixture
def judged(monkeypatch):
    """The tasks that ``check`` has judged."""
    numbers: list[str] = []

    def run(impl, targets, **more):
        numbers.extend(targets)
        return run_graders(impl, targets, **more)

    monkeypatch.setattr("minidist.course.learner.check.run_graders", run)
    return numbers


def without_ranks(*names: str) -> str:
    """Chapter 0, whose tasks need no ranks, with these functions solved."""
    solution = read_answers(course_folder("solutions"))["ch00_walls"].text
    return replace_definitions(stub_of(solution), solution, list(names))


@pytest.mark.long
def test_only_what_has_changed_is_judged(folder, capsys, judged):
    (folder / f"{NAME}.py").unlink()
    mine, text = folder / "ch00_walls.py", without_ranks("memory_buckets", "devices_needed", "tiled_traffic")
    mine.write_text(text)
    shown = checked(folder, capsys)[1]
    assert judged == ["0.1", "0.4"] and "4 of" in shown and "2 of" in shown
    judged.clear()
    shown = checked(folder, capsys, "0")[1]
    assert judged == [] and "4 of" in shown
    wrong = text.replace("parameters * weights", "parameters + weights")
    mine.write_text(wrong)
    shown = checked(folder, capsys)[1]
    assert judged == ["0.1"] and "0.1 fails" in shown and "2 of 466" in shown
    judged.clear()
    mine.write_text("\n" + wrong)  # the message names lines, and they move
    checked(folder, capsys)
    assert judged == ["0.1"]
    judged.clear()
    mine.write_text("\n\n" + text)  # undone
    shown = checked(folder, capsys)[1]
    assert judged == [] and "4 of" in shown
    checked(folder, capsys, "0.4")  # a task that is named is judged again
    assert judged == ["0.4"]


@pytest.mark.long
def test_what_was_saved_while_it_was_judged_is_judged_again(folder, capsys, judged, monkeypatch):
    mine, text = folder / "ch00_walls.py", without_ranks("memory_buckets", "devices_needed")
    mine.write_text(text)

    def save_and_run(impl, targets, **more):
        results = run_graders(impl, targets, **more)
        mine.write_text(text + "\n# more\n")
        return results

    with monkeypatch.context() as patch:
        patch.setattr("minidist.course.learner.check.run_graders", save_and_run)
        assert "passed" in checked(folder, capsys, "0.1")[1]
    checked(folder, capsys, "0")
    assert "0.1" in judged


@pytest.mark.long
def test_other_chapters_take_one_line(folder, capsys):
    """The learner goes back from chapter 3, which fails, to chapter 0."""
    (folder / f"{NAME}.py").write_text(solve("all_reduce_naive").replace("out=flat", "out=flat.copy()"))
    assert "chapter 3:" in checked(folder, capsys)[1]
    solution = read_answers(course_folder("solutions"))["ch00_walls"].text
    names = ["memory_buckets", "devices_needed"]
    zero = folder / "ch00_walls.py"
    zero.write_text(replace_definitions(stub_of(solution), solution, names))
    os.utime(zero, (time.time() + 9,) * 2)
    shown = checked(folder, capsys)[1]
    assert "chapter 0:" in shown and "chapter 3:" not in shown and "next: 0.2" in shown
    assert "also failing: 3.2" in shown and "3.2 fails" not in shown


@pytest.mark.long
def test_a_chapter_that_is_solved_leads_to_the_one_after_it(folder, capsys):
    (folder / f"{NAME}.py").unlink()
    (folder / "ch00_walls.py").write_text(read_answers(course_folder("solutions"))["ch00_walls"].text)
    shown = checked(folder, capsys)[1]
    assert "chapter 0:" in shown and "Well done" in shown and "next: 1.1" in shown
    assert "chapter 1:" in checked(folder, capsys)[1]


@pytest.mark.long
def test_progress_that_cannot_be_stored_or_read(folder, capsys):
    """check reports the problem and shows its results all the same."""
    (folder / ".progress.json").mkdir()
    assert main(["check", "--impl", str(folder), "3.1"]) == 1
    seen = capsys.readouterr()
    assert "next: 3.1" in seen.out and "cannot save your progress" in seen.err
    (folder / ".progress.json").rmdir()
    (folder / ".progress.json").write_text("[" * 5000)
    assert "next: 3.1" in checked(folder, capsys, "3.1")[1]


@pytest.mark.long
def test_a_signal_ends_it_without_leftovers(folder, scratch):
    (folder / f"{NAME}.py").write_text(
        solve("broadcast_tree").replace("distance *= 2", "distance = int(np.sum(distance))")
    )
    environment = os.environ | {"TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "minidist.cli", "check", "3.1", "--impl", str(folder)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT
    while not list(scratch.glob("*/verdicts")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)  # the tasks are known; by now it judges an answer that loops forever
    process.terminate()
    assert process.wait(timeout=LIMIT) == 130
    assert list(scratch.iterdir()) == []


def test_reset_asks(folder, capsys, monkeypatch):
    mine = folder / f"{NAME}.py"
    mine.write_text(solve("broadcast_tree"))
    assert main(["reset", "3.1", "--impl", str(folder)]) == 2
    assert "this would replace what you wrote in broadcast_tree" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["reset", "3.1", "--impl", str(folder)]) == 0 and mine.read_text() == solve("broadcast_tree")
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert main(["reset", "3.1", "--impl", str(folder)]) == 0 and mine.read_text() == STUB
    assert "your work is saved in .backups/" in capsys.readouterr().out


def test_hints_go_from_a_push_to_nearly_the_code(capsys):
    first, second, *_ = hints_of(NAME)["3.3"]
    assert main(["check", "--hint", "3.3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("3.3 reduce_scatter_ring") and first in shown and second not in shown and "3.4" not in shown
    assert "the next one: minidist check --hint 3.3 2" in shown
    assert main(["check", "--hint", "3.3", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert first in shown and second in shown
    assert main(["check", "--hint", "3"]) == 0
    assert capsys.readouterr().out.count("hint 1 of") == 8


def test_every_task_has_hints():
    for name in read_answers(course_folder("solutions")):
        hints = hints_of(name)
        assert list(hints) == [task.number for task in tasks_of(name)], name
        assert all(2 <= len(levels) <= 3 for levels in hints.values()), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["3.99"], "there is no task 3.99; choose from 3.1"),
        pytest.param(["77"], "there is no chapter '77'", marks=pytest.mark.long),
        (["--impl", "/nowhere"], "there is no such folder"),
        (["--hint", "3.99"], "there is no task 3.99"),
        (["--hint", "3.3", "9"], "there is no hint 9 for 3.3: choose a number from 1 to "),
        (["--hint", "3.3", "two"], "expected a task and a number, such as --hint 3.4 2"),
    ],
)
def test_unusable_input(arguments, message, capsys):
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_watch(folder):
    """It judges immediately, and again when a file is saved."""
    pytest.importorskip("watchfiles", reason="watchfiles is not installed")
    command = [sys.executable, "-m", "minidist.cli", "check", "3.1", "--watch", "--impl", str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | {"COLUMNS": "100"}
    )
    try:
        seen = read_until(process, "Save a file")
        assert "to do" in seen
        (folder / f"{NAME}.py").write_text(solve("broadcast_tree"))
        seen = read_until(process, "Save a file")
        assert f"changed: {NAME}.py" in seen and "passed" in seen
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def read_until(process, text: str) -> str:
    """What a process prints up to the line with the text, if that comes within the limit."""
    seen, limit = "", Timer(LIMIT, process.kill)
    limit.start()
    try:
        for line in process.stdout:
            seen += line
            if text in line:
                return seen
    finally:
        limit.cancel()
    raise AssertionError(f"the process ended after printing {seen!r}")


@pytest.mark.long
def test_untouched_stubs_score_nothing(tmp_path):
    for name, source in read_answers(course_folder("solutions")).items():
        (tmp_path / f"{name}.py").write_text(stub_of(source.text))
    results = run_graders(str(tmp_path))  # (tests/exercises shows that solutions score everything)
    assert len(results) >= 24
    assert {result.state for result in results} == {"todo"} and sum(result.points for result in results) == 0
