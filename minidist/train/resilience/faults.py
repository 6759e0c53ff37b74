"""Faults to order: in a given step, on a given rank, something goes wrong. Written ``rank=2,step=7,kind=slow:3``.

    kill      the process dies at once, as by kill -9 or with its machine
    raise     the rank's program raises an exception
    hang      the rank computes forever, and the others wait for it
    slow:X    from this step on, the rank takes X times as long for what it computes
    flip:P    one bit changes, and no error says so: in P = weights, moments, gradients (this rank's own, before they
              are summed) or message (the next one that it sends)

The tests of failures inject them (torchft's ``EventInjector`` does so), and the demonstration shows them.

Faults may be ordered while a run goes on (``minidist train --watch``): a file for each rank, which the rank looks for
at each step, since the queues of ranks carry nothing from the parent once they train. An order that has not been taken
is replaced by the next one.
"""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minidist import backend
from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Parameter
from minidist.nn.random import generator
from minidist.parallel.tools.regions import Region, place_in_full
from minidist.train.hooks import StepHook
from minidist.train.notation import number, whole_number
from minidist.train.share import Share
from minidist.turns import here

KINDS = ("kill", "raise", "hang", "slow", "flip")
FLIPS = ("weights", "moments", "gradients", "message")


CURE = "cure"  # a slow rank is as fast as before
ORDERS = ("slow:3", CURE, "kill", "raise", "hang", "flip:weights")


def order(folder: str | Path, rank: int, what: str) -> None:
    """Order a fault for a rank's next step: one of ORDERS.

    Raises:
        ValueError: for any other text.
    """
    if what not in ORDERS:
        raise ValueError(f"fault {what!r} cannot be ordered during a run: choose from {', '.join(ORDERS)}")
    written = Path(folder, f"new{rank}")
    written.write_text(what, encoding="utf-8")
    os.replace(written, Path(folder, f"rank{rank}"))  # at once, so that no rank reads half of it


def take_order(folder: str | Path, rank: int) -> str | None:
    """Return what has been ordered for a rank since it last asked, and take it; None if nothing has."""
    taken = Path(folder, f"taken{rank}")
    with suppress(FileNotFoundError):
        os.replace(Path(folder, f"rank{rank}"), taken)
        what = taken.read_text(encoding="utf-8")
        taken.unlink()
        return what
    return None


def cancel_orders(folder: str | Path) -> None:
    """Cancel every order that no rank has taken: after a restart the same numbers belong to other ranks."""
    for path in Path(folder).glob("rank*"):
        path.unlink(missing_ok=True)


class OrderedFault(RuntimeError):
    """Raised by a fault of the kind ``raise``, and of the kind ``kill`` if the rank is a thread."""


