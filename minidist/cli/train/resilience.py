"""The flags and messages of ``minidist train`` about checkpoints, faults, and going on after failures."""

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from minidist.cli.flags import given, integer, real
from minidist.cli.output import titled
from minidist.comm.runtime.clusters import job_size
from minidist.nn.tokenizer import TOKENIZER, open_tokenizer
from minidist.parallel.compression.hook import sends_bytes
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.folder import check_folder
from minidist.train.checkpoint.hugging_face import CONFIG, settings_in
from minidist.train.checkpoint.manifest import (
    BadCheckpoint,
    Manifest,
    check_same_run,
    check_tokenizer,
    config_in,
    layout_in,
    other_versions,
)
from minidist.train.checkpoint.peers import PeerCopies
from minidist.train.checkpoint.restore import check_files, find_checkpoint
from minidist.train.checkpoint.saver import MODES, Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import ON_FAILURE, Elasticity, Interruption
from minidist.train.resilience.faults import Fault
from minidist.train.result import Run, RunOptions
from minidist.train.share import corpus_of

ERRORS = 3  # of failed saves that are shown
INEXACT = {"reduce_dtype": "float32", "softmax": "online32"}  # settings whose sums depend on the order of their terms


def add_checkpoints(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("checkpoints and failures")
    group.add_argument(
        "--save", metavar="DIR", help="save checkpoints in this folder, the last one after the last step"
    )
    group.add_argument(
        "--save-every", type=integer, metavar="K", help="steps between checkpoints, with --save (default: 10)"
    )
    group.add_argument(
        "--keep", type=integer, metavar="N", help="newest checkpoints to keep, with --save; 0 for all (default: 2)"
    )
    group.add_argument(
        "--save-mode",
        choices=MODES,
        help="async writes in the background, sync pauses training until the checkpoint is committed (default: async)",
    )
    group.add_argument(
        "--resume",
        metavar="DIR",
        help="go on from the newest checkpoint in this folder, or from this checkpoint, in any layout. Settings "
        "without a flag, the layout included, are those of the checkpoint",
    )
    group.add_argument(
        "--init-from",
        metavar="FOLDER",
        help="begin with a GPT-2, Llama or Mixtral in Hugging Face's format: its weights (model.safetensors), "
        "sizes (config.json) and tokenizer (tokenizer.json)",
    )
    group.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="make something go wrong: rank=2,step=7,kind=KIND, with KIND kill, raise, hang, slow:X (it takes X times "
        "as long) or flip:PLACE (a bit in weights, moments, gradients or message). May be given several times",
    )


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint that ``--resume`` found."""

    folder: Path
    manifest: Manifest
    config: TrainConfig
    layout: Layout

    def check(self, config: TrainConfig) -> None:
        """Raise BadCheckpoint if a run with these settings cannot go on from here, or if files are damaged."""
        check_same_run(self.manifest, config, corpus_of(config))
        try:
            check_files(self.folder, self.manifest)
        except BadCheckpoint as error:
            others = f"minidist checkpoint {self.folder.parent} lists the others"
            raise BadCheckpoint(f"{error}\nThis checkpoint cannot be resumed; {others}") from None

    def notes(self, layout: Layout, backend: str) -> list[str]:
        """Return lines to print when a run goes on from the checkpoint in that layout and on that backend."""
        step = self.manifest.progress.step
        lines = [f"resuming after step {step} from {self.folder}, which was written in layout {self.layout}"]
        if layout != self.layout:
            lines[0] += f", in layout {layout}"
            inexact = [f"{name} {value}" for name, value in INEXACT.items() if getattr(self.config, name) == value]
            if inexact:
                lines.append(f"note: with {' and '.join(inexact)} bits depend on the layout, so they will differ")
        checked = self.manifest.checked
        unchecked = (
            f"its numbers were last checked after step {checked}" if checked is not None and checked < step else ""
        )
        return lines + [f"note: {text}" for text in (other_versions(self.manifest, backend), unchecked) if text]


def resumed(path: str | None, tokenizer: str | None) -> Checkpoint | None:
    """Return the checkpoint to go on from; None without a path.

    Raises:
        BadCheckpoint: if there is none, this version cannot read it, or its tokenizer is missing or another.
    """
    if path is None:
        return None
    folder = find_checkpoint(path)
    manifest = Manifest.read(Disk(), folder)
    found = Checkpoint(folder, manifest, config_in(manifest), layout_in(manifest))
    kept = found.config.tokenizer
    if tokenizer is None and kept is not None and not Path(kept).exists():
        raise BadCheckpoint(
            f"the tokenizer of the checkpoint, {kept}, no longer exists. {folder / TOKENIZER} is a copy: copy it to "
            "where it can stay, and name it with --tokenizer FILE"
        )
    check_tokenizer(manifest, open_tokenizer(kept if tokenizer is None else tokenizer))
    return found


def begun_from(options: argparse.Namespace) -> TrainConfig | None:
    """Return the settings of a run that begins with the weights of ``--init-from``; None without that flag.

    Raises:
        ValueError: if minidist does not have the model, or another flag contradicts it.
    """
    if options.init_from is None:
        return None
    if options.resume:
        raise ValueError("--resume goes on with the weights of a checkpoint: leave out either --resume or --init-from")
    folder = Path(options.init_from)
    settings = settings_in(folder)
    for name, (there, value) in settings.items():
        given, flag = getattr(options, name), "--" + name.replace("_", "-")
        shorter = name == "context" and settings["arch"][1] == "llama" and given is not None and given < value
        if given not in (None, value) and not shorter:  # rotary positions fit any length
            raise ValueError(
                f"{flag} {given} contradicts {there} in {folder / CONFIG}, which makes it {value}: leave {flag} out"
            )
    beside = str(folder / TOKENIZER) if (folder / TOKENIZER).is_file() else None
    tokenizer, (there, vocab) = open_tokenizer(options.tokenizer or beside), settings["vocab"]
    if options.vocab is None and tokenizer.vocab != vocab:
        raise ValueError(
            f"{there} is {vocab} in {folder / CONFIG}, but {tokenizer.name} has {tokenizer.vocab} tokens: name the "
            "model's tokenizer with --tokenizer FILE"
        )
    return replace(TrainConfig(), tokenizer=beside, **{name: value for name, (_, value) in settings.items()})


def saving_of(options: argparse.Namespace, checkpoint: Checkpoint | None) -> Saving | None:
    """Return what to save, and when; None for nothing.

    Raises:
        ValueError: if the folder cannot take this run's checkpoints, or a flag needs --save.
    """
    named = given(every=options.save_every, keep=options.keep, mode=options.save_mode)
    if options.save is None:
        if named.keys() - {"every"} or (named and not options.peer_copies):
            raise ValueError("--save-every, --keep and --save-mode apply to checkpoints: add --save DIR")
        return None
    saving = Saving(options.save, **named)
    check_folder(options.save, checkpoint and str(checkpoint.folder))
    return saving


def faults_of(options: argparse.Namespace, config: TrainConfig, layout: Layout, first: int) -> tuple[Fault, ...]:
    """Return the faults that ``--fault`` orders.

    Raises:
        ValueError: if this run would never meet one of them.
    """
    faults = tuple(Fault.parse(text) for text in options.fault)
    for fault in faults:
        if fault.rank >= layout.world_size:
            raise ValueError(f"--fault {fault}: layout {layout} has ranks 0 to {layout.world_size - 1}")
        if fault.step >= config.steps:
            raise ValueError(f"--fault {fault}: the run has steps 0 to {config.steps - 1}")
        if fault.step < first and fault.kind != "slow":  # a slow rank stays slow
            raise ValueError(f"--fault {fault}: the run goes on with step {first}, counted from 0")
        if why := _why_it_cannot_happen(fault, config, layout):
            raise ValueError(f"--fault {fault}: {why}")
    return faults


def _why_it_cannot_happen(fault: Fault, config: TrainConfig, layout: Layout) -> str:
    """Say why the fault cannot happen in this run; "" if it can."""
    if fault.place == "moments" and config.optimizer == "sgd":
        return "SGD keeps no moments: choose flip:weights, flip:gradients or flip:message"
    data_parallel_alone = layout.world_size == layout.dp
    if fault.place == "message" and layout.compress and data_parallel_alone and sends_bytes(layout.compress):
        return (
            f"compress={layout.compress} sends bytes, but a bit flips in floats: choose flip:weights or flip:gradients"
        )
    if not layout.servers:
        return ""
    if fault.rank >= layout.dp and (fault.kind == "slow" or fault.place == "gradients"):
        return f"a parameter server computes no gradients: choose a worker, from rank 0 to {layout.dp - 1}"
    if fault.rank < layout.dp and fault.place == "moments":
        servers = f"from rank {layout.dp} to {layout.world_size - 1}"
        return f"the servers hold the moments, and a worker has none: choose a server, {servers}"
    return ""


def print_saves(console: Console, result: Run) -> None:
    """Print how long saves paused training, and which failed, since the step from which the run last went on."""
    first = result.ranks[0]
    begun = len(first.losses) - result.steps_here
    since = f" since step {begun}" if begun else ""
    if first.pauses:
        pauses: Sequence[float] = [max(pause) for pause in zip(*(rank.pauses for rank in result.ranks), strict=True)]
        console.print(
            f"checkpoints: {len(pauses) - len(first.save_errors)} saved{since}; a save paused training for "
            f"{median(pauses) * 1e3:,.1f} ms, the last one for {pauses[-1] * 1e3:,.1f} ms",
            soft_wrap=True,
        )
    for error in first.save_errors[:ERRORS]:
        console.print(f"a checkpoint could not be saved: {error}", style="red", soft_wrap=True)
    if len(first.save_errors) > ERRORS:
        console.print(f"nor could {len(first.save_errors) - ERRORS} more", style="red")


def add_elastic(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("going on after failures")
    group.add_argument(
        "--elastic",
        action="store_true",
        help="go on from the last checkpoint or copy when ranks fail, with --save or --peer-copies",
    )
    group.add_argument(
        "--peer-copies",
        type=integer,
        default=0,
        metavar="N",
        help="every --save-every steps, copy each rank's state into its own memory and that of N other ranks, "
        "with --elastic (default: 0)",
    )
    group.add_argument(
        "--on-failure",
        choices=ON_FAILURE,
        help="shrink goes on with the ranks that are left, in their best layout; restart replaces the failed rank and "
        "keeps the layout; with --elastic (default: shrink)",
    )
    group.add_argument(
        "--max-restarts",
        type=integer,
        metavar="N",
        help="most failures that the run survives, with --elastic (default: 10)",
    )
    group.add_argument(
        "--patience",
        type=real,
        metavar="SECONDS",
        help="if no rank reports for this long, ranks that wait for no other rank count as hanging (default: no limit, "
        "or 60 with --elastic)",
    )


@contextmanager
def stopping(saving: Saving | None) -> Iterator[str | None]:
    """Context manager: inside, SIGTERM ends a run with checkpoints after its current step.

    Further signals change nothing: ``timeout`` sends one to the command and one to its group. Ctrl-C ends it at once.

    Yields ``RunOptions.stop_file``, in the folder of checkpoints; None if nothing is saved, or if a signal cannot be
    waited for: in a thread, or in an MPI job, whose launcher sends SIGTERM when it ends all processes at once.
    """
    waits = hasattr(signal, "SIGTERM") and threading.current_thread() is threading.main_thread() and job_size() is None
    if saving is None or not waits:
        yield None
        return
    file = Path(saving.folder, f".stop-{os.getpid()}")

    def stop(*_) -> None:
        if not file.parent.exists():  # no step has been taken
            raise KeyboardInterrupt
        if not file.exists():
            file.touch()
            print("minidist: SIGTERM: the run ends after this step, and saves it", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield str(file)
    finally:
        signal.signal(signal.SIGTERM, before)
        file.unlink(missing_ok=True)


def elasticity_of(options: argparse.Namespace, run_options: RunOptions) -> Elasticity | None:
    """Return how the run goes on after a failure; None if a failure ends it.

    Raises:
        ValueError: if a flag needs another.
    """
    named = given(on_failure=options.on_failure, max_restarts=options.max_restarts, patience=options.patience)
    elasticity = Elasticity(**named)
    if options.elastic:
        if run_options.saving is None and run_options.peer_copies is None:
            raise ValueError("--elastic needs checkpoints or copies to go on from: add --save DIR or --peer-copies 1")
        return elasticity
    if run_options.peer_copies is not None:
        raise ValueError("--peer-copies are for ranks that survive a failure: add --elastic")
    if named.keys() - {"patience"}:
        raise ValueError("--on-failure and --max-restarts say how to go on after a failure: add --elastic")
    return None


def peer_copies_of(options: argparse.Namespace, layout: Layout) -> PeerCopies | None:
    """Return which copies of the state to keep in memory; None for none.

    Raises:
        ValueError: if ``PeerCopies`` refuses the flags, or the layout has too few ranks.
    """
    if options.peer_copies == 0:
        return None
    if options.peer_copies >= layout.world_size:
        raise ValueError(
            f"--peer-copies {options.peer_copies} needs as many other ranks for each rank, but layout {layout} has "
            f"{layout.world_size} in all"
        )
    return PeerCopies(Saving.every if options.save_every is None else options.save_every, options.peer_copies)


def interruptions_table(interruptions: list[Interruption]) -> Table:
    columns = ("step", "failure", "continued in", "from"), ("detect", "restart", "recompute")
    table = titled("interruptions, and the seconds that each cost", *columns)
    table.columns[0].justify = "right"
    for it in interruptions:
        failure = re.split(r": |\. | \(", it.why)[0]  # the rest was printed when it happened
        seconds = [f"{value:.2f}" for value in (it.detect, it.restart, it.recompute)]
        table.add_row(str(it.step), failure, str(it.after), it.source.rpartition("/")[2], *seconds)
    return table


def print_interruption(console: Console, interruption: Interruption) -> None:
    """Print what failed, and in which layout and from where the run goes on."""
    again = interruption.step - interruption.resumed
    work = f", {again} step{'s' * (again != 1)} again" if again else ""
    if interruption.lost:
        console.print(interruption.lost, soft_wrap=True)
    console.print(
        f"step {interruption.step}: {interruption.why}; going on in {interruption.after} from "
        f"{interruption.source.rpartition('/')[2]}{work}",
        soft_wrap=True,
    )
