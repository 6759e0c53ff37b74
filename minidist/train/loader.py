"""A process beside a rank that prepares the micro-batches of the next steps while the rank computes.

It reads requests from its standard input and writes samples to its standard output, both as pickles, one after the
other. So it ends by itself when the rank is gone, however that ended. What a batch holds is a function of the step
(data/order.py): so it may be asked for before it is needed, and nothing of it has to be saved. Only who computes a
micro-batch may change in between, where a batch grows or is dealt out anew; then what was prepared is thrown away.

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
    """Gives a rank its micro-batches out of such a process.

    Args:
        config: the run's settings; ``config.steps`` is the last step that is asked for.
        ahead: how many steps are prepared beyond the one that is taken, at most: no more than pipes hold.
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
        """The micro-batches of a step, by their numbers, in host memory."""
        wanted = step, tuple(numbers)
        while self.asked and self.asked[0] != wanted:
            self.asked.popleft()
            self._receive()
        # Requests that filled their pipe, and samples that fill theirs, would have both processes wait for each other.
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
    """Answer requests, (step, numbers) each, until the rank is gone; the first thing read is the run's config."""
    with suppress(EOFError, BrokenPipeError):
        config, corpus = pickle.load(requests), None
        while True:
            step, numbers = pickle.load(requests)
            try:
                corpus = corpus or corpus_of(config)
                found = [batch_of(corpus, config, step, number) for number in numbers]
            except Exception as error:  # a text that has changed, say: it is the rank's to tell
                found = error
            pickle.dump(found, answers)
            answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
