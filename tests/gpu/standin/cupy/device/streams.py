"""Streams and events. The null stream computes at once, in NumPy; every other stream is a thread with a queue.

An array that another stream writes may not be touched until the null stream waits for an event behind that, and may not
be freed: both raise here, where a GPU would compute with wrong numbers now and then. And whoever puts work that reads
an array into another stream must let that stream wait for what the null stream has computed.
"""

import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from weakref import WeakValueDictionary

import numpy as np

from cupy.device.devices import current_device
from cupy.device.nccl_hub import LIMIT

_numbers = itertools.count(1)
by_pointer: WeakValueDictionary[int, "Stream"] = WeakValueDictionary()  # all but the null stream


class Thread(threading.local):
    stream: "Stream | None" = None
    position = 0  # how often this thread has computed on the null stream


_thread = Thread()


class Event:
    """A point in the queue of a stream, which records it."""

    stream: "Stream"
    place: int  # in the queue
    work: Future  # the last one before it

    def __init__(self, block=False, disable_timing=False, interprocess=False) -> None: ...

    @property
    def done(self) -> bool:
        done = self.work.done()
        if done:
            self.stream.ordered(self.place)
        return done


class Stream:
    """``Stream(non_blocking=True)``."""

    null: "Stream"

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None) -> None:
        if not null and not non_blocking:
            raise NotImplementedError("a stream that waits for the null stream, and lets it wait, by itself")
        self.ptr = 0 if null else 0x5000_0000 + next(_numbers)
        self.device_id = -1 if null else current_device()
        self.last: Future = Future()  # the last work
        self.last.set_result(None)
        self.awaited: list[Event] = []  # of other streams, before the next computation of the null stream
        self.uses: list[tuple] = []  # (place of the work, span, whether it is written), until the null stream waits
        if null:
            return
        by_pointer[self.ptr] = self
        self.seen = -1  # how far the null stream was, as this stream has waited for
        self.place = 0  # of the last work in the queue
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._queue,), daemon=True).start()

    def __del__(self) -> None:
        if hasattr(self, "_queue"):
            self._queue.put(None)

    # Its queue

    def submit(self, work: Callable[[], None], read: list, written: list) -> None:
        """Put work into the queue that reads and writes these spans of memory."""
        if self.seen != _thread.position:
            raise RuntimeError("the stream does not wait for what the null stream computes: wait_event is missing")
        self.place += 1
        spans = [(self.place, span, False) for span in read] + [(self.place, span, True) for span in written]
        self.uses += [use for use in spans if use[1].allocated_on != self.ptr]  # its own only it gets again
        self.last = Future()
        self._queue.put((work, self.last))

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.stream, event.work = self, self.last
        event.place = self.place if self.ptr else _thread.position
        return event

    def wait_event(self, event: Event) -> None:
        if self.ptr == 0:
            self.awaited.append(event)
            event.stream.ordered(event.place)
        else:
            self.seen = event.place  # of the null stream: the library has one other

    def synchronize(self) -> None:
        self.last.result(LIMIT)
        self.ordered(self.place)

    def ordered(self, place: int) -> None:
        """The null stream, or the host, comes after so much of this stream."""
        for use in [use for use in self.uses if use[0] <= place]:
            self.uses.remove(use)
            if use[1].owner() is None:
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
    return _thread.stream or Stream.null


def _work(works: queue.SimpleQueue) -> None:
    """The thread of a stream. After an error nothing more runs."""
    error = None
    while (entry := works.get()) is not None:
        work, done = entry
        try:
            if error is None:
                work()
        except BaseException as problem:
            error = problem
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def before_use(memory: np.ndarray, device: int) -> None:
    """Called before anything is computed with an array."""
    if device != current_device():
        raise ValueError(f"the array is on device {device}, and the current one is {current_device()}")
    stream = get_current_stream()
    if stream.ptr:
        return stream.last.result(LIMIT)  # computing in its turn
    _thread.position += 1
    for event in list(stream.awaited):
        event.work.result(LIMIT)
        with suppress(ValueError):  # another thread, whose null stream is the same, has waited too
            stream.awaited.remove(event)
    for other in list(by_pointer.values()) if by_pointer else ():
        for _, span, written in other.uses if other.uses and memory.size else ():
            start, stop = np.lib.array_utils.byte_bounds(memory)
            if written and span.start < stop and start < span.stop:
                raise RuntimeError("another stream writes this array, and nothing waits for it: call Work.wait() first")
