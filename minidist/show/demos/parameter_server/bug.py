"""A parameter server with one bug: it applies and counts a gradient twice if it arrives twice.

A lost acknowledgement makes a worker send its gradient again. Li et al. (OSDI 2014, section 4.5) say of their server:
"Due to delays, failures, and lost acknowledgements N may send messages twice". Theirs knows from vector clocks what it
received, and rejects the copy. Here all acknowledgements to the last worker are lost, and nothing is rejected.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

from minidist.parallel.axis import use_grad_views
from minidist.parallel.loosened import arrivals, server
from minidist.parallel.loosened.arrivals import may_begin
from minidist.parallel.loosened.server import AsynchronousServer
from minidist.show.demos.parameter_server.watched import train_watched
from minidist.train import share
from minidist.train.share import AsynchronousShare

BUG = "the last worker's gradients arrive twice, and the server also applies and counts the copies"


def counted_twice(clocks: Sequence[int], worker: int, bound: float) -> bool:
    """Return whether a worker may begin, by ``may_begin``, if each of the last worker's gradients is counted twice.

    The last worker itself is judged by its true clock: else it would wait forever for others that have no steps left.
    """
    last = clocks[-1] if worker == len(clocks) - 1 else 2 * clocks[-1]
    return may_begin([*clocks[:-1], last], worker, bound)


class CreditedTwice(AsynchronousServer):
    """Server that takes every gradient of the last worker and then its copy, and answers only then."""

    copy = False  # whether a copy comes next

    def sync_gradients(self) -> None:
        if self.copy:
            self.pushes_taken.append(replace(self.pushes_taken[-1], found=self.version))
            use_grad_views(self.parameters, self.inboxes[self.last])
            self.waiting.append(self.last)
            self.copy = False
            return
        super().sync_gradients()
        if self.last == self.workers[-1]:
            self.waiting.remove(self.last)
            self.copy = True


def rates_with_copies(self: AsynchronousShare, lr: float) -> Iterator[float]:
    """Yield the rates of ``AsynchronousShare.learning_rates``, with one more for the update of each copy."""
    axis = self.model.axes[0]
    assert isinstance(axis, CreditedTwice)
    for _ in axis.workers:
        yield lr / len(axis.workers)
        if axis.copy:
            yield lr / len(axis.workers)


def with_copies() -> ExitStack:
    """Return a context manager: inside, seeded orders and asynchronous servers count copies of gradients."""
    stack = ExitStack()
    for module in (arrivals, server):
        stack.enter_context(patch.object(module, "may_begin", counted_twice))
    stack.enter_context(patch.object(share, "AsynchronousServer", CreditedTwice))
    stack.enter_context(patch.object(AsynchronousShare, "learning_rates", rates_with_copies))
    return stack


def train_with_copies(*arguments):
    """Run ``train_watched`` with the bug: the server applies and counts copies of gradients."""
    with with_copies():
        return train_watched(*arguments)
