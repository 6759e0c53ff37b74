"""minidist check as a learner sees it: one chapter from untouched to solved."""

import io
import os
import time
from pathlib import Path

import pytest

from minidist.cli.main import main
from minidist.course.answers import solutions
from minidist.course.grading.run_graders import run_graders
from minidist.course.learner.check import hints_of
from minidist.course.stubs import definitions_by_task, replace_definitions, stub_of, untouched
from minidist.course.tasks import TaskResult, Verdict, results_of, tasks_of

NAME, ZERO = "ch03_collectives", "ch00_walls"
THREE = [ZERO, "ch01_transformer", NAME]
SOLUTIONS = {name: source.text for name, source in solutions().items()}
SOLUTION, STUB = SOLUTIONS[NAME], stub_of(SOLUTIONS[NAME])
ENDLESS = "distance *= 2", "distance = int(np.sum(distance))"  # 0 for ever


@pytest.fixture
def folder(tmp_path):
    """A learner's folder with the stub of chapter 3."""
    mine = tmp_path / "my answers"
    mine.mkdir()
    (mine / f"{NAME}.py").write_text(STUB)
    return mine


def solve(*names: str, chapter: str = NAME) -> str:
    """The stub with these functions solved."""
    return replace_definitions(stub_of(SOLUTIONS[chapter]), SOLUTIONS[chapter], list(names))


def checked(folder, capsys, *arguments) -> tuple[int, str]:
    status = main(["check", "--impl", str(folder), *arguments])
    return status, capsys.readouterr().out


def judge_text(impl: str, targets: list[str], on_verdict=lambda verdict: None) -> list[TaskResult]:
    """A task is passed if its functions are those of the solution, and to do if they are those of the stub."""
    tasks = [task for name in THREE for task in tasks_of(name) if task.number in targets]
    verdicts = []
    for task in tasks:
        solution, names = SOLUTIONS[task.chapter], definitions_by_task(SOLUTIONS[task.chapter])[task.number]
        text = (Path(impl) / f"{task.chapter}.py").read_text()
        to_do, solved = (untouched(text, known, names) for known in (stub_of(solution), solution))
        state = "passed" if solved else "todo" if to_do else "failed"
        verdicts.append(Verdict(task.number, "test_text", state, *["", ""] if solved else ["another", "text"]))
        on_verdict(verdicts[-1])
    return results_of(tasks, verdicts)


@pytest.fixture
def judged(monkeypatch):
    """The tasks that ``check`` has judged, by their text, in a course of three chapters."""
    numbers: list[str] = []
    monkeypatch.setattr("minidist.course.learner.check.chapter_names", lambda: THREE)

    def run(impl, targets, **more):
        numbers.extend(targets)
        return judge_text(impl, targets, **more)

    monkeypatch.setattr("minidist.course.learner.check.run_graders", run)
    return numbers


def test_only_what_has_changed_is_judged(folder, capsys, judged, monkeypatch):
    (folder / f"{NAME}.py").unlink()
    mine, text = folder / f"{ZERO}.py", solve("memory_buckets", "devices_needed", "tiled_traffic", chapter=ZERO)
    wrong = text.replace("parameters * weights", "parameters + weights")
    steps = (  # the file, the arguments, what is judged, and what is shown
        (text, [], ["0.1", "0.4"], ["4 of", "2 of"]),
        (text, ["0"], [], ["4 of"]),
        (wrong, [], ["0.1"], ["0.1 fails", "2 of"]),
        ("\n" + wrong, [], ["0.1"], ["0.1 fails"]),  # the message names lines, and they move
        ("\n\n" + text, [], [], ["4 of"]),  # undone
        ("\n\n" + text, ["0.4"], ["0.4"], ["passed"]),  # a task that is named is judged again
    )
    for written, arguments, expected, words in steps:
        mine.write_text(written)
        judged.clear()
        shown = checked(folder, capsys, *arguments)[1]
        assert judged == expected and all(word in shown for word in words), (arguments, judged, shown)

    def save_and_run(impl, targets, **more):
        results = judge_text(impl, targets, **more)
        mine.write_text(text + "\nMORE = 1  # more\n")
        return results

    with monkeypatch.context() as patch:
        patch.setattr("minidist.course.learner.check.run_graders", save_and_run)
        mine.write_text(text + "\nMORE = 1\n")
        assert "passed" in checked(folder, capsys, "0.1")[1]
    judged.clear()
    checked(folder, capsys, "0")
    assert "0.1" in judged  # what was saved while it was judged is judged again


