"""One run at a time saves in a folder: two would remove and overwrite each other's files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def claimed(folder: str | None) -> Iterator[None]:
    """Within it no other run may claim the folder. However this process ends, the claim ends with it.

    Args:
        folder: made if it is not there; None for nothing to claim.

    Raises:
        ValueError: if another run has claimed it.
    """
    if folder is None or fcntl is None:
        yield
        return
    os.makedirs(folder, exist_ok=True)
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another run is saving in {folder} at this moment: wait for its end, or choose another folder"
            ) from None
        yield
    finally:
        os.close(place)
