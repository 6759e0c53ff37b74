"""Whatever a flag is given, and whatever the output can show: an answer in a sentence, at once, and no traceback."""

import argparse
import io
import os
import random
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from choosing import long
from clusters import Started, start_no_ranks
from scripts import python

from minidist.cli import main as cli

SECONDS = 120  # for one command that starts no rank: most take milliseconds
BASE = {  # of each command the arguments with which it would run
    "train": ["--steps", "2"],
    "verify": ["dp=2", "--steps", "2"],
    "checkpoint": ["{tmp}"],
    "failures": ["--gpus", "1024", "--simulate", "10"],
    "hardware": ["h100:2x8"],
    "plan": ["--model", "llama3-8b", "--cluster", "h100:8", "--batch", "8"],
    "scaling": ["--flops", "1e21"],
    "tokenizer": ["train", "{tmp}", "--vocab", "300"],
    "grade": ["{tmp}"],
    "demo": ["ring"],
}
DIGITS = "9" * 400
ABSURD = [
    "-1", "0", "-0", "1.5", "1e18", "1" + "0" * 18, "1e300", "1e400", "5e-324", "nan", "inf", "-inf", DIGITS, "", "x",
    "１", "\x1b[31mred", "a=b,c", "dp=1e9,tp=-3", "dp=" + DIGITS, "x" * 3000, "../../x", "/dev/null", "/nowhere/x",
    "h100:" + DIGITS, "h100:1000000000000000000", f"layers=1,heads=1,vocab=1,context=1,width={DIGITS}",
]  # fmt: skip
WRITES = ("save", "json", "trace", "png", "html", "gif", "svg", "out", "export")  # files: they have tests of their own


def cases_of(parser: argparse.ArgumentParser) -> list[tuple[str, str, str]]:
    """(command, flag or "" for what has none, value) for all that can be given."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [
        (name, action.option_strings[-1] if action.option_strings else "", value)
        for name in BASE
        for action in commands.choices[name]._actions
        if action.nargs != 0 and action.dest not in WRITES
        for value in ABSURD
    ]


def answer(arguments: list[str]) -> tuple[int | None, str]:
    """The exit status, None where a rank would start, and all that was printed."""
    printed = io.StringIO()

    def give_up(*_):
        raise TimeoutError(f"{arguments} has no end")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            return cli.main(arguments), printed.getvalue()
    except Started:
        return None, printed.getvalue()
    except SystemExit as error:
        return error.code, printed.getvalue()
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("share", [16, long(1)])
def test_every_flag_of_every_command(monkeypatch, tmp_path, share):
    start_no_ranks(monkeypatch)
    cases = cases_of(cli.build_parser())
    random.Random(share).shuffle(cases)
    for name, flag, value in cases[: len(cases) // share]:
        base = [part.format(tmp=tmp_path) for part in BASE[name]]
        arguments = [name, *base, f"{flag}={value}"] if flag else [name, value, *base[1:]]
        status, printed = answer(arguments)
        assert status in (None, 0, 1, 2), (arguments, status)
        assert "Traceback" not in printed and "\x1b[31mred" not in printed, (arguments, printed)
        assert status != 2 or "minidist" in printed, (arguments, printed)
        assert status != 0 or "nan" not in printed.lower().split(), (arguments, printed)
    status, printed = answer(f"plan --cluster h100:8 --batch 8 --model layers=1,width={DIGITS}".split())
    assert status == 2 and "width=99999999999999999999... (400" in printed and len(printed) < 1000


SIZES = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "8", "--global-batch", "6"]
MINIDIST = ["-m", "minidist.cli"]
TRAIN = ["train", "--dp", "3", "--steps", "1", *SIZES]
COMMANDS = [
    "plan --model llama3-8b --cluster h100:8 --batch-tokens 4M", "hardware", "hardware h100:2x8",
    "scaling --flops 1e21", "failures --gpus 1024 --spares 1 --repair-hours 72", "demo ring --scene naive",
    "train --steps 20 --tables " + " ".join(SIZES),
]  # fmt: skip


@pytest.mark.parametrize("encoding", ["cp1252", long("ascii"), long("shift_jis"), long("utf-16"), long("utf-8")])
@pytest.mark.parametrize("command", [COMMANDS[-1], *map(long, COMMANDS[:-1])])
def test_no_character_ends_a_command(monkeypatch, encoding, command):
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("COLUMNS", "0")  # of a terminal whose width nobody knows
    cli.print_in_any_encoding()
    assert cli.main(command.split()) == 0
    out.flush()
    shown = out.buffer.getvalue().decode(encoding)
    assert len(shown) > 200 and shown.count("?") < 20


@pytest.mark.long
def test_a_long_path_for_temporary_files_and_python_without_asserts(tmp_path):
    folder = tmp_path / ("d" * 90) / ("e" * 90)
    folder.mkdir(parents=True)
    assert python(*MINIDIST, *TRAIN, cwd=tmp_path, env=os.environ | {"TMPDIR": str(folder)}).returncode == 0
    assert list(folder.iterdir()) == []
    optimized = os.environ | {"PYTHONOPTIMIZE": "2"}
    done = python(*MINIDIST, "check", "3.1", "--impl", str(tmp_path), cwd=tmp_path, env=optimized)
    assert done.returncode in (1, 2) and "docstring" not in done.stderr  # graders have their asserts


def test_a_folder_that_is_gone(tmp_path):
    script = "import os; os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); from minidist.cli.main import main; main()"
    message = "minidist: the current folder has been removed: change to another one\n"
    found = python("-P", "-c", script, *TRAIN, cwd=tmp_path)  # else Python 3.13.0 looks for its own modules there
    assert found.stderr == message


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_too_few_open_files_is_one_error(tmp_path):
    import resource

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))

    done = python(*MINIDIST, *TRAIN, cwd=tmp_path, preexec_fn=few)
    assert done.returncode == 2 and "this process may have 20: allow more (ulimit -n 1024)" in done.stderr
    assert done.stderr.count("minidist: ") == 1 and "Traceback" not in done.stderr
