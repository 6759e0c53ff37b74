"""The parts of the full arrays that a rank holds at the end of a step, so that ranks can compare what they have."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from minidist import backend
from minidist.parallel.tools.regions import Region, Run, place_in_full
from minidist.train.share import Share

# Kinds of parts. Those of the optimizer have the names of the fingerprint: "" for weights, "exp_avg.", "exp_avg_sq.".
GRADIENT, WEIGHTS, MODEL, EXTRA, LOSS = "gradient.", "", "model.", "extra.", "loss."
IN_A_STEP = ((GRADIENT,), ("exp_avg.", "exp_avg_sq."), (WEIGHTS,), (MODEL, EXTRA, LOSS))  # in the order it makes them
TITLES = {GRADIENT: "gradient of ", "exp_avg.": "exp_avg of ", "exp_avg_sq.": "exp_avg_sq of ", MODEL: "gathered "}


@dataclass(frozen=True)
class Key:
    """Which part. Two ranks with the same key must hold the same bits, unless it is a gradient, which no sum has met.

    Attributes:
        kind: of the array: of a gradient, the weights that the optimizer updates, one of its states of them, the
            weights that the model computes with where these are others (16 bits wide, or gathered), ...
        name: of the parameter.
        runs: where the part is in the full array: see parallel/tools/regions.py.
        shape: of the full array.
    """

    kind: str
    name: str
    runs: tuple[Run, ...] = ()
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{TITLES.get(self.kind, '')}{self.name}"

    @classmethod
    def of(cls, kind: str, name: str, runs: list, shape: list) -> "Key":
        """The key that JSON made lists of."""
        return cls(kind, name, tuple(map(tuple, runs)), tuple(shape))

    def index(self, place: int) -> tuple[int, ...]:
        """Where in the full array the element at ``place`` of this part is."""
        return tuple(map(int, np.unravel_index(place_in_full(self.runs, place), self.shape)))


class Parts:
    """All parts that one rank holds of a run's state.

    Attributes:
        get: for each key a function that returns the array as it is now.
    """

    def __init__(self, share: Share) -> None:
        model, optimizer = share.model, share.optimizer
        self.get: dict[Key, Callable] = {}
        for kind, arrays in optimizer.kinds.items():
            self._add(kind, model.regions(), {name: partial(arrays.get, name) for name in arrays}, model.shapes)
        trained = {parameter.name: partial(getattr, parameter, "data") for parameter in model.trained}
        self._add(WEIGHTS, model.regions(), trained, model.shapes)
        other = set(model.local.parameters()) - set(model.trained)
        computing = {parameter.name: partial(getattr, parameter, "data") for parameter in other}
        self._add(MODEL, model.model_regions(), dict(sorted(computing.items())), model.shapes)
        extra = share.gpt.extra_state()
        regions = {name: Region.full(array.shape) for name, array in extra.items()}
        getters = {name: lambda name=name: share.gpt.extra_state()[name] for name in extra}
        self._add(EXTRA, regions, getters, {name: array.shape for name, array in extra.items()})

    def _add(self, kind: str, regions: dict[str, Region], getters: dict[str, Callable], shapes: dict) -> None:
        for name, get in getters.items():
            if name in regions:  # weights that the model gathers when it needs them are nowhere between steps
                self.get[Key(kind, name, regions[name].runs, tuple(shapes[name]))] = get

    def on_host(self, key: Key) -> np.ndarray:
        """The part, flat, in host memory. It may be the array itself."""
        return np.ascontiguousarray(backend.to_host(self.get[key]())).reshape(-1)


def digest(array: np.ndarray) -> str:
    """64 bits of the SHA-256 of an array's bytes: two arrays with other bits share them once in 2^64 times."""
    return hashlib.sha256(array).hexdigest()[:16]


@dataclass(frozen=True)
class Element:
    """Where two copies of a part differ most.

    Attributes:
        size: of the difference, relative to the root mean square of the part.
        name: of the array.
        index: in the full array.
        values: there, in both copies.
    """

    size: float
    name: str
    index: tuple[int, ...]
    values: tuple[float, float]

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]"


def largest_difference(key: Key, one: np.ndarray, other: np.ndarray) -> Element | None:
    """Where two copies (n,) of a part differ most; None if nowhere."""
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
