"""A program for two ranks: seconds of a message, an exchange and a ring all-reduce, for several sizes, as JSON.

Each number is the fastest of 300, taken in turns with the other sizes.
"""

import json
import time

import numpy as np

import minidist as md

SIZES = (8, 256, 2048, 16 << 10, 128 << 10, 1 << 20, 4 << 20)


def main(world) -> None:
    other, arrives = 1 - world.rank, np.zeros(SIZES[-1] // 8)

    def message(x):  # there and back: two messages
        if world.rank == 0:
            md.send(x, dst=1, group=world)
            md.recv(x, src=1, group=world)
        else:
            md.recv(x, src=0, group=world)
            md.send(x, dst=0, group=world)

    def exchange(x):
        md.sendrecv(x, other, arrives[: len(x)], other, world)

    def all_reduce(x):
        md.all_reduce(x, group=world, algorithm="ring")

    def seconds(call, x):
        begin = time.perf_counter()
        call(x)
        return time.perf_counter() - begin

    fastest = {call.__name__: dict.fromkeys(SIZES, np.inf) for call in (message, exchange, all_reduce)}
    for _ in range(100):
        for nbytes in SIZES:
            x = np.zeros(nbytes // 8)
            for call, messages in ((message, 2), (exchange, 1), (all_reduce, 1)):
                md.barrier(world)
                best = min(seconds(call, x) for _ in range(3)) / messages
                fastest[call.__name__][nbytes] = min(fastest[call.__name__][nbytes], best)
    if world.rank == 0:
        print(json.dumps(fastest))


if __name__ == "__main__":
    main(md.init(limit=60))
