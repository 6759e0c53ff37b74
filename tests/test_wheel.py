"""What a wheel has: all of the library, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]


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
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "minidist").rglob("*") if path.is_file()}
    assert names == {name for name in files if "__pycache__" not in name}
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "PYTHONUTF8": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "minidist.cli", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8")

    verified = run("verify", "dp=2", "tp=2,pp=2", "--steps", "2")
    assert verified.returncode == 0 and "match the single-process run bit for bit" in verified.stdout, verified.stderr
    checked = run("check")
    assert checked.returncode and str(tmp_path) in checked.stderr and "clone minidist's whole" in checked.stderr
