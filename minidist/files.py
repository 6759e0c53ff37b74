"""Replaces files in one go: at any moment a file holds either its old content or its new."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a new file's path; what the ``with`` block writes there takes the place of ``path`` at the block's end.

    If the block fails, ``path`` stays as it was. The new file is next to it, has its suffix and gets its permissions.
    A terminal, a pipe or a device such as /dev/null has no content to keep: it is written directly.
    """
    target = Path(os.path.realpath(path))  # the file itself, where a link points to it
    if target.exists() and not target.is_file():
        yield target
        return
    new = target.with_name(f".new-{secrets.token_hex(4)}{target.suffix}")
    try:
        yield new
        if target.exists():
            shutil.copymode(target, new)
        new.replace(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
