"""The works that calls return to torch: ``torch.distributed.Work``, on top of minidist's.

Python waits with ``wait``. DDP is written in C++ and waits for the future.
"""

from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from minidist import comm
from minidist.pytorch.channel import Channel

NO_TIMEOUT = timedelta(0)  # torch's own value for the timeout of the group


class CollectiveWork(dist.Work):
    """A collective in flight in the background: ``body`` writes into ``tensors``, which the future yields."""

    def __init__(self, channel: Channel, call: str, body: Callable[[], object], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._channel, self._call, self._tensors = channel, call, tensors
        self._error: Exception | None = None
        self._ended = torch.futures.Future()
        # An exception that a future is given in Python stays invisible to C++, unlike one that a callback raises.
        self._future = self._ended.then(self._outcome)

        def run() -> None:
            channel.running_in_background()
            try:
                with channel.limited(call), np.errstate(all="ignore"):  # torch does not warn of an overflow either
                    body()
            except Exception as error:
                self._error = error
            self._ended.set_result(None)

        self._work = channel.start(call, run)

    def _outcome(self, _: torch.futures.Future | None = None) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors

    def is_completed(self) -> bool:
        return self._ended.done()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        if self._work is not None and not self.is_completed():
            if self._channel.in_background:
                raise RuntimeError(
                    f"{self._call} has not begun, and a callback of another collective's future waits for it, in the "
                    "thread that should carry it out: wait outside of the callback"
                )
            with self._channel.limited(self._call, timeout.total_seconds() or None):
                self._channel.admit()
                self._work.wait()
        self._outcome()
        return True

    def get_future(self) -> torch.futures.Future:
        return self._future

    def result(self) -> list[torch.Tensor]:
        return self._outcome()


class MessageWork(dist.Work):
    """A message in flight. It has no future: nothing moves it while nobody waits."""

    def __init__(self, channel: Channel, call: str, work: comm.Work, peer: int) -> None:
        super().__init__()
        self._channel, self._call, self._work, self._peer = channel, call, work, peer

    def is_completed(self) -> bool:
        self._channel.admit()
        return self._work.is_completed()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        with self._channel.limited(self._call, timeout.total_seconds() or None):
            self._channel.admit()
            return self._work.wait()

    def source_rank(self) -> int:
        return self._peer
