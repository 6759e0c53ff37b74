"""What ``kill -9`` leaves is removed at the next start of a Cluster, and what might belong to anybody else is not."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import multiprocess
import psutil
import pytest
from choosing import long
from scripts import LIMIT, running, segments_of, until

import minidist as md
from minidist.comm.runtime import sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who is gone: nothing is removed")


@pytest.fixture
def folder(scratch, monkeypatch):
    """Return the folder for temporary files of this process and of the scripts."""
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return scratch


def start_a_cluster() -> None:
    with md.Cluster(1, start_method="spawn") as cluster:  # which needs no folder of its own
        assert cluster.run(lambda world: world.size, timeout=LIMIT) == [1]


BODY = """
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


def test_what_a_killed_script_leaves_is_removed_and_what_a_living_one_has_stays(folder):
    """If all its processes are killed, nobody is left to remove it; if it alone is, its ranks and servers do. Once a
    run has begun all ranks have attached to the segment, so it needs no name."""
    for name, begun, kill in (("all", False, os.killpg), ("begun", True, os.killpg), ("parent", False, os.kill)):
        with running(folder, BODY.format(begun=begun), TMPDIR=str(folder)) as process:
            assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
            before = segments_of(process.pid), list(folder.glob("pymp-*"))
            assert (len(before[0]), len(before[1])) == (int(not begun), 1), name
            start_a_cluster()
            assert (segments_of(process.pid), list(folder.glob("pymp-*"))) == before and process.poll() is None, name
            kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=LIMIT)  # until the last rank has closed standard output
            if kill is os.killpg:
                assert list(folder.glob("pymp-*")) == before[1], name
                start_a_cluster()
            until(lambda: not segments_of(process.pid) and not list(folder.glob("pymp-*")))


def test_a_server_leaves_a_folder_that_others_use(folder):
    """A worker of multiprocess's Pool has the folder of its parent, and a server of its own in it."""
    its, parents = "minidist-7-7-0123abcd", "minidist-6-7-0123abcd"
    for names, left in ((its,), False), ((its, "listener-b"), True), ((), True), ((parents,), True):
        inside = Path(tempfile.mkdtemp(prefix="pymp-"))
        for name in ("listener-a", *names):
            (inside / name).touch()
        sweep.remove_socket(str(inside / "listener-a"), 7)
        assert inside.exists() == left and not (inside / "listener-a").exists(), names


@pytest.mark.parametrize("command", ["verify dp=2 tp=2 --interrupt --steps 900", long("check 3.5 --impl solutions")])
def test_the_scratch_folder_of_a_command_that_was_killed_is_removed(folder, command):
    """All processes of it at once, so that none cleans up behind another."""
    process = subprocess.Popen(
        [sys.executable, "-m", "minidist.cli", *command.split()], env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until(lambda: list(folder.glob("minidist-*")) or process.poll() is not None)
    assert process.poll() is None
    supervisors = [child for child in psutil.Process(process.pid).children() if "supervisor" in str(child.cmdline())]
    for each in (*supervisors, psutil.Process(process.pid)):
        each.kill()
    process.wait(LIMIT)
    until(lambda: start_a_cluster() or not list(folder.iterdir()))


# Owners, without their processes


def stays(folder: Path, owner: str) -> bool:
    """Make what carries this owner; whether a sweep leaves it: all of it, or nothing."""
    segment = Path(sweep.SHARED_MEMORY, f"minidist-{owner}-{os.urandom(3).hex()}")
    segment.touch()
    inside = Path(tempfile.mkdtemp(prefix="pymp-"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(inside / "sock-abc"))
    (inside / f"minidist-{owner}").touch()
    scratch = folder / f"minidist-{owner}-{os.urandom(4).hex()}"
    scratch.mkdir()
    (scratch / "data").touch()
    sweep.sweep()
    assert segment.exists() == inside.exists() == scratch.exists(), owner
    return segment.exists()


def test_only_what_certainly_is_nobodys_is_removed(folder, monkeypatch):
    """An owner is known by its id, its start and its place, where the system tells them: not on macOS, nor where /proc
    is that of other process ids. A folder with anything else in it stays, and what a link leads to."""
    monkeypatch.setattr(sweep, "SHARED_MEMORY", tempfile.mkdtemp(prefix="shm-"))  # where nobody else sweeps
    pid, start, place = sweep.owner().split("-")
    with subprocess.Popen(["true"]) as ended:
        gone = ended.pid
    assert int(pid) == os.getpid() and sweep.owner() == sweep.owner()
    for owner, expected in (
        (f"{pid}-{start}-{place}", True),
        (f"{gone}-{start}-{place}", False),
        (f"{pid}-{int(start) - 1}-{place}", False),  # the id is in use again: by us
        (f"1-{int(start) + 1}-{place}", False),  # or by somebody else
        (f"{gone}-{start}-00000000", True),  # a container's, or of a time before the machine's last start
        (f"{gone}", True),  # a name without a start and a place says too little
        (f"{gone}-{start}-{place}0", True),
        (f"x{gone}-{start}-{place}", True),
    ):
        assert stays(folder, owner) == expected, owner
    for where, name, value in (
        (sys, "platform", "darwin"), (os, "readlink", lambda path: "1"), (os, "geteuid", lambda: 12345),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            assert name == "geteuid" or sweep.owner() == pid
            assert stays(folder, f"{gone}-{start}-{place}"), name
    mark, elsewhere = f"minidist-{gone}-{start}-{place}", folder / "target"
    elsewhere.mkdir()
    (folder / "pymp-link").symlink_to(elsewhere)
    kept = [elsewhere / mark]
    for other in ("data", f"minidist-{sweep.owner()}"):
        inside = Path(tempfile.mkdtemp(prefix="pymp-"))
        kept += [inside / mark, inside / other]
    for file in kept:
        file.touch()
    sweep.sweep()
    assert all(file.exists() for file in kept)
    # A folder that is there already may be that of the process which forked this one: it gets no mark
    monkeypatch.setitem(multiprocess.current_process()._config, "tempdir", str(elsewhere))
    sweep.claim_temporary_folder()
    assert [*elsewhere.iterdir()] == [elsewhere / mark]
