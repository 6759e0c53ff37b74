"""Do the tests find bugs? Sixty of them, one at a time: ``python tests/library_mutants.py [PACKAGE ...]``.

Each of library_mutants.toml is put into a copy of the tree, and the tests that should find it run there until one
fails. A line that is no longer in the library is an error: write another bug in its place.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
NONE = 5  # pytest's exit status where no test was chosen
TESTS = {  # of each package, the nearest first
    "comm": ["comm", "gpu", "parallel"],
    "nn": ["nn", "test_refusals.py", "parallel", "gpu"],
    "parallel": ["parallel", "test_refusals.py", "train", "verify", "analysis"],
    "train": ["train", "test_refusals.py", "verify", "parallel", "test_cli.py"],
    "plan": ["plan", "test_refusals.py", "test_plan_command.py", "test_failures_command.py", "test_ledger.py"],
    "course": ["course", "test_refusals.py", "challenges"],
}


def found_by(tree: Path, folders: list[str]) -> str:
    """The first test that fails, of the short tests and then of the long ones; "" if none does."""
    for which, folder in product(([], ["--all", "--fresh", "-m", "long"]), folders):
        options = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", *which]
        command = [sys.executable, "-m", "pytest", *options, f"tests/{folder}"]
        environment = os.environ | {"PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if lines:
            return lines[0].split(" - ")[0]
        if done.returncode not in (0, NONE):
            raise SystemExit(f"pytest cannot run:\n{done.stdout}{done.stderr}")
    return ""


def main(packages: list[str]) -> int:
    mutants = tomllib.loads((ROOT / "tests" / "library_mutants.toml").read_text())
    survived = 0
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "tree")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".*_cache", "__pycache__"))
        for package in packages or mutants:
            for number, mutant in enumerate(mutants[package], 1):
                file = tree / "minidist" / package / mutant["file"]
                text = file.read_text()
                if text.count(mutant["line"]) != 1:
                    raise SystemExit(f"{package} {number}: {mutant['file']} has no longer the line {mutant['line']}")
                file.write_text(text.replace(mutant["line"], mutant["becomes"]))
                test = found_by(tree, TESTS[package])
                file.write_text(text)
                survived += not test
                print(f"{package} {number:2}: {test or 'SURVIVED'}  ({mutant['becomes']})", flush=True)
    print(f"{survived} survived")
    return survived > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
