"""What README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
GRADING = README.parent / "docs" / "grading.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
TEXT = [text for language, text in BLOCKS if language == "text"]
LIMIT = 60


def run(tmp_path, name, code):
    script = tmp_path / name
    script.write_text(code)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LIMIT)


def test_launch(tmp_path):
    result = run(tmp_path, "ranks.py", PYTHON[0])
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[" + ", ".join(["array([6., 6., 6., 6.])"] * 4) + "]\n"


def test_warm_ranks(tmp_path):
    result = run(tmp_path, "warm.py", PYTHON[0] + PYTHON[1])
    assert result.returncode == 0, result.stderr


def test_deadlock(tmp_path):
    code = next(code for code in PYTHON if "md.recv" in code)
    shown = next(text for text in TEXT if "Deadlock" in text)
    result = run(tmp_path, "stuck.py", code)
    assert result.returncode == 1 and result.stderr.endswith(shown)


def test_files_that_are_named_exist():
    text = README.read_text(encoding="utf-8") + GRADING.read_text(encoding="utf-8")
    names = re.findall(r"`((?:minidist|tests|benchmarks|chapters|docs|exercises)/[\w/.]*)`", text)
    names += re.findall(r"\]\(((?:chapters|docs)/[\w/.]*)\)", text)
    assert len(names) > 20
    for name in names:
        if "NN_name" not in name:
            assert (README.parent / name).exists(), name


@pytest.mark.parametrize("command", ["train", "verify", "check", "grade"])
def test_options_that_are_named_exist(command):
    shown = subprocess.run(
        [sys.executable, "-m", "minidist.cli", command, "--help"], capture_output=True, text=True, timeout=LIMIT
    ).stdout
    text = README.read_text(encoding="utf-8") + GRADING.read_text(encoding="utf-8")
    lines = re.findall(rf"minidist {command} ([^`\n#]*)", text)
    options = {option for line in lines for option in re.findall(r"--[a-z-]+", line)}
    assert options and all(option in shown for option in options), options
