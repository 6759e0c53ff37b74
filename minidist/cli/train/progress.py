"""The progress of ``minidist train``: a bar on standard error, and a line for each event.

With ``--watch`` it shows the run in the terminal and on a local page.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from minidist.analysis.stragglers import Straggler, StragglerWatch, same_work
from minidist.cli.flags import integer
from minidist.cli.train.resilience import print_interruption
from minidist.comm.runtime.sweep import scratch_folder
from minidist.show.live.state import Live
from minidist.show.live.terminal import picture
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import Interruption

NUMBERS = 64  # characters for a short bar, steps, loss, speed and both times
PORTS = range(1 << 16)


class Narrator:
    """Reporter of a run while it goes on: by a bar, and by ``live`` if the run is watched.

    Attributes:
        stragglers: slow ranks found so far.
    """

    def __init__(self, progress: Progress, config: TrainConfig, layout: Layout, first: int, live: Live | None) -> None:
        self.progress, self.console, self.config = progress, progress.console, config
        self.task = progress.add_task(str(layout), total=config.steps, completed=first, loss="", speed="")
        self.began: float | None = None  # the end of the first step
        self.tokens = 0  # since then
        self.watch, self.stragglers = watch_of(layout), list[Straggler]()
        self.live = live

    def on_step(self, step: int, loss: float) -> None:
        """Report a step that rank 0 has ended."""
        if self.live is not None:
            self.live.on_step(step, loss)
        now, speed = time.perf_counter(), ""
        if self.began is None:
            self.began = now
        else:
            self.tokens += self.config.tokens_of(range(step, step + 1))
            speed = f"{self.tokens / (now - self.began + 1e-9):,.0f} tokens/s"
        self.progress.update(self.task, completed=step + 1, loss=f"loss {loss:.4f}", speed=speed)

    def on_event(self, rank: int, event: tuple) -> None:
        """Report any other event that a rank has sent (``trainer.run``)."""
        if self.live is not None:
            self.live.on_event(rank, event)
        if event[0] == "saved" and event[2]:
            self.console.print(
                f"checkpoint {event[1]} could not be saved: {event[2]}; training goes on", soft_wrap=True
            )
        elif event[0] == "note":
            self.console.print(f"note: {event[1]}", soft_wrap=True)
        elif event[0] == "pace":
            for straggler in self.watch.add(rank, *event[1:]):
                self.stragglers.append(straggler)
                self.console.print(str(straggler), highlight=False)
                if self.live is not None:
                    self.live.tell(str(straggler))

    def on_interruption(self, interruption: Interruption) -> None:
        """Report that the run goes on after a failure, and watch it anew: its ranks may have other numbers."""
        if self.live is not None:
            self.live.on_interruption(interruption)
        print_interruption(self.console, interruption)
        self.progress.update(self.task, description=str(interruption.after), completed=interruption.resumed)
        for straggler in self.stragglers:
            if straggler.until is None:
                straggler.until = max(straggler.since, interruption.step - 1)
        self.watch = watch_of(interruption.after)


def watch_of(layout: Layout) -> StragglerWatch:
    """Return a watch that finds the stragglers of a run in this layout."""
    shape = (layout.pp, layout.dp, layout.cp, layout.tp)
    return StragglerWatch(same_work(shape, by_chunk=layout.cp_kind == "ring", experts=layout.ep))


@contextmanager
def narrating(
    console: Console, config: TrainConfig, layout: Layout, first: int, live: Live | None
) -> Iterator[Narrator]:
    """Context manager: inside, the console shows a progress bar, below the picture of ``live``."""
    room = max(4, console.width - NUMBERS)  # on a narrow terminal the layout is cut, not the numbers
    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=room)),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with ProgressBelow(live, *columns, console=console) as progress:
        yield Narrator(progress, config, layout, first, live)


class ProgressBelow(Progress):
    """Progress bar below the picture of a run that is watched."""

    def __init__(self, live: Live | None, *columns, **options) -> None:
        self.watched = live
        super().__init__(*columns, **options)

    def get_renderables(self):
        if self.watched is not None:
            yield picture(self.watched)
        yield from super().get_renderables()


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
    port: int | None, config: TrainConfig, layout: Layout, first: int, console: Console
) -> Iterator[tuple[Live | None, str | None]]:
    """Context manager: yield the state of a watched run and the folder ``RunOptions.live``, both None without a port.

    Raises:
        ValueError: if the port is invalid or taken.
    """
    if port is None:
        yield None, None
        return
    if port not in PORTS:
        raise ValueError(f"--watch {port}: a port is a number up to {PORTS[-1]}; leave it out to take any that is free")
    from minidist.show.live.server import serving  # Python's HTTP server takes a sixth of the command's start

    live = Live(config, layout, first)
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
        except KeyboardInterrupt:
            live.end("the run has stopped: it was interrupted")
            raise
        except BaseException as error:
            live.end(f"the run has stopped: {(str(error) or type(error).__name__).splitlines()[0]}")
            raise
        live.end("the run has ended", failed=False)
