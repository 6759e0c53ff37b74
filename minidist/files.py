"""Files for other programs: replaced in one go, so that each holds its old content or its new; hashes; strict JSON."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from stat import S_IMODE


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a new file's path; what the ``with`` block writes there takes the place of ``path`` at the block's end.

    If the block fails, ``path`` stays as it was. The new file is next to it, has its suffix and gets its permissions.
    A terminal, a pipe or a device such as /dev/null has no content to keep: it is written directly.
    """
    if Path(path).exists() and not Path(path).is_file():
        yield Path(path)  # /dev/fd/63, as a shell writes a pipe, is a link to no path
        return
    target = Path(os.path.realpath(path))  # the file itself, where a link points to it
    new = target.with_name(f".new-{secrets.token_hex(4)}{target.suffix}")
    try:
        new.touch()
        mode = (target if target.exists() else new).stat().st_mode
        yield new
        new.chmod(S_IMODE(mode))
        new.replace(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def check_outside(path: str | os.PathLike, text: str | os.PathLike) -> None:
    """Raise ValueError for a path in a folder of documents: a file written there would become or change a document."""
    if Path(path).resolve().is_relative_to(Path(text).resolve()):
        raise ValueError(f"{path} is inside the text folder {text}, where minidist writes nothing: choose another path")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, read a part at a time: a mapped file would count as memory held."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def strict_json(content, indent: int | None = None) -> str:
    """Return JSON that every program reads: "inf" or "-inf" for an infinite number, null for NaN (RFC 8259)."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content):
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not isfinite(content):
        return None if content != content else str(content)
    return content
