"""The process that watches over one workplace: ``python -m minidist.course.grading.supervisor FOLDER``.

It makes the workplace's folder inside FOLDER, runs the commands that arrive on its standard input, one JSON object a
line, and answers each with one line. When its input ends, because the process that started it has closed it or is gone,
even by kill -9, it ends every process of the command, removes the folder, and exits. workplace.py is the other side.
"""

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue

from minidist.comm.runtime.sweep import scratch_folder, sweep
from minidist.course.grading.descendants import adopt_orphans
from minidist.course.grading.supervise import supervise


def main(where: str) -> None:
    requests: SimpleQueue[dict | None] = SimpleQueue()
    interrupt = threading.Event()

    def end(*_) -> None:
        interrupt.set()
        requests.put(None)

    def listen() -> None:
        for line in sys.stdin:
            requests.put(json.loads(line))
        end()

    signal.signal(signal.SIGTERM, end)
    adopt_orphans()
    threading.Thread(target=listen, daemon=True).start()
    sweep()
    with scratch_folder(where) as folder:
        _answer({"folder": folder})
        while (request := requests.get()) is not None:
            _answer(supervise(**request, interrupt=interrupt))


def _answer(content: dict) -> None:
    with suppress(OSError):  # nobody is there any more
        os.write(sys.stdout.fileno(), (json.dumps(content) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1])
