"""Where the ranks of one communicator meet, in the process of rank 0, and what they make of what they find there."""

import threading
from contextlib import suppress
from functools import reduce
from multiprocessing.connection import Connection, Listener

import numpy as np

LIMIT = 120.0  # seconds of any wait
DTYPES = dict(enumerate(map(np.dtype, ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8"))))  # by NCCL's numbers
OPERATIONS = np.add, np.multiply, np.fmax, np.fmin


class Hub:
    """Ranks post values under names, and wait for those of others; for each rank there is a thread."""

    def __init__(self) -> None:
        self._listener = Listener(("127.0.0.1", 0))
        self.port = self._listener.address[1]
        self._changed = threading.Condition()
        self._posted: dict[tuple, list] = {}  # name -> how many will read it, the value
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            threading.Thread(target=self._serve, args=(self._listener.accept(),), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """Answer one rank, until it closes its connection: with what it waits for, or None if that never comes."""
        with suppress(EOFError, OSError):
            while True:
                posted, awaited = connection.recv()
                with self._changed:
                    self._posted |= posted
                    self._changed.notify_all()
                    there = self._changed.wait_for(lambda awaited=awaited: awaited <= self._posted.keys(), LIMIT)
                    answer = {name: self._read(name) for name in awaited} if there else None
                connection.send(answer)

    def _read(self, name: tuple):
        self._posted[name][0] -= 1
        readers, value = self._posted[name]
        if readers == 0:
            del self._posted[name]
        return value


def result(name: str, contents: list[bytes | None], rank: int, datatype: int, op: int | None, root: int) -> bytes:
    """Return what a rank gets. Sums are in the order of a ring: each of N chunks begins at another rank."""
    if name == "broadcast":
        return contents[root]
    if name == "allGather":
        return b"".join(contents)
    size = len(contents)
    ranks = [np.array_split(np.frombuffer(content, DTYPES[datatype]), size) for content in contents]
    with np.errstate(all="ignore"):
        total = np.concatenate(
            [reduce(OPERATIONS[op], [ranks[(n + step) % size][n] for step in range(1, size + 1)]) for n in range(size)]
        )
    return (np.split(total, size)[rank] if name == "reduceScatter" else total).tobytes()
