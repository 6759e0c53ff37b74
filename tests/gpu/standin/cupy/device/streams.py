"""Streams and events. The null stream computes at once, in NumPy; every other stream is a thread with a queue.

An array that another stream writes may not be touched until the null stream waits for an event behind that, and may not
be freed: both raise here, where a GPU would compute with wrong numbers now and then. And whoever puts work that reads
an array into another stream must let that stream wait for what the null stream has computed.
"""

import itertools
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary, ref

import numpy as np

from cupy.device.devices import current_device
from cupy.device.nccl_hub import LIMIT

_thread = threading.local()
_numbers = itertools.count(1)
by_pointer: WeakValueDictionary[int, "Stream"] = WeakValueDictionary()


class Mark:
    """A point in the queue of a stream."""

    def __init__(self, stream: "Stream", place: int) -> None:
        self.stream, self.place = stream, place
        self.reached = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        if not self.reached.wait(LIMIT):
            raise TimeoutError(f"nothing has come of stream {self.stream.ptr} for {LIMIT:g} s: on a GPU it hangs")
        if self.error is not None:
            raise self.error


class Event:
    def __init__(self, block=False, disable_timing=False, interprocess=False) -> None:
        self.mark: Mark | None = None

    @property
    def done(self) -> bool:
        reached = self.mark.reached.is_set()
        if reached:
            self.mark.stream.ordered(self.mark.place)
        return reached


@dataclass
class Use:
    """What work in a stream does with an array, until the null stream waits for it."""

    place: int  # in the stream's queue
    start: int
    stop: int
    written: bool
    array: ref  # to the device array that owns the memory


class Stream:
    """``Stream(non_blocking=True)``."""

    null: "Stream"

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None) -> None:
        if not null and not non_blocking:
            raise NotImplementedError("a stream that waits for the null stream, and lets it wait, by itself")
        self.ptr = 0 if null else 0x5000_0000 + next(_numbers)
        self.device_id = -1 if null else current_device()
        self.uses: list[Use] = []
        if null:
            self.awaited: list[Mark] = []  # of other streams, before the next computation
            return
        by_pointer[self.ptr] = self
        self.seen = -1  # how far the null stream was, as this stream has waited for
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self.place = 0  # of the last work
        threading.Thread(target=_work, args=(self._queue,), daemon=True).start()

    def __del__(self) -> None:
        if hasattr(self, "_queue"):
            self._queue.put(None)

    # Its queue

    def submit(self, work: Callable[[], None], uses: list[Use] = ()) -> None:
        self.place += 1
        self.uses += uses
        self._queue.put((work, None))

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        if self.ptr == 0:
            event.mark = Mark(self, _position())
            event.mark.reached.set()  # it computes at once
        else:
            event.mark = Mark(self, self.place)
            self._queue.put((None, event.mark))
        return event

    def wait_event(self, event: Event) -> None:
        mark = event.mark
        if self.ptr == 0:
            self.awaited.append(mark)
            mark.stream.ordered(mark.place)
        else:
            self.seen = mark.place  # of the null stream: the library has one other

    def synchronize(self) -> None:
        mark = self.record().mark
        mark.wait()
        self.ordered(mark.place)

    def ordered(self, place: int) -> None:
        """The null stream, or the host, comes after so much of this stream."""
        for use in [use for use in self.uses if use.place <= place]:
            self.uses.remove(use)
            if use.array() is None:
                raise RuntimeError("an array was freed while another stream used it: its memory is another's already")

    # The current stream

    def use(self) -> "Stream":
        if self.device_id not in (-1, current_device()):
            raise RuntimeError(f"the stream is of device {self.device_id}, and the current one is {current_device()}")
        _thread.stream = self
        return self

    def __enter__(self) -> "Stream":
        self._before = get_current_stream()
        return self.use()

    def __exit__(self, *_) -> None:
        _thread.stream = self._before


Stream.null = Stream(null=True)


def get_current_stream(device_id=-1) -> Stream:
    return getattr(_thread, "stream", Stream.null)


def _work(works: queue.SimpleQueue) -> None:
    """The thread of a stream. After an error nothing more runs."""
    error = None
    while (entry := works.get()) is not None:
        work, mark = entry
        if work is not None and error is None:
            try:
                work()
            except BaseException as problem:
                error = problem
        if mark is not None:
            mark.error = error
            mark.reached.set()


def _position() -> int:
    """How often this thread has computed on the null stream."""
    return getattr(_thread, "position", 0)


def check_seen(stream: Stream) -> None:
    """Work in a stream must come after what this thread has computed."""
    if stream.seen != _position():
        raise RuntimeError("the stream does not wait for what the null stream computes: wait_event is missing")


def before_use(memory: np.ndarray, device: int) -> None:
    """Called before anything is computed with an array."""
    if device != current_device():
        raise ValueError(f"the array is on device {device}, and the current one is {current_device()}")
    stream = get_current_stream()
    if stream.ptr:
        stream.record().mark.wait()  # computing in its turn
        return
    _thread.position = _position() + 1
    for mark in list(stream.awaited):
        mark.wait()
        with suppress(ValueError):  # another thread, whose null stream is the same, has waited too
            stream.awaited.remove(mark)
    for other in list(by_pointer.values()) if by_pointer else ():
        for use in other.uses if other.uses and memory.size else ():
            start, stop = np.lib.array_utils.byte_bounds(memory)
            if use.written and use.start < stop and start < use.stop:
                raise RuntimeError("another stream writes this array, and nothing waits for it: call Work.wait() first")
