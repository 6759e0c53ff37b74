"""A snapshot: this rank's part of a checkpoint, copied in memory at the end of a step.

What is copied is what the optimizer works with: float32 weights (the master weights of a 16-bit precision), and its two
moments of each. All else can be computed from them.

Each part is written once: of the ranks that hold it, the one with the least to write so far writes it, so that all
write about as much. (PyTorch's distributed checkpoint removes
duplicates by the same rule.)
"""

import json
from dataclasses import dataclass

import numpy as np

from minidist import backend
from minidist.comm.group import ProcessGroup
from minidist.overrides import overridable
from minidist.parallel.tools.messages import texts_of_all
from minidist.parallel.tools.regions import Region, Run
from minidist.train.checkpoint.manifest import Progress
from minidist.train.share import Share

Held = dict[str, tuple[Run, ...]]  # parameter name -> the runs that a rank has of it, and counts as its own


@dataclass(frozen=True)
class Part:
    """A part of a full array that this rank saves.

    Attributes:
        values: in host memory, flat; nobody else changes them.
        runs: where they are in the full array.
        shape: of the full array.
    """

    values: np.ndarray
    runs: tuple[Run, ...]
    shape: tuple[int, ...]

    def described(self) -> dict:
        """All of it but the values, for JSON."""
        return {"runs": self.runs, "shape": self.shape, "dtype": str(self.values.dtype)}


@overridable
def writers(held: list[Held]) -> list[set[str]]:
    """Which parameters each rank saves its part of: of ranks with the same part, one does.

    Args:
        held: for each rank what it has.

    Returns:
        For each rank the names. The same on every rank, because it depends on nothing else.
    """
    alike: dict[tuple, list[int]] = {}  # a part -> the ranks that have it
    for rank, parts in enumerate(held):
        for name, runs in parts.items():
            alike.setdefault((name, tuple(map(tuple, runs))), []).append(rank)
    load, chosen = [0] * len(held), [set() for _ in held]
    for (name, runs), ranks in alike.items():
        rank = min(ranks, key=lambda rank: (load[rank], rank))
        chosen[rank].add(name)
        load[rank] += sum(stop - start for start, stop in runs)
    return chosen


class Snapshots:
    """Takes snapshots of a run on one rank. All ranks make one together.

    Args:
        world: all ranks.
        share: of this rank.
    """

    def __init__(self, world: ProcessGroup, share: Share) -> None:
        self.share, model = share, share.model
        self.regions: dict[str, Region] = model.regions()
        mine = {p.name: self.regions[p.name].runs for p in model.trained if model.owns(p)}
        everyone = [json.loads(text) for text in texts_of_all(json.dumps(mine), world)]
        names = writers(everyone)[world.rank]
        self.saved = [parameter for parameter in model.trained if parameter.name in names]
        self.extra = world.rank == 0  # whether to save what is no parameter, which all ranks have

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return Progress.of(self.share.losses, self.share.optimizer, self.share.scaler)

    def take(self) -> dict[str, Part]:
        """A copy of what this rank saves, by the names of the fingerprint."""
        parts = {}
        for parameter in self.saved:
            name = parameter.name
            runs, shape = self.regions[name].runs, self.share.model.shapes[name]
            parts[name] = Part(_copy(parameter.data), runs, shape)
            for kind, arrays in self.share.optimizer.kinds.items():
                parts[f"{kind}{name}"] = Part(_copy(arrays[name]), runs, shape)
        for name, array in self.share.gpt.extra_state().items() if self.extra else ():
            parts[name] = Part(_copy(array), Region.full(array.shape).runs, array.shape)
        return parts


def _copy(array) -> np.ndarray:
    return backend.to_host(array).reshape(-1).copy()
