"""The vote: ranks that must hold the same bits compare digests, and the majority is believed.

Replicas that data parallelism keeps in step are copies of each other, and no memory error changes them all together. If
two differ, one is wrong; with three or more, the majority says which.

**What a vote cannot see.** A number that is wrong before it is summed over the replicas is in all of them afterwards:
they agree. A rank that receives a wrong number from another is the odd one out, not the sender. And a part that only
one rank holds has nothing to be compared with. The replay (replay.py) finds those errors. For it a rank also notes its
own gradients, before they are summed with other ranks'.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from minidist import backend
from minidist.nn.layers import Parameter
from minidist.overrides import overridable
from minidist.parallel.tools.regions import Region, Run, place_in_full
from minidist.train.share import Share

# Kinds of parts. Those of the optimizer have the names of the fingerprint: "" for weights, "exp_avg.", "exp_avg_sq.".
GRADIENT, WEIGHTS, MODEL, EXTRA, LOSS = "gradient.", "", "model.", "extra.", "loss."
IN_A_STEP = ((GRADIENT,), ("exp_avg.", "exp_avg_sq."), (WEIGHTS,), (MODEL, EXTRA, LOSS))  # in the order it makes them
TITLES = {GRADIENT: "gradient of ", "exp_avg.": "exp_avg of ", "exp_avg_sq.": "exp_avg_sq of ", MODEL: "gathered "}


@dataclass(frozen=True)
class Key:
    """Key of a part of the state.

    Two ranks with the same key must hold the same bits, unless it is a gradient, which has not been summed yet.

    The ``kind`` is a gradient, the weights that the optimizer updates, one of its states of them, the weights that the
    model computes with if these are others (16 bits wide, or gathered), ...
    """

    kind: str
    name: str  # of the parameter
    runs: tuple[Run, ...] = ()  # where the part is in the full array: see parallel/tools/regions.py
    shape: tuple[int, ...] = ()  # of the full array

    def __str__(self) -> str:
        return f"{TITLES.get(self.kind, '')}{self.name}"

    def index(self, place: int) -> tuple[int, ...]:
        """Return the index in the full array of the element at ``place`` of this part."""
        return tuple(map(int, np.unravel_index(place_in_full(self.runs, place), self.shape)))


class Parts:
    """All parts that one rank holds of a run's state; ``get``: key -> function that returns the array as it is now."""

    def __init__(self, share: Share) -> None:
        self.get: dict[Key, Callable] = {}
        model, optimizer = share.model, share.optimizer
        for kind, arrays in optimizer.kinds.items():
            self._add(kind, model.regions(), {name: partial(arrays.get, name) for name in arrays}, model.shapes)
        trained = {parameter.name: partial(getattr, parameter, "data") for parameter in model.trained}
        self._add(WEIGHTS, model.regions(), trained, model.shapes)
        other = set(model.local.parameters()) - set(model.trained)
        computing = {parameter.name: partial(getattr, parameter, "data") for parameter in other}
        self._add(MODEL, model.regions(trained=False), dict(sorted(computing.items())), model.shapes)
        extra = share.gpt.extra_state()
        regions = {name: Region.full(array.shape) for name, array in extra.items()}
        getters = {name: lambda name=name: share.gpt.extra_state()[name] for name in extra}
        self._add(EXTRA, regions, getters, {name: array.shape for name, array in extra.items()})

    def _add(self, kind: str, regions: dict[str, Region], getters: dict[str, Callable], shapes: dict) -> None:
        for name, get in getters.items():
            if name in regions:  # weights that the model gathers when it needs them are nowhere between steps
                self.get[Key(kind, name, regions[name].runs, tuple(shapes[name]))] = get

    def on_host(self, key: Key) -> np.ndarray:
        """Return the part, flat, in host memory. It may be the array itself."""
        return np.ascontiguousarray(backend.to_host(self.get[key]())).reshape(-1)


def digest(array: np.ndarray) -> str:
    """Return 64 bits of the SHA-256 of an array's bytes: two different arrays share them once in 2^64 times."""
    return hashlib.sha256(array.data).hexdigest()[:16]


@dataclass(frozen=True)
class Element:
    """The element in which two copies of a part differ most."""

    size: float  # the difference, relative to the root mean square of the part
    name: str  # of the array
    index: tuple[int, ...]  # in the full array
    values: tuple[float, float]  # there, in both copies

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]"


