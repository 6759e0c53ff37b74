"""Output of the commands: a console for people, and the files that flags name."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from minidist.files import check_outside, replacing, strict_json

# printed if two runs differ, and no longer do when they are run again
NOT_REPRODUCED = "agrees when run again: this layout does not reproduce its own bits, as with a race between ranks"
BAR = 24  # characters


class _OurConsole(Console):
    def render_str(self, text: str, **options) -> Text:
        return super().render_str(printable(text), **options)


def printable(text: str) -> str:
    """Replace control characters: a name in somebody's file must not take over the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def titled(title: str, left: Iterable[str] = (), right: Iterable[str] = (), **options) -> Table:
    """Return a table without rows: columns of text, then columns of numbers.

    Args:
        left, right: headings of the columns.
        options: arguments of each Column.
    """
    columns = [Column(heading, **options) for heading in left]
    columns += [Column(heading, justify="right", **options) for heading in right]
    return Table(*columns, title=title, title_justify="left")


def bar(share: float) -> str:
    """Return a bar of BAR characters for a share of 1, and of twice as many at most."""
    return "█" * max(1, round(min(share, 2) * BAR)) if share > 0 else ""


def console_of(options) -> Console:
    """Return the console for people: standard output, or standard error if the JSON goes to standard output."""
    return terminal_console(stderr=options.json == "-")


def terminal_console(stderr: bool = False) -> Console:
    """Return a console without markup or highlighting."""
    return _OurConsole(stderr=stderr, highlight=False, markup=False)


def check_outputs(
    paths: dict[str, str | None], text: str | None = None, tokenizer: str | None = None, **folders: str | None
) -> None:
    """Check that every file can be written, before training rather than after an hour of it.

    Args:
        paths: flag -> file to write.
        text, tokenizer: files that are read and must not be overwritten.
        folders: flag -> folder that is written too. It must differ from the others; its writer checks the rest.

    Raises:
        ValueError: naming the flag and the problem.
    """
    files = {flag: path for flag, path in paths.items() if path is not None and (flag, path) != ("json", "-")}
    written = {f"--{flag}": path for flag, path in (files | folders).items() if path is not None}
    named = written | {
        name: path for name, path in (("the text", text), ("the tokenizer", tokenizer)) if path is not None
    }
    if len({os.path.realpath(path) for path in named.values()}) < len(named):
        *others, last = named
        raise ValueError(f"{', '.join(others)} and {last} must be different files")
    for flag, path in files.items():
        if path == "-":
            raise ValueError(f"--{flag} needs a file; only --json takes - for standard output")
    if text is not None:
        for path in written.values():
            check_outside(path, text)
    for flag, path in files.items():
        if flag in ("png", "gif", "svg") and not path.lower().endswith(f".{flag}"):
            raise ValueError(f"--{flag}: {path} must end in .{flag}")
        with errors_naming(flag, path):
            if Path(path).is_fifo():
                continue  # its reader would take closing it for the end
            target = os.path.realpath(path)  # the file itself, if the path is a link
            is_new = not os.path.exists(target)
            open(target, "a", encoding="utf-8").close()
            if is_new:
                os.remove(target)  # so that a run that fails leaves no empty file
            elif os.path.isfile(target):  # a new file will replace it, so the folder must have room for one more
                tempfile.TemporaryFile(dir=os.path.dirname(target)).close()


@dataclass(frozen=True)
class Output:
    """A file that a flag may ask for.

    Attributes:
        flag: the flag without its dashes.
        path: path of the file; None if it was not asked for, "-" for standard output, if the flag allows that.
        write: function that writes it to a file.
        told: line to print once it is written; "" for none.
    """

    flag: str
    path: str | None
    write: Callable[[Path], object]
    told: str = ""


def json_output(path: str | None, content: dict) -> Output:
    """Return the Output of ``--json``."""

    def write(to: Path) -> None:
        text = strict_json(content, indent=1)
        if path == "-":
            print(text, flush=True)
        else:
            to.write_text(text, encoding="utf-8")

    return Output("json", path, write)


@contextmanager
def written_last(console: Console, *outputs: Output) -> Iterator[None]:
    """Context manager: write files after what is printed inside, even if its reader stops early, as ``| head`` does.

    Arguments and errors: see ``write_outputs``.
    """
    try:
        yield
    finally:
        write_outputs(console, *outputs)


def write_outputs(console: Console, *outputs: Output) -> None:
    """Write the files that were asked for. Call it last: a full disk should cost the file, not the results on screen.

    A file that cannot be written keeps its old content; the others are still written.

    Raises:
        ValueError: naming the flags and files that could not be written.
    """
    problems, written = [], []
    for output in outputs:
        if output.path == "-":
            output.write(Path("-"))
        elif output.path is not None:
            try:
                with errors_naming(output.flag, output.path), replacing(output.path) as new:
                    output.write(new)
            except ValueError as error:
                problems.append(str(error))
            else:
                written.append(output)
    for output in written:
        if output.told:
            console.print(output.told, soft_wrap=True)
    if problems:
        raise ValueError("\n".join(problems))


@contextmanager
def errors_naming(flag: str, path: str):
    """Turn an OSError inside the ``with`` block into a ValueError that names the flag and the file."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"--{flag}: cannot write {path!r}: {error.strerror}") from None