def test_the_chapter_being_worked_on_is_shown_and_others_take_one_line(folder, capsys, judged):
    for name, solution in SOLUTIONS.items():
        (folder / f"{name}.py").write_text(stub_of(solution))
    wrong = solve("broadcast_tree", "all_reduce_naive").replace("out=flat", "out=flat.copy()")
    begun = solve("memory_buckets", "devices_needed", chapter=ZERO)
    steps = [  # (the files that are saved, words that are shown or not)
        ({}, "chapter 0:"),
        ({NAME: solve("broadcast_tree")}, "chapter 3:|-chapter 0:|next: 3.2|passed"),
        ({NAME: wrong}, "chapter 3:|3.2 fails in test_text|details: minidist check 3.2"),
        ({ZERO: begun}, "chapter 0:|-chapter 3:|next: 0.2|also failing: 3.2|-3.2 fails"),
        ({NAME: STUB, ZERO: SOLUTIONS[ZERO]}, "chapter 0:|Well done|next: 1.1"),
        ({}, "chapter 1:"),  # who has seen that a chapter is solved is led to the one after it
        ({name: SOLUTIONS[name] for name in THREE}, "you have solved every task|--impl '"),  # of a folder with a space
    ]
    for number, (files, words) in enumerate(steps):
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
            os.utime(folder / f"{name}.py", (time.time() + 9 * number,) * 2)  # the last of them is worked on
        status, shown = checked(folder, capsys)
        missing = [word for word in words.split("|") if (word.removeprefix("-") in shown) == word.startswith("-")]
        assert status == (number not in (4, 6)) and not missing, (missing, shown)
    assert "details:" not in checked(folder, capsys, "3.2")[1]
    assert checked(folder, capsys, "3") == checked(folder, capsys, "03") == checked(folder, capsys, NAME)


def test_progress_that_cannot_be_stored_or_read(folder, capsys, judged):
    """check reports the problem and shows its results all the same."""
    (folder / ".progress.json").mkdir()
    assert main(["check", "--impl", str(folder), "3.1"]) == 1
    seen = capsys.readouterr()
    assert "next: 3.1" in seen.out and "cannot save your progress" in seen.err
    (folder / ".progress.json").rmdir()
    (folder / ".progress.json").write_text("[" * 5000)
    assert "next: 3.1" in checked(folder, capsys, "3.1")[1]


def test_reset_asks(folder, capsys, monkeypatch):
    mine = folder / f"{NAME}.py"
    mine.write_text(solve("broadcast_tree"))
    monkeypatch.setattr("sys.stdin", None)  # closed
    assert main(["reset", "3.1", "--impl", str(folder)]) == 2
    assert "this would replace what you wrote in broadcast_tree of" in capsys.readouterr().err
    for typed, text in (("", solve("broadcast_tree")), ("n\n", solve("broadcast_tree")), ("y\n", STUB)):  # first Ctrl-D
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        assert main(["reset", "3.1", "--impl", str(folder)]) == 0 and mine.read_text() == text


def test_files_belong_to_the_clone_that_one_stands_in(tmp_path, capsys, judged, monkeypatch):
    """Wherever minidist is installed from; and whatever writes says where."""
    mine = tmp_path / "exercises" / f"{NAME}.py"
    for file in (mine, tmp_path / "minidist" / "__init__.py", tmp_path / "solutions" / "any.py"):
        file.parent.mkdir()
        file.write_text(solve("broadcast_tree"))
    monkeypatch.chdir(tmp_path / "solutions")
    for command, status, words in (
        (["check", "3.1"], 0, f"passed|{mine.parent / '.progress.json'}"),
        (["reset", "3.1", "--yes"], 0, f"wrote {mine}; your work is saved in {mine.parent / '.backups'}"),
        (["reset", "3.1"], 0, f"broadcast_tree in {mine} is untouched: nothing to reset"),
        (["check", "3.1"], 1, "to do"),
    ):
        assert main(command) == status
        shown = capsys.readouterr().out.replace("\n", "")
        assert all(word in shown for word in words.split("|")), shown
    assert mine.read_text() == STUB


