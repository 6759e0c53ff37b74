"""``minidist train --watch``: the run while it goes on, in the terminal and on a page of this machine."""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console

from minidist.cli.flags import integer
from minidist.comm.runtime.sweep import scratch_folder
from minidist.show.live.state import Live
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

PORTS = range(1 << 16)


def add_live(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--watch",
        nargs="?",
        type=integer,
        const=0,
        metavar="PORT",
        help="show loss, ranks, memory and traffic while training, here and on a local page, where ranks can "
        "be slowed and killed; some steps take up to a quarter longer",
    )


@contextmanager
def watching(
    port: int | None, config: TrainConfig, layout: Layout, console: Console
) -> Iterator[tuple[Live | None, str | None]]:
    """Context manager to watch a run: gives its state and the ``RunOptions.live`` folder, both None without a port.

    Raises:
        ValueError: for a port that cannot be, or is taken.
    """
    if port is None:
        yield None, None
        return
    if port not in PORTS:
        raise ValueError(f"--watch {port}: a port is a number up to {PORTS[-1]}; leave it out for any that is free")
    from minidist.show.live.server import serving  # Python's HTTP server takes a sixth of the command's start

    live = Live(config, layout)
    with scratch_folder() as orders, ExitStack() as stack:
        try:
            address = stack.enter_context(serving(live, orders, port))
        except OSError as error:
            raise ValueError(
                f"--watch {port}: {error.strerror}. Choose another port, or none for any free one"
            ) from None
        console.print(f"watch the run, slow ranks and kill them: {address}", soft_wrap=True)
        try:
            yield live, orders
        except BaseException as error:
            live.end(f"the run has stopped: {(str(error) or type(error).__name__).splitlines()[0]}")
            raise
        live.end("the run has ended")
