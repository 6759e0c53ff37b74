"""Ends a group's communication when a wait takes longer than its limit, as the watchdog thread of torch's NCCL backend
does.

Under ``minidist.launch`` the parent sees when a rank dies or the ranks are deadlocked. Here nobody sees all ranks.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.1


class Watchdog:
    """A thread that looks for waits beyond their limits.

    Args:
        on_expiry: what to call, from that thread and for the first such wait only, with what waited and its limit.
    """

    def __init__(self, on_expiry: Callable[[str, float], None]) -> None:
        self._on_expiry = on_expiry
        self._waits: dict[object, tuple[float, str, float]] = {}  # token -> when it expires, what waits, its limit
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
        self._thread.start()

    @contextmanager
    def limit(self, call: str, seconds: float) -> Iterator[None]:
        """Context manager around a wait in ``call``, for ``seconds`` at most."""
        token = object()
        self._waits[token] = (time.monotonic() + seconds, call, seconds)
        try:
            yield
        finally:
            del self._waits[token]

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            now = time.monotonic()
            for expires, call, seconds in list(self._waits.values()):
                if now > expires:
                    self._on_expiry(call, seconds)
                    return

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
