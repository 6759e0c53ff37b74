"""Where the commands write: the console, for people, and the files that flags name."""

import json
import os
from contextlib import contextmanager

from rich.console import Console


class _OurConsole(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with status 1, which says that a fingerprint differs


def console_of(options) -> Console:
    """Where people read: standard output, unless that belongs to the JSON."""
    return terminal_console(stderr=options.json == "-")


def terminal_console(stderr: bool = False) -> Console:
    """A console that writes what it is given as it is."""
    return _OurConsole(stderr=stderr, highlight=False, markup=False)


def check_outputs(paths: dict[str, str | None], text: str | None) -> None:
    """Raise ValueError now rather than after an hour of training."""
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
        with telling(flag, path):
            is_new = not os.path.exists(path)
            open(path, "a").close()
            if is_new:
                os.remove(path)  # a run that fails leaves nothing behind


def write_json(path: str | None, content: dict) -> None:
    if path == "-":
        print(json.dumps(content, indent=1))
    elif path:
        with telling("json", path), open(path, "w") as file:
            json.dump(content, file, indent=1)


@contextmanager
def telling(flag: str, path: str):
    """Have an error of writing name the flag and the file."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"--{flag}: cannot write {path!r}: {error.strerror}") from None
