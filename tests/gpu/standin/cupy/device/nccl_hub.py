"""Where the ranks of one communicator meet: a thread for each rank, in the process of rank 0."""

import threading
from collections import deque
from multiprocessing.connection import Connection, Listener

import numpy as np

from cupy.device.streams import LIMIT


class HangsOnAGPU(RuntimeError):
    """Ranks call different things. NCCL does not notice."""


class Hub:
    def __init__(self) -> None:
        self._listener = Listener(("127.0.0.1", 0))
        self.port = self._listener.address[1]
        self._changed = threading.Condition()
        self._devices: dict[int, str] = {}  # rank -> its device
        self._calls: dict[int, dict[int, tuple]] = {}  # number -> rank -> its call
        self._mail: dict[tuple[int, int], deque[bytes]] = {}  # (source, destination) -> messages
        self._size = 1
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        count = 0
        while count < self._size:
            connection = self._listener.accept()
            self._size, rank, device = connection.recv()
            threading.Thread(target=self._serve, args=(connection, rank, device), daemon=True).start()
            count += 1
        self._listener.close()

    def _serve(self, connection: Connection, rank: int, device: str) -> None:
        """Answer one rank, until it closes its connection."""
        answers = {"collective": self._collective, "exchange": self._exchange}
        number = 0
        try:
            connection.send(self._join(rank, device))
            while True:
                kind, *question = connection.recv()
                try:
                    answer = 0, answers[kind](rank, number, *question)
                except (HangsOnAGPU, TimeoutError) as error:
                    answer = "hangs", str(error)
                number += kind == "collective"
                connection.send(answer)
        except (EOFError, OSError):
            pass

    def _join(self, rank: int, device: str) -> tuple[int, str]:
        with self._changed:
            if rank in self._devices:
                return 4, f"two ranks {rank}"
            self._devices[rank] = device
            self._changed.notify_all()
            self._wait(lambda: len(self._devices) == self._size)
            devices = list(self._devices.values())
        twice = {device for device in devices if devices.count(device) > 1}
        return (5, f"Duplicate GPU detected: {twice}") if twice else (0, "")

    def _wait(self, is_over) -> None:
        if not self._changed.wait_for(is_over, LIMIT):
            raise TimeoutError("a rank never comes")

    def _collective(self, rank: int, number: int, name: str, arguments: tuple, content: bytes | None) -> bytes | None:
        with self._changed:
            calls = self._calls.setdefault(number, {})
            calls[rank] = name, arguments, content
            self._changed.notify_all()
            self._wait(lambda: len(calls) == self._size)
            self._calls.pop(number, None)
        kinds = {(name, arguments) for name, arguments, _ in calls.values()}
        lengths = {len(content) for _, _, content in calls.values() if content is not None}
        if len(kinds) > 1 or len(lengths) > 1:
            raise HangsOnAGPU(f"ranks call different things: {sorted(kinds)}, {sorted(lengths)} bytes")
        return result(name, arguments, [calls[r][2] for r in range(self._size)], rank)

    def _exchange(self, rank: int, number: int, outgoing: dict[int, bytes], incoming: dict[int, int]) -> dict:
        found = {}
        with self._changed:
            for peer, content in outgoing.items():
                self._mail.setdefault((rank, peer), deque()).append(content)
            self._changed.notify_all()
            for peer, size in incoming.items():
                mail = self._mail.setdefault((peer, rank), deque())
                self._wait(lambda mail=mail: mail)
                found[peer] = mail.popleft()
                self._changed.notify_all()
                if len(found[peer]) != size:
                    raise HangsOnAGPU(
                        f"rank {peer} sends {len(found[peer])} bytes to rank {rank}, which expects {size}"
                    )
            self._wait(lambda: not any(self._mail[rank, peer] for peer in outgoing))  # a send waits for its receive
        return found


def result(name: str, arguments: tuple, contents: list[bytes | None], rank: int) -> bytes | None:
    """What a rank gets. ``arguments`` begin with the dtype and go on with operation or bytes, and the root."""
    size = len(contents)
    if name == "broadcast":
        return contents[arguments[2]]
    if name == "allGather":
        return b"".join(contents)
    total = combined(arguments[0], arguments[1], contents)
    if name == "reduceScatter":
        return total.reshape(size, -1)[rank].tobytes()
    return None if name == "reduce" and rank != arguments[2] else total.tobytes()


def combined(datatype: int, op: int, contents: list[bytes]) -> np.ndarray:
    """In the order of a ring: each of N chunks begins at another rank."""
    from cupy.device.nccl import DTYPES, NCCL_MAX, NCCL_MIN, NCCL_PROD, NCCL_SUM

    functions = {NCCL_SUM: np.add, NCCL_PROD: np.multiply, NCCL_MIN: np.fmin, NCCL_MAX: np.fmax}
    size = len(contents)
    ranks = [np.array_split(np.frombuffer(content, DTYPES[datatype]), size) for content in contents]
    chunks = []
    for place in range(size):
        chunk = ranks[(place + 1) % size][place].copy()
        for step in range(2, size + 1):
            with np.errstate(all="ignore"):
                functions[op](chunk, ranks[(place + step) % size][place], out=chunk)
        chunks.append(chunk)
    return np.concatenate(chunks)
