"""What ``kill -9`` leaves is removed at the next start of a Cluster, and what might belong to anybody else is not."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import minidist as md
from minidist.comm.runtime.processes import sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who is gone: nothing is removed")
LIMIT = 300  # seconds, of each wait
SHARED_MEMORY = Path(sweep.SHARED_MEMORY)


@pytest.fixture
def folder(scratch, monkeypatch):
    """Where temporary files go: here and in the scripts."""
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return scratch


def running_script(folder: Path, begun: bool = False) -> subprocess.Popen:
    """A script with two ranks: started, or if ``begun`` in the middle of a run."""
    script = folder / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import time
            import minidist as md
            def main(world):
                print("ready", flush=True)
                time.sleep(600)
            with md.Cluster(2) as cluster:
                if {begun}:
                    cluster.run(main)
                print("ready\\nready", flush=True)
                time.sleep(600)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"TMPDIR": str(folder)},
    )  # fmt: skip
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    return process


def end(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT)


def segments_of(process: subprocess.Popen) -> list[str]:
    return [path.name for path in SHARED_MEMORY.glob(f"minidist-{process.pid}-*")]


def folders(folder: Path) -> list[Path]:
    return list(folder.glob("pymp-*"))


def start_a_cluster() -> None:
    with md.Cluster(1, start_method="spawn") as cluster:  # which needs no folder of its own
        assert cluster.run(lambda world: world.size, timeout=LIMIT) == [1]


def test_after_kill_9_of_the_whole_process_group(folder):
    process = running_script(folder)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    assert len(segments_of(process)) == 1 == len(folders(folder))  # nobody was left who could have removed them
    start_a_cluster()
    assert not segments_of(process) and not folders(folder)


def test_once_a_run_has_begun_even_kill_9_leaves_no_shared_memory(folder):
    """All ranks have attached to the segment then, so it needs no name."""
    process = running_script(folder, begun=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    assert not segments_of(process)


def test_after_kill_9_of_the_parent_alone(folder):
    """Its ranks and servers notice, and end. They remove the segment; the folder stays."""
    process = running_script(folder)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT)  # until the last rank has closed standard output
    deadline = time.monotonic() + LIMIT
    while segments_of(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not segments_of(process) and len(folders(folder)) == 1
    start_a_cluster()
    assert not folders(folder)


@pytest.mark.parametrize(
    "command",
    [
        "verify dp=2 tp=2 --interrupt --steps 900",
        pytest.param("train --steps 9000 --watch", marks=pytest.mark.long),
        pytest.param("check 3.5 --impl solutions", marks=pytest.mark.long),
    ],
)
def test_the_scratch_folder_of_a_command_that_was_killed_is_removed(folder, command):
    """All processes of it at once, so that none cleans up behind another."""
    process = subprocess.Popen(
        [sys.executable, "-m", "minidist.cli", *command.split()], env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + LIMIT
    while not (made := list(folder.glob("minidist-*"))) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert made and process.poll() is None
    supervisors = [child for child in psutil.Process(process.pid).children() if "supervisor" in str(child.cmdline())]
    for each in (*supervisors, psutil.Process(process.pid)):
        each.kill()
    process.wait(LIMIT)
    while list(folder.iterdir()) and time.monotonic() < deadline:
        start_a_cluster()
        time.sleep(0.05)
    assert list(folder.iterdir()) == []


def test_what_belongs_to_the_living_stays(folder):
    process = running_script(folder)
    try:
        before = segments_of(process), folders(folder)
        assert len(before[0]) == 1 == len(before[1])
        start_a_cluster()
        assert (segments_of(process), folders(folder)) == before and process.poll() is None
    finally:
        end(process)
    start_a_cluster()
    assert not segments_of(process) and not folders(folder)


@pytest.mark.parametrize(
    "start",
    [
        "from minidist.comm.runtime.warm import preload; preload()",
        "import minidist as md; md.launch(lambda world: None, 1)",
    ],
)
def test_whoever_starts_the_fork_server_marks_its_folder(folder, start):
    script = f"{start}; import os; from multiprocess import util; print(*os.listdir(util.get_temp_dir()))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT,
        env=os.environ | {"TMPDIR": str(folder)},
    )  # fmt: skip
    assert sorted(name.split("-")[0] for name in result.stdout.split()) == ["listener", "minidist"], result.stderr


# Owners, without their processes


def ended_process() -> int:
    """The id of a process that was there a moment ago."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(LIMIT)
    return process.pid