def largest_difference(key: Key, one: np.ndarray, other: np.ndarray) -> Element | None:
    """Return the element in which two copies (n,) of a part differ most; None if they are equal."""
    places = np.flatnonzero(one.view(f"u{one.itemsize}") != other.view(f"u{other.itemsize}"))
    if not places.size:
        return None
    with np.errstate(all="ignore"):  # what is corrupted may be anything, infinity too
        differences = np.abs(one[places].astype(np.float64) - other[places])
        differences = np.where(np.isnan(differences), np.inf, differences)
        typical = np.sqrt(np.mean(np.square(other, dtype=np.float64)))
        place = int(places[differences.argmax()])
        size = float(differences.max() / typical) if 0 < typical < np.inf else float("inf")
    return Element(size, str(key), key.index(place), (float(one[place]), float(other[place])))


Noted = list[list[str]]  # for each step, and before the first, the digest of every key


class OwnGradients:
    """Hashes of a rank's own gradients: each is hashed when backward has completed it, before any hook sends it."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.names = [parameter.name for parameter in parameters]
        self.clear()
        for parameter in parameters:
            parameter.hooks.insert(0, self.add)

    def clear(self) -> None:
        self.hashes = {name: hashlib.sha256() for name in self.names}

    def add(self, parameter: Parameter) -> None:
        self.hashes[parameter.name].update(np.ascontiguousarray(backend.to_host(parameter.grad)).data)

    def take(self) -> list[str]:
        """Return the digests of the step that ends, and begin the next."""
        found = [sha.hexdigest()[:16] for sha in self.hashes.values()]
        self.clear()
        return found


class Notes:
    """The digests that one rank notes in one computation of some steps, with or without its own gradients.

    ``keys`` has the parts that are noted, in order; ``noted`` has their digests, first before the first step.
    """

    def __init__(self, share: Share, gradients: bool) -> None:
        self.parts = Parts(share)
        self.own = OwnGradients(share.model.local.parameters() if gradients else ())
        self.keys = [*(Key(GRADIENT, name) for name in self.own.names), *self.parts.get, Key(LOSS, "the loss")]
        self.begin()

    def begin(self) -> None:
        """Forget all steps so far, and note the state before the next one."""
        self.noted: Noted = []
        self.after_step(0.0)

    def after_step(self, loss: float) -> None:
        state = [digest(self.parts.on_host(key)) for key in self.parts.get]
        self.noted.append([*self.own.take(), *state, digest(np.array([loss], np.float64))])


NAMING = 3  # at least this many voters can outvote one


@overridable
def odd_ones_out(digests: list[str]) -> list[int] | None:
    """Return the places of the digests that differ from that of more than half of all voters; [] if all agree.

    None if no digest has more than half: then no voter can be named.
    """
    ((digest, count),) = Counter(digests).most_common(1)
    if 2 * count <= len(digests):
        return None
    return [place for place, other in enumerate(digests) if other != digest]


@dataclass(frozen=True)
class Disagreement:
    """A part that ranks hold in different bits."""

    key: Key
    voters: list[int]  # all ranks that hold it
    odd: list[int] | None  # the wrong ones among them; None if they cannot be named


def voters(keys: list[list[Key]]) -> dict[Key, list[tuple[int, int]]]:
    """Return the holders of each part that ranks must agree on, as pairs (rank, place in its list of keys)."""
    found: dict[Key, list[tuple[int, int]]] = {}
    for rank, mine in enumerate(keys):
        for place, key in enumerate(mine):
            if key.kind != GRADIENT:  # each rank's is of other samples
                found.setdefault(key, []).append((rank, place))
    return found


def vote(keys: list[list[Key]], noted: list[Noted]) -> tuple[int, list[Disagreement]]:
    """Return the first place in the ranks' notes at which they disagree, and about what; (-1, []) if they agree.

    Each rank's ``keys`` are in the order of its notes.
    """
    holders = voters(keys)
    for time in range(len(noted[0])):
        found = []
        for key, places in holders.items():
            ranks = [rank for rank, _ in places]
            odd = odd_ones_out([noted[rank][time][place] for rank, place in places])
            if odd is None or odd:
                found.append(Disagreement(key, ranks, None if odd is None else [ranks[place] for place in odd]))
        if found:
            return time, found
    return -1, []


def outvoted(found: list[Disagreement]) -> int | None:
    """Return the one rank that all these disagreements are about; None if there is no such rank."""
    named = {rank for disagreement in found for rank in disagreement.odd or ()}
    if len(named) != 1:
        return None
    (rank,) = named
    return rank if all(rank in disagreement.voters for disagreement in found) else None
