"""What a wheel has: the library and the course, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from minidist.course.stubs import release

ROOT = Path(__file__).parents[1]


def files(folder: Path) -> set[str]:
    """The paths of the files in a folder, from there."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name and "/." not in name}


@pytest.mark.long
def test_a_wheel_has_the_library_and_runs_outside_the_tree(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True)
    if "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("hatchling, which builds the wheel, cannot be had here")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path / "installed")
    release(tmp_path / "ours", solutions=True)
    course = files(tmp_path / "ours") - {f"minidist/{name}" for name in files(ROOT / "minidist")}
    handed_out = {name for name in course if not name.startswith("exercises/")}  # a release makes them anew
    assert {name.removeprefix("minidist/") for name in names} == files(ROOT / "minidist") | {
        f"clone/{name}" for name in handed_out
    }
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "PYTHONUTF8": "1"}

    def run(*arguments: str, folder: Path = tmp_path) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "minidist.cli", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")

    verified = run("verify", "dp=2", "tp=2,pp=2", "--steps", "2")
    assert verified.returncode == 0 and "match the single-process run bit for bit" in verified.stdout, verified.stderr
    assert "minidist release DIR writes the course" in run("check").stderr
    assert run("release", "theirs").returncode == 0
    assert files(tmp_path / "theirs") == files(tmp_path / "ours")
    checked = run("check", "3.1", folder=tmp_path / "theirs" / "chapters")
    assert checked.returncode == 1 and "to do" in checked.stdout, checked.stderr