@pytest.fixture
def things(folder):
    """``things(owner)`` makes what carries this owner; it returns whether a sweep leaves it: all of it, or nothing."""
    made = []

    def stay(owner: str) -> bool:
        segment = SHARED_MEMORY / f"minidist-{owner}-{os.urandom(3).hex()}"
        segment.touch()
        made.append(segment)
        inside = Path(tempfile.mkdtemp(prefix="pymp-"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(inside / "listener-abc"))
        (inside / f"minidist-{owner}").touch()
        scratch = folder / f"minidist-{owner}-{os.urandom(4).hex()}"
        scratch.mkdir()
        (scratch / "data").touch()
        sweep.sweep()
        assert segment.exists() == inside.exists() == scratch.exists()
        return segment.exists()

    yield stay
    for segment in made:
        segment.unlink(missing_ok=True)


def test_an_owner_is_known_by_its_id_its_start_and_its_place(things):
    pid, start, place = sweep.owner().split("-")
    assert int(pid) == os.getpid() and sweep.owner() == sweep.owner()
    gone = ended_process()
    assert things(f"{pid}-{start}-{place}")
    assert not things(f"{gone}-{start}-{place}")
    assert not things(f"{pid}-{int(start) - 1}-{place}")  # the id is in use again: by us
    assert not things(f"1-{int(start) + 1}-{place}")  # or by somebody else
    assert things(f"{gone}-{start}-00000000")  # a container's, or of a time before the machine's last start
    assert things(f"{gone}")  # a name without a start and a place says too little
    assert things(f"{gone}-{start}-{place}0") and things(f"x{gone}-{start}-{place}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_stays(things, monkeypatch):
    _, start, place = sweep.owner().split("-")
    owner = f"{ended_process()}-{start}-{place}"
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        assert things(owner)
    assert not things(owner)


def test_a_folder_with_anything_else_in_it_stays(folder):
    _, start, place = sweep.owner().split("-")
    mark = f"minidist-{ended_process()}-{start}-{place}"
    for other in ("data", f"minidist-{sweep.owner()}"):
        inside = Path(tempfile.mkdtemp(prefix="pymp-"))
        for name in (mark, other):
            (inside / name).touch()
    unmarked, elsewhere = Path(tempfile.mkdtemp(prefix="pymp-")), folder / "target"
    elsewhere.mkdir()
    (elsewhere / mark).touch()
    (folder / "pymp-link").symlink_to(elsewhere)
    sweep.sweep()
    assert unmarked.exists() and (elsewhere / mark).exists()
    assert len(list(folder.glob("pymp-*/*"))) == 5  # two in each of the folders, and one behind the link


@pytest.mark.parametrize("change", [("sys.platform", "darwin"), ("os.readlink", lambda path: "1")])
def test_where_the_system_does_not_tell_nothing_is_removed(things, monkeypatch, change):
    """As on macOS, or where /proc is that of other process ids."""
    _, start, place = sweep.owner().split("-")
    owner = f"{ended_process()}-{start}-{place}"
    with monkeypatch.context() as patch:
        patch.setattr(*change)
        assert sweep.owner() == str(os.getpid())
        assert things(owner)
    assert not things(owner)


def test_a_forked_child_does_not_claim_its_parents_folder(folder):
    """The child ends, the parent goes on: the folder is the parent's, and stays."""
    script = """
        import os
        from multiprocess import util
        folder = util.get_temp_dir()      # before minidist is there: whose it is nobody can know
        if os.fork() == 0:
            import minidist as md
            md.launch(lambda world: None, 1)
            os._exit(0)
        os.wait()
        import minidist as md
        md.launch(lambda world: None, 1)
        print(os.path.isdir(folder))
        """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=LIMIT,
        env=os.environ | {"TMPDIR": str(folder)},
    )  # fmt: skip
    assert (result.stdout, result.stderr) == ("True\n", "")
