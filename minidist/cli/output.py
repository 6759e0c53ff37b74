"""Output of the commands: a console for people, and the files that flags name."""

import json
import os
from contextlib import contextmanager

from rich.console import Console

# what to print where two runs differ, and no longer do when they are run again
NOT_REPRODUCED = "agrees when run again: this layout does not reproduce its own bits, as with a race between ranks"


class _OurConsole(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with status 1, which means that a fingerprint differs


def console_of(options) -> Console:
    """The console for people: standard output, or standard error if the JSON goes to standard output."""
    return terminal_console(stderr=options.json == "-")


def terminal_console(stderr: bool = False) -> Console:
    """A console without markup or highlighting."""
    return _OurConsole(stderr=stderr, highlight=False, markup=False)


def check_outputs(paths: dict[str, str | None], text: str | None) -> None:
    """Check that every file can be written, before training rather than after an hour of it.

    Raises:
        ValueError: naming the flag and the problem.
    """
    files = {flag: path for flag, path in paths.items() if path is not None and (flag, path) != ("json", "-")}
    places = [os.path.realpath(path) for path in [*files.values(), text] if path is not None]
    if len(set(places)) < len(places):
        flags = [f"--{flag}" for flag in files] + ["--text"] * (text is not None)
        raise ValueError(f"{', '.join(flags)} must be different files")
    for flag, path in files.items():
        if path == "-":
            raise ValueError(f"--{flag} needs a file; only the JSON of train and verify goes to standard output")
        if flag in ("png", "gif") and not path.lower().endswith(f".{flag}"):
            raise ValueError(f"--{flag}: {path} must end in .{flag}")
        with errors_naming(flag, path):
            is_new = not os.path.exists(path)
            open(path, "a").close()
            if is_new:
                os.remove(path)  # so that a run that fails leaves no empty file


def write_json(path: str | None, content: dict) -> None:
    if path == "-":
        print(json.dumps(content, indent=1))
    elif path:
        with errors_naming("json", path), open(path, "w") as file:
            json.dump(content, file, indent=1)


@contextmanager
def errors_naming(flag: str, path: str):
    """Turn an OSError inside the ``with`` block into a ValueError that names the flag and the file."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"--{flag}: cannot write {path!r}: {error.strerror}") from None