@dataclass(frozen=True)
class Fault:
    """A fault: what goes wrong, on which rank and in which step.

    Raises:
        ValueError: for invalid values.
    """

    rank: int
    step: int  # counted from 0, in which it happens, or begins
    kind: str  # one of KINDS
    factor: float = 1.0  # by which ``slow`` slows down
    place: str = ""  # what ``flip`` hits, one of FLIPS

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"fault {self}: kind must be kill, raise, hang, slow:X or flip:PLACE, got {self.kind}")
        if self.rank < 0 or self.step < 0:
            raise ValueError(f"fault {self}: rank and step are counted from 0")
        if self.kind == "slow" and not 1 < self.factor <= 1000:
            raise ValueError(
                f"fault {self}: the factor of a slow rank must be above 1 and at most 1000, as in kind=slow:3"
            )
        if self.kind == "flip" and self.place not in FLIPS:
            raise ValueError(f"fault {self}: a bit can flip in {', '.join(FLIPS)}, as in kind=flip:weights")

    def __str__(self) -> str:
        detail = f":{self.factor:g}" if self.kind == "slow" else f":{self.place}" if self.place else ""
        return f"rank={self.rank},step={self.step},kind={self.kind}{detail}"

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Parse a fault written ``rank=2,step=7,kind=slow:3``.

        Raises:
            ValueError: if it is written otherwise.
        """
        parts = text.replace(" ", "").split(",")
        settings = {key: value for key, _, value in (part.partition("=") for part in parts)}
        if settings.keys() != {"rank", "step", "kind"} or len(parts) > len(settings):
            raise ValueError(f"fault {text!r}: write it as rank=2,step=7,kind=kill")
        kind, _, detail = settings["kind"].partition(":")
        if detail and kind not in ("slow", "flip"):
            raise ValueError(f"fault {text!r}: {kind} takes nothing after a colon")
        try:
            rank, step = whole_number(settings["rank"]), whole_number(settings["step"])
            factor = number(detail) if kind == "slow" and detail else 1.0
        except ValueError as error:
            raise ValueError(f"fault {text!r}: {error}") from None
        return cls(rank, step, kind, factor, detail if kind == "flip" else "")


class Faults(StepHook):
    """Hook that makes one rank's faults happen, and those ordered in the folder ``orders`` while the run goes on."""

    def __init__(self, faults: Sequence[Fault], world: ProcessGroup, orders: str | None = None) -> None:
        self.orders, self.world = orders, world
        self.mine = [fault for fault in faults if fault.rank == world.rank]
        self.factor = 1.0  # how many times as long this rank's computing takes
        self.slowed_to = 0.0  # the compute clock up to which a slow rank has slept its extra time

    def begin_run(self, share: Share) -> None:
        self.share = share
        share.model.local.register_forward_pre_hook(self.be_slow)

    def begin_step(self, step: int, last: bool) -> None:
        """Make the faults of this step happen."""
        self.take_order(step)
        for fault in self.mine:
            if fault.step == step:
                self.world.report(("fault", fault))
                self.strike(fault)
        before = self.factor
        self.factor = max([f.factor for f in self.mine if f.kind == "slow" and f.step <= step], default=1.0)
        if before == 1:
            self.slowed_to = self.world.transport.clock.seconds()

    def end_run(self) -> dict:
        flip_no_message(self.world.transport)
        return {}

    def take_order(self, step: int) -> None:
        """Add the fault that was ordered for this rank meanwhile, or end its slowness."""
        what = None if self.orders is None else take_order(self.orders, self.world.rank)
        if what == CURE:
            self.mine = [fault for fault in self.mine if fault.kind != "slow"]
        elif what is not None:
            self.mine.append(Fault.parse(f"rank={self.world.rank},step={step},kind={what}"))

    def strike(self, fault: Fault) -> None:
        if fault.kind == "kill" and here() is None:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows the latter is as hard
        elif fault.kind in ("kill", "raise"):  # a rank that is a thread does not end the process of all
            raise OrderedFault(f"as ordered: {fault}")
        elif fault.kind == "hang":
            while True:
                time.sleep(1)
        elif fault.kind == "flip":
            self.flip(fault.place, generator("fault", fault.rank, fault.step, fault.place))

    def flipped(self, name: str, region: Region, place: int, before: float, after: float) -> None:
        """Report to the parent which element of which full array has changed."""
        index = np.unravel_index(place_in_full(region.runs, place), self.share.model.shapes[name.split(" ")[-1]])
        self.world.report(("flipped", name, tuple(map(int, index)), before, after))

    def be_slow(self) -> None:
        """Sleep before a micro-batch, so that what was computed since the one before takes ``factor`` times as long.

        For what follows a step's last micro-batch, such as the update, the rank sleeps before the next step's first.
        """
        if self.factor > 1:
            clock = self.world.transport.clock
            time.sleep((self.factor - 1) * max(0.0, clock.seconds() - self.slowed_to))
            self.slowed_to = clock.seconds()

    def flip(self, place: str, random: np.random.Generator) -> None:
        """Flip a bit of a random element in ``place``, one of FLIPS."""
        if place == "message":
            flip_in_next_message(self.world.transport, random)
            return
        model = self.share.model
        if place == "gradients":
            self.flip_in_next_gradient(_drawn(model.local.parameters(), random), random)
            return
        regions = model.regions(bool(model.trained))
        held = [one for one in model.trained or model.local.parameters() if one.name in regions]
        if not held or (place == "moments" and not model.trained):
            return  # a rank that holds no parameters
        parameter = _drawn(held, random)
        name, array = parameter.name, parameter.data
        if place == "moments":
            name, array = f"exp_avg of {name}", self.share.optimizer.kinds["exp_avg."][name]
        elif not model.trained:  # a parameter server's worker, until it pulls new weights; 16-bit data are read-only
            array = array.copy()
        self.flipped(name, regions[parameter.name], *flip_bit(array, random))
        if not model.trained:
            parameter.data = array

    def flip_in_next_gradient(self, parameter: Parameter, random: np.random.Generator) -> None:
        """Flip a bit of a parameter's next gradient, when backward completes it and before any other hook sees it."""
        whole = Region.full(parameter.shape)  # for stage 3 of ZeRO, which has no parameters between steps
        region = self.share.model.regions(trained=False).get(parameter.name, whole)

        def flip_once(_: Parameter) -> None:
            if parameter.grad is None or not parameter.grad.any():
                return  # in a gradient of zeros a bit makes no difference: wait for the next micro-batch
            parameter.hooks.remove(flip_once)
            self.flipped(f"gradient of {parameter.name}", region, *flip_bit(parameter.grad, random))

        parameter.hooks.insert(0, flip_once)


def flip_bit(array, random: np.random.Generator) -> tuple[int, float, float]:
    """Flip the highest bit of the mantissa of one element, in place: it changes by a quarter to a half.

    The element is not 0 unless all are: with that bit, a 0 would become a number too small for any sum to show.

    Returns:
        The element's place in the array laid flat, and its value before and after.
    """
    host = backend.to_host(array).reshape(-1)
    places = np.flatnonzero(host) if host.any() else np.arange(host.size)
    place = int(places[random.integers(places.size)])
    changed = host[place : place + 1].copy()
    changed.view(f"u{changed.itemsize}")[0] ^= 1 << (np.finfo(changed.dtype).nmant - 1)
    before = float(host[place])
    array[np.unravel_index(place, array.shape)] = changed[0]
    return place, before, float(changed[0])


def flip_in_next_message(transport, random: np.random.Generator) -> None:
    """Flip a bit of the next floating-point array that is sent to another rank, has several elements and is not 0."""
    send = transport.isend

    def corrupting(array: np.ndarray, *arguments):
        if array.dtype.kind == "f" and array.size > 1 and array.any():
            array = array.copy()
            flip_bit(array, random)
            transport.isend = send
        return send(array, *arguments)

    transport.isend = corrupting


def flip_no_message(transport) -> None:
    """Cancel a flip that still waits for a message: messages after the last step are not part of training."""
    vars(transport).pop("isend", None)


def _drawn(parameters: Sequence[Parameter], random: np.random.Generator) -> Parameter:
    """Return a random one of the parameters: a weight matrix if there is one."""
    matrices = [parameter for parameter in parameters if parameter.decay and parameter.size] or list(parameters)
    return matrices[int(random.integers(len(matrices)))]
