"""Refuses ways to pass data between ranks other than messages: files, sockets, shared memory."""

import os
import sys
from contextlib import contextmanager

from minidist.course.sandbox.violations import Tampering

try:
    import _posixshmem  # what opens shared memory, unheard by audit hooks
except ImportError:  # on Windows
    _posixshmem = None

EVENTS = {"socket.bind", "socket.connect", "socket.sendto", "mmap.__new__", "os.mkdir", "os.rename", "os.link"}
EVENTS |= {"os.symlink", "os.mkfifo", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

_refusing = False


@contextmanager
def no_side_channels():
    """Refuse them in this process inside the ``with`` block: the score counts messages alone.

    Raises:
        Tampering: for a call that is refused.
    """
    global _refusing
    _refusing = True
    writes_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # the answer's first import of a module writes no file
    shm_open = getattr(_posixshmem, "shm_open", None)
    if shm_open is not None:
        _posixshmem.shm_open = lambda *_, **__: _refuse("shared memory")  # before there is a segment to remove
    try:
        yield
    finally:
        _refusing = False
        sys.dont_write_bytecode = writes_bytecode
        if shm_open is not None:
            _posixshmem.shm_open = shm_open


def _audit(event: str, arguments: tuple) -> None:
    if not _refusing:
        return
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if writes or event in EVENTS:
        _refuse(event)


def _refuse(channel: str) -> None:
    raise Tampering(f"the answer passes data on with {channel}: only messages count, so only messages may be used")


sys.addaudithook(_audit)
