"""Whatever a submission starts, and however grading ends, nothing stays behind."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import psutil
import pytest
from scripts import LIMIT, segments_of, until

from minidist.course.answers import solutions
from minidist.course.grading.supervisor import can_have_own_shared_memory
from minidist.course.grading.workplace import Limits, Workplace

NAME = "ch03_collectives"
SOLUTION = solutions()[NAME].text


def processes_in(folder: Path) -> list[str]:
    """The processes whose temporary files are in a folder, and the supervisor of that folder."""
    running = [process.info for process in psutil.process_iter(["pid", "environ", "status", "cmdline"])]
    return [
        f"{one['pid']} {' '.join(one['cmdline'] or ())[:80]}" for one in running
        if one["status"] != psutil.STATUS_ZOMBIE and (one["environ"] or {}).get("TMPDIR", "").startswith(str(folder))
    ]  # fmt: skip


@contextmanager
def started(scratch: Path, *arguments: str):
    """A command that is killed at the end, with -9 unless it has ended; nothing of it stays."""
    process = subprocess.Popen(
        [sys.executable, "-m", "minidist.cli", *arguments], env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    timer = Timer(LIMIT, process.kill)
    timer.start()
    pids = set()
    try:
        yield process
        pids = {int(line.split()[0]) for line in processes_in(scratch)}
    finally:
        timer.cancel()
        process.kill()
        process.wait(LIMIT)
        process.stdout.close()
    until(lambda: not processes_in(scratch) and not list(scratch.iterdir()))
    assert not any(map(segments_of, pids))


@pytest.mark.long
@pytest.mark.parametrize("ends", ["kill", "terminate"])
@pytest.mark.parametrize("command", ["check", "grade", "watch"])
def test_a_signal_leaves_nothing(command, ends, tmp_path, scratch):
    """While an answer runs that never ends. Of a class, what is finished is kept."""
    for student, code in (("a", ""), ("b", f"\nopen({str(tmp_path / 'runs')!r}, 'w')\nwhile True:\n    pass\n")):
        (tmp_path / "in" / student).mkdir(parents=True)
        (tmp_path / "in" / student / f"{NAME}.py").write_text(SOLUTION + code)
    arguments = {
        "grade": ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--task=3.2", "--jobs=1"],
        "check": ["check", "3.5", "--impl", str(tmp_path / "in" / "b")],
        "watch": ["check", "3.5", "--impl", str(tmp_path / "in" / "b"), "--watch"],
    }
    with started(scratch, *arguments[command]) as process:
        until(lambda: (tmp_path / "runs").exists() or process.poll() is not None)
        assert process.poll() is None
        if ends == "terminate":
            process.terminate()
            assert process.wait(LIMIT) == 130 and list(scratch.iterdir()) == []
    if (command, ends) == ("grade", "terminate"):
        grades = json.loads((tmp_path / "out" / "grades.json").read_text())
        assert [(grade["student"], grade["points"]) for grade in grades] == [("a", 2)]


@pytest.mark.long
def test_watch_judges_at_once_and_when_a_file_is_saved_and_leaves_nothing(tmp_path, scratch):
    """Between two saves a grading process waits, with the server that forks ranks; it reads what is saved later."""
    pytest.importorskip("watchfiles", reason="watchfiles is not installed")
    mine = tmp_path / f"{NAME}.py"
    mine.write_text(SOLUTION.replace("distance *= 2", "distance *= 3"))
    with started(scratch, "check", "3.1", "--impl", str(tmp_path), "--watch") as process:
        for words in (["3.1 fails"], [f"changed: {NAME}.py", "passed"]):
            shown = ""
            while "Save a file" not in shown:
                shown += (line := process.stdout.readline())
                assert line, f"the process ended after printing {shown!r}"
            assert all(word in shown for word in words), shown
            until(lambda: "learner.watch" in str(processes_in(scratch)))
            mine.write_text(SOLUTION)


def test_a_program_that_hides_from_its_supervisor_ends(monkeypatch):
    """The program has an empty environment, a session of its own, and a parent that has ended."""
    hide = "import subprocess\nprint(subprocess.Popen(['sleep', '3600'], env={}, start_new_session=True).pid)"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {hide!r}])\nassert '/own' in sys.path"
    monkeypatch.syspath_prepend("/own")  # a command imports what this process does
    with Workplace() as workplace:
        output = workplace.folder / "output"
        limits = Limits(memory=2.0**34)  # more than there are addresses: no limit
        outcome = workplace.run([sys.executable, "-c", code], {}, workplace.folder, output, limits)
        assert outcome.status == 0 and outcome.exceeded == ""
        pid = int(output.read_text())
        assert not psutil.pid_exists(pid)
    assert not workplace.folder.exists()


@pytest.mark.skipif(not can_have_own_shared_memory(), reason="this system does not let a process mount a /dev/shm")
def test_what_a_command_writes_into_shared_memory_goes_with_it(tmp_path):
    left = Path("/dev/shm", f"left-by-{os.getpid()}")
    code = f"import os\nopen({str(left)!r}, 'w').write('x')\nprint(os.path.exists({str(left)!r}), os.geteuid())"
    with Workplace() as workplace:
        output = workplace.folder / "output"
        workplace.run([sys.executable, "-c", code], {}, workplace.folder, output)
        assert output.read_text() == f"True {os.geteuid()}\n"
    assert not left.exists()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_a_workplace_whose_supervisor_is_killed():
    """The command ends too, the error says what has happened, and the folder disappears."""
    with Workplace() as workplace:
        file = workplace.folder / "pid"
        code = f"import os, time\nopen({str(file)!r}, 'w').write(str(os.getpid()) + '.')\ntime.sleep(3600)"

        def kill_it() -> None:
            if file.exists() and file.read_text().endswith("."):
                workplace._supervisor.kill()

        with pytest.raises(RuntimeError, match="something has killed the process that supervises"):
            command = [sys.executable, "-c", code]
            workplace.run(command, {}, workplace.folder, workplace.folder / "output", meanwhile=kill_it)
        pid = int(file.read_text().rstrip("."))
        until(lambda: not psutil.pid_exists(pid))
    assert not workplace.folder.exists()
