"""The manifest of a checkpoint: what a run needs to go on, and where each part of each array is."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from minidist.nn.optim.optimizers import Optimizer
from minidist.nn.precision.loss_scaling import GradScaler
from minidist.parallel.tools.regions import Run
from minidist.train.checkpoint.commit import MANIFEST
from minidist.train.checkpoint.disk import Disk

FORMAT = 1  # of the manifest and the files: another number is another way of writing them


class BadCheckpoint(ValueError):
    """A checkpoint cannot be used: the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Slice:
    """A part of a full array, in a file.

    Attributes:
        file: its name in the checkpoint's folder. There, the part is a flat array under the full array's name.
        runs: where it is in the full array laid flat (parallel/tools/regions.py).
    """

    file: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class ArrayEntry:
    """A full array, and the slices that make it up."""

    shape: tuple[int, ...]
    dtype: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class FileEntry:
    """A file of the checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Progress:
    """What a run needs to go on beside its arrays. The same on all ranks.

    Attributes:
        step: how many steps have been taken.
        losses: of each of them.
        updates: how many of them the optimizer took: its step, for the bias correction.
        loss_scale, good_steps, skipped_steps: of the GradScaler (nn/precision/loss_scaling.py).
    """

    step: int
    losses: tuple[float, ...]
    updates: int
    loss_scale: float = 1.0
    good_steps: int = 0
    skipped_steps: int = 0

    @classmethod
    def of(cls, losses: Sequence[float], optimizer: Optimizer, scaler: GradScaler) -> "Progress":
        """Of a run at the end of a step."""
        return cls(len(losses), tuple(losses), optimizer.steps, scaler.scale, scaler.good_steps, scaler.skipped)

    def put_into(self, optimizer: Optimizer, scaler: GradScaler) -> None:
        """Set what ``of`` has read of them."""
        optimizer.steps = self.updates
        scaler.scale, scaler.good_steps, scaler.skipped = self.loss_scale, self.good_steps, self.skipped_steps


@dataclass(frozen=True)
class Manifest:
    """All of a checkpoint but the values of its arrays.

    Attributes:
        layout: of the run that wrote it, for people: any layout reads it.
        config: the settings of the run, by name.
        corpus: the SHA-256 of the text.
        versions: of what may change bits (``backend.versions``).
        checked: the number of steps after which the numbers were last checked (train/replicas/); None without checks.
        arrays: by name, as in the fingerprint: ``blocks.0.mlp.fc.weight``, ``exp_avg.blocks.0.mlp.fc.weight``.
        files: by name.
    """

    layout: str
    config: dict
    corpus: str
    versions: dict[str, str]
    progress: Progress
    checked: int | None = None
    arrays: dict[str, ArrayEntry] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """As it is written: JSON, with a SHA-256 of its own. (Python reads back exactly the float that it wrote.)"""
        content = json.dumps(asdict(self))
        return json.dumps({"format": FORMAT, "sha256": _sha(content), "manifest": json.loads(content)}).encode()

    @classmethod
    def read(cls, disk: Disk, folder: Path) -> "Manifest":
        """The manifest of a checkpoint.

        Raises:
            BadCheckpoint: if there is none, if it was written in another format, or if it has been changed.
        """
        path = folder / MANIFEST
        if MANIFEST not in disk.names(folder):
            raise BadCheckpoint(f"{folder} is not a checkpoint: it has no {MANIFEST}, which is written last")
        try:
            document = json.loads(disk.read(path))
            if document["format"] != FORMAT:
                raise BadCheckpoint(
                    f"{path} is written in format {document['format']}, and this version of minidist reads format "
                    f"{FORMAT}: use the version that wrote it"
                )
            content = document["manifest"]
            intact = _sha(json.dumps(content)) == document["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadCheckpoint):
                raise
            intact = False
        if not intact:
            raise BadCheckpoint(f"{path} has been changed since it was written: use another checkpoint")
        return cls(
            **content
            | {
                "progress": Progress(**content["progress"] | {"losses": tuple(content["progress"]["losses"])}),
                "arrays": {name: _array_entry(entry) for name, entry in content["arrays"].items()},
                "files": {name: FileEntry(**entry) for name, entry in content["files"].items()},
            }
        )


def _array_entry(entry: dict) -> ArrayEntry:
    slices = [Slice(part["file"], tuple((start, stop) for start, stop in part["runs"])) for part in entry["slices"]]
    return ArrayEntry(tuple(entry["shape"]), entry["dtype"], tuple(slices))


def _sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