def test_hints_go_from_a_push_to_nearly_the_code(capsys):
    first, second, *_ = hints_of(NAME)["3.3"]
    for arguments, has_second in ((["3.3"], False), (["3.3", "2"], True)):
        assert main(["check", "--hint", *arguments]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert shown.startswith("3.3 reduce_scatter_ring") and first in shown and (second in shown) == has_second
    for name in SOLUTIONS:
        hints = hints_of(name)
        assert list(hints) == [task.number for task in tasks_of(name)], name
        assert all(2 <= len(levels) <= 3 for levels in hints.values()), name


def test_untouched(folder, capsys):
    status, shown = checked(folder, capsys, "3")
    assert status == 1
    assert shown.count("to do") == 8 and "failing" not in shown and "Traceback" not in shown
    assert "next: 3.1" in shown and "hint: minidist check --hint 3.1" in shown
    assert "Number the ranks" not in shown  # a hint is shown to those who ask


@pytest.mark.long
def test_untouched_stubs_score_nothing(tmp_path):
    for name, solution in SOLUTIONS.items():
        (tmp_path / f"{name}.py").write_text(stub_of(solution))
    results = run_graders(str(tmp_path))  # (tests/exercises shows that solutions score everything)
    assert {result.state for result in results} == {"todo"} and sum(result.points for result in results) == 0


RING = "incoming = chunks[(rank - 1 - step) % size]"
THREE_RINGS = ["reduce_scatter_ring", "all_gather_ring", "all_reduce_ring"]
WRONG_CHUNK = tuple(f"({chunk}) % size]\n        mine" for chunk in ("rank - 1 - step", "rank - step"))
ANSWERS = [  # (functions solved, (old, new) text, the task that is checked, exit status, words that are shown or not)
    (["broadcast_tree"], ("distance *= 2", "distance *= 3"), "3.1", 1, "failing|3.1 fails in test_values|rank"),
    (["broadcast_tree"], ("", ""), "3.1", 0, "passed|3 of |Well done"),
    ([], ("", ""), "3.6", 1, "to do|the program fails in test_values|rank "),  # a debugging task, from the start
    (None, ("", ""), "3", 1, "next: 3.6|the program fails in test_values|-failing"),  # and as the last one left
    # a worksheet's functions are judged apart: one is right, one is wrong, the others are stubs
    (["naive_all_reduce_seconds", "tree_all_reduce_seconds"], ("np.ceil", "np.floor"), "3.7", 1,
     "3.7: 1 of 5 tests pass|tree_all_reduce_seconds(|ring_all_reduce_seconds is still a stub|-NotImplementedError"),
    # a stub that an answer calls inside a rank
    (["all_reduce_ring"], ("", ""), "3.5", 1, "to do|-Traceback|hint: minidist check --hint 3.5"),
    (["all_gather_ring"], (RING, "incoming = chunk"), "3.4", 1,
     "NameError|{NAME}.py:{line}|incoming = chunk|-student.py|-test_ch03|-details:"),
    # of what it prints the last 20 lines are shown
    (["all_gather_ring"], (RING, r"print(*'abcdefghijklmnopqrstuvwxyz', sep='\n'); incoming = chunk"), "3.4", 1,
     "NameError|the last lines printed:|│ g |│ z |-│ f "),
    # one rank waits forever for another that loops forever; both are in this function
    (["broadcast_tree"], ENDLESS, "3.1", 1, "3.1 fails|did not end within 10 s"),
    (["all_gather_ring"], ("sendrecv(outgoing, right, incoming", "recv(incoming"), "3.4", 1, "deadlock|{NAME}.py:"),
    (["broadcast_tree"], ("def broadcast_tree(", "def broadcast("), "3.1", 1, "{NAME}.py has no 'broadcast_tree'"),
    # not Python: said once, not for every task
    (["broadcast_tree"], ("distance *= 2", "distance = ("), "3", 1, "SyntaxError|cannot be loaded"),
    # all_reduce_ring is right, but calls what fails; on its own it is told so from what was found before
    (THREE_RINGS, WRONG_CHUNK, "3", 1, "3.3 fails in test_values|also failing: 3.5 (uses 3.3)"),
    (THREE_RINGS, WRONG_CHUNK, "3.5", 1, "3.5 uses 3.3, which fails: fix that first"),
]  # fmt: skip


@pytest.mark.long
def test_an_answer_is_judged(folder, capsys):
    offenders = []
    for solved, (old, new), task, status, words in ANSWERS:
        text = solve(*solved) if solved is not None else replace_definitions(SOLUTION, STUB, ["global_max"])
        assert old in text
        text = text.replace(old, new) if old else text
        (folder / f"{NAME}.py").write_text(text)
        line = next((number for number, one in enumerate(text.splitlines(), 1) if old and one.strip() == new), 0)
        found, shown = checked(folder, capsys, task)
        wanted = words.format(NAME=NAME, line=line).split("|")
        missing = [word for word in wanted if (word.removeprefix("-") in shown) == word.startswith("-")]
        if missing or found != status or ((old, new) == ENDLESS and shown.count(f"{NAME}.py:") != 2):
            offenders.append(f"{solved}, {new}: status {found}, {missing} of {shown}")
        if shown.count("cannot be loaded") > 1:
            offenders.append(f"said more than once: {shown}")
    assert not offenders, "\n".join(offenders)


@pytest.mark.long
def test_a_missing_return_is_no_riddle(folder, capsys):
    """The grader cannot go on with the None that came back, in its own process or in a rank, and says whose it is."""
    for name, old, task, words in (
        (ZERO, "return {", "0.1", "cannot use what memory_buckets returned: 'NoneType' object"),
        ("ch04_data_parallel", "return losses, weights", "4.5", "cannot use what the answer returned: cannot unpack"),
        (ZERO, "parameters: int, recipe: str)", "0.1", "cannot call it: memory_buckets() takes 1 positional argument"),
    ):
        new = "recipe)" if old.endswith(")") else f"_ = {old.removeprefix('return ')}"
        (folder / f"{name}.py").write_text(SOLUTIONS[name].replace(old, new))
        shown = " ".join(checked(folder, capsys, task)[1].replace("│", " ").split())
        assert words in shown, shown
