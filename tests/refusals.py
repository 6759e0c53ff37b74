"""What is said of input that cannot be: files of lines ``INPUT => MESSAGE``, which are reviewed and compared.

INPUT is a command line that begins with ``minidist``, or an expression that raises an error, whose kind is told where
it is no ValueError; lines that begin with ``from`` import what expressions need, and test_refusals.py has the rest.
Where messages change on purpose, ``python tests/refusals.py`` writes the files anew; look at what git shows.
"""

import os
import runpy
import shlex
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from minidist.cli.main import main

ARROW = " => "
COLUMNS = "100"  # of the terminal


def refusal(source: str, names: dict) -> str:
    """The first line of what an input is refused with. Of a command it has to be the only one, with exit status 2."""
    if not source.startswith("minidist"):
        try:
            return f"NO ERROR: {eval(source, names)!r}"
        except Exception as error:
            kind = "" if isinstance(error, ValueError | KeyError) else f"{type(error).__name__}: "
            return kind + str(error.args[0]).partition("\n")[0]
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        try:
            status = main(shlex.split(source)[1:])
        except SystemExit as end:  # argparse has shown the usage, and then what is wrong
            return err.getvalue().rpartition(": error: ")[2].strip() if end.code == 2 else f"STATUS {end.code}"
    line, _, rest = err.getvalue().partition("\n")
    alone = status == 2 and line.startswith("minidist: ") and not rest and not out.getvalue()
    return line.removeprefix("minidist: ") if alone else f"STATUS {status}: {out.getvalue()!r} {err.getvalue()!r}"


def written_anew(file: Path, names: dict) -> str:
    """The file as the library writes it now."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        source = line.partition(ARROW)[0]
        if line.startswith("from "):
            exec(line, names)
        elif line and not line.startswith("#"):
            line = f"{source}{ARROW}{refusal(source, names)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def check_refusals(file: Path, names: dict, monkeypatch, folder: Path) -> None:
    """Fail with the lines of the file that the library would write otherwise; work in an empty folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", COLUMNS)
    known, now = (text.splitlines() for text in (file.read_text(encoding="utf-8"), written_anew(file, names)))
    both = zip(known, now, strict=True)
    differ = [f"{one}\n{' ' * 20} now{ARROW}{other.partition(ARROW)[2]}" for one, other in both if one != other]
    assert not differ, "\n".join(differ)


if __name__ == "__main__":
    os.environ["COLUMNS"] = COLUMNS
    here = Path(__file__).parent
    for file in sorted(here.glob("*/refusals.txt")):
        names = runpy.run_path(str(next(file.parent.glob("test_show_refusals.py"), here / "test_refusals.py")))
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            text = written_anew(file, names)
        file.write_text(text, encoding="utf-8")
