"""The loader: a process for each rank that prepares the micro-batches of the next steps while the rank computes.

It reads requests from its standard input and writes samples to its standard output, both as pickles, one after the
other. So it ends by itself when the rank is gone, however that ended. The content of a batch is a function of the step
(data/order.py), so it can be requested before it is needed, and nothing has to be saved. Only the rank that computes a
micro-batch may change in between, when the batch grows or is dealt out anew; then the prepared ones are thrown away.

(In torch: a ``DataLoader`` with ``num_workers=1`` and this many batches to prefetch.)
"""

import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

from minidist.comm.runtime.starting import interrupts_held
from minidist.nn.data import MicroBatch
from minidist.train.config import TrainConfig
from minidist.train.hooks import StepHook
from minidist.train.share import Share, batch_of, corpus_of

Numbers = tuple[int | None, ...]
ROOM = 2048  # bytes that a pipe holds on every system


class Loader(StepHook):
    """Hook that gives a rank its micro-batches out of a loader process.

    Args:
        config: the run's settings; no step from ``config.steps`` on is requested.
        ahead: the most steps to prepare beyond the current one; fewer if the pipes hold fewer.
    """

    def __init__(self, config: TrainConfig, ahead: int) -> None:
        self.config, self.ahead = config, ahead
        self.asked: deque[tuple[int, Numbers]] = deque()
        command = [sys.executable, "-m", __name__]
        with interrupts_held():  # it ends with its rank
            self.process = process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin and process.stdout
        self.requests, self.answers = process.stdin, process.stdout
        self._send(config)

    def begin_run(self, share: Share) -> None:
        share.prepared = self.batch

    def batch(self, step: int, numbers: Sequence[int | None]) -> list[MicroBatch]:
        """Return the micro-batches of a step, by their numbers, in host memory."""
        wanted = step, tuple(numbers)
        while self.asked and self.asked[0] != wanted:
            self.asked.popleft()
            self._receive()
        # If requests filled their pipe while samples fill theirs, the two processes would wait for each other.
        ahead = min(self.ahead, ROOM // len(pickle.dumps(wanted)))
        for later in range(step + len(self.asked), min(step + ahead + 1, self.config.steps)):
            self.asked.append((later, wanted[1]))
            self._send(self.asked[-1])
        self.asked.popleft()
        return self._receive()

    def _send(self, what: object) -> None:
        pickle.dump(what, self.requests)
        self.requests.flush()

    def _receive(self) -> list[MicroBatch]:
        try:
            found = pickle.load(self.answers)
        except EOFError:
            raise RuntimeError(f"the loader has ended, with exit status {self.process.wait()}") from None
        if isinstance(found, Exception):
            raise found
        return found

    def end_run(self) -> dict:
        self.requests.close()
        self.answers.close()
        self.process.wait()
        return {}


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Read the run's config, then answer requests, (step, numbers) each, until the rank is gone."""
    with suppress(EOFError, BrokenPipeError):
        config, corpus = pickle.load(requests), None
        while True:
            step, numbers = pickle.load(requests)
            try:
                corpus = corpus or corpus_of(config)
                found = [batch_of(corpus, config, step, number) for number in numbers]
            except Exception as error:  # a text that has changed, say: the rank raises it
                found = error
            pickle.dump(found, answers)
            answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
