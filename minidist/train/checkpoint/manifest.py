"""The manifest of a checkpoint: what a run needs to go on, and where each part of each array is.

Anybody may have written one, so ``Manifest.read`` trusts nothing: types and bounds are those below (msgspec checks
them), files have plain names, and the slices of an array are parts of it that do not overlap.

It also says which run it belongs to: a run goes on only with the settings and the text that it began with.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from math import inf, prod
from pathlib import Path
from sys import float_info
from typing import Annotated, Literal

from msgspec import Meta, ValidationError, convert

from minidist.backend import versions
from minidist.data.samples import DocumentCorpus
from minidist.files import strict_json
from minidist.nn.data import Corpus
from minidist.nn.optim.optimizers import Optimizer
from minidist.nn.precision.underflow import GradScaler
from minidist.nn.tokenizer import TOKENIZER, ByteTokenizer
from minidist.train.checkpoint.commit import MANIFEST, is_name, step_of
from minidist.train.checkpoint.disk import BadCheckpoint, Disk
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

FORMAT = 1  # version of the manifest's and the files' format

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
FileOfRank = Annotated[str, Meta(pattern=r"\Arank-[0-9]{1,6}\.safetensors\Z")]
FileName = Annotated[str, Meta(pattern=r"\A(rank-[0-9]{1,6}\.safetensors|tokenizer\.json)\Z")]
DType = Literal["float32", "float64"]


@dataclass(frozen=True)
class Slice:
    """A part of a full array, stored in a file as a flat array under the full array's name."""

    file: FileOfRank
    runs: tuple[tuple[Count, Count], ...]  # where it is in the full array laid flat (parallel/tools/regions.py)


@dataclass(frozen=True)
class ArrayEntry:
    """A full array, and the slices that make it up."""

    shape: tuple[Count, ...]
    dtype: DType
    slices: tuple[Slice, ...]


def joined(several: Iterable[dict[str, ArrayEntry]]) -> dict[str, ArrayEntry]:
    """Merge descriptions of arrays: return every array, by name, with the slices of all of them, each slice once."""
    found: dict[str, ArrayEntry] = {}
    for arrays in several:
        for name, entry in arrays.items():
            slices = found[name].slices if name in found else ()
            found[name] = replace(entry, slices=tuple(dict.fromkeys((*slices, *entry.slices))))
    return found


@dataclass(frozen=True)
class FileEntry:
    """A file of the checkpoint."""

    bytes: Count
    sha256: str


@dataclass(frozen=True)
class Progress:
    """State of a run besides its arrays, the same on all ranks."""

    step: Count  # number of steps taken
    losses: tuple[Finite, ...]  # of each step
    updates: Count  # number of steps that the optimizer took, for its bias correction
    loss_scale: Finite = 1.0  # this and the rest: state of the GradScaler (nn/precision/underflow.py)
    good_steps: Count = 0
    skipped_steps: Count = 0

    @classmethod
    def of(cls, losses: Sequence[float], optimizer: Optimizer, scaler: GradScaler) -> "Progress":
        """Return the progress of a run at the end of a step."""
        return cls(len(losses), tuple(losses), optimizer.steps, scaler.scale, scaler.good_steps, scaler.skipped)

    def put_into(self, optimizer: Optimizer, scaler: GradScaler) -> None:
        """Set the state of the optimizer and the scaler that ``of`` has read."""
        optimizer.steps = self.updates
        scaler.scale, scaler.good_steps, scaler.skipped = self.loss_scale, self.good_steps, self.skipped_steps


@dataclass(frozen=True)
class Manifest:
    """Everything in a checkpoint except the values of its arrays. Arrays have the names that the fingerprint uses."""

    layout: str  # of the run that wrote it, for people: any layout can read it
    config: dict  # the settings of the run, by name
    corpus: str  # the SHA-256 of the text
    versions: dict[str, str]  # of the software that may change bits (``backend.versions``)
    progress: Progress
    checked: Count | None = None  # steps after which the numbers were last checked (train/resilience/)
    arrays: dict[str, ArrayEntry] = field(default_factory=dict)  # blocks.0.mlp.fc.weight, exp_avg.blocks.0.mlp...
    files: dict[FileName, FileEntry] = field(default_factory=dict)  # with a copy of the tokenizer's, if there is one

    def encoded(self) -> bytes:
        """Return the file's content: JSON, with its SHA-256. (Python reads back exactly the float that it wrote.)"""
        content = strict_json(asdict(self))
        return json.dumps({"format": FORMAT, "sha256": _sha(content), "manifest": json.loads(content)}).encode()

    @classmethod
    def read(cls, disk: Disk, folder: Path) -> "Manifest":
        """Read the manifest of a checkpoint.

        Raises:
            BadCheckpoint: if there is none, if it was written in another format, if it has been changed, or if it
                contradicts itself.
        """
        path = folder / MANIFEST
        if MANIFEST not in disk.names(folder):
            raise BadCheckpoint(f"{folder} is not a checkpoint: it has no {MANIFEST}, which is written last")
        try:
            document = json.loads(disk.read(path))
            written_in, content, sha256 = (document[key] for key in ("format", "manifest", "sha256"))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, BadCheckpoint):
                raise
            raise BadCheckpoint(f"{path} is not a manifest, or was cut off: use another checkpoint") from None
        if written_in != FORMAT:
            raise BadCheckpoint(
                f"{path} is written in format {written_in!r}, but this version of minidist reads format {FORMAT}: use "
                "the version that wrote it"
            )
        if _sha(json.dumps(content)) != sha256:
            raise BadCheckpoint(f"{path} has been changed since it was written: use another checkpoint")
        try:
            manifest = convert(content, cls)
        except ValidationError as error:
            raise BadCheckpoint(f"{path}: {error}") from None
        if json.loads(json.dumps(asdict(manifest))) != content:  # unknown keys, and NaN
            raise BadCheckpoint(f"{path} contains more than a manifest, or NaN")
        if problem := manifest._contradiction(folder.name):
            raise BadCheckpoint(f"{path}: {problem}")
        return manifest

    def _contradiction(self, name: str) -> str:
        """Return what contradicts itself in a checkpoint of that name; "" if nothing does."""
        step = self.progress.step
        if is_name(name) and step_of(name) != step:
            return f"it is of step {step}, and its folder is called {name}"
        if len(self.progress.losses) != step:
            return f"it has {len(self.progress.losses)} losses of {step} steps"
        if self.progress.updates > step:
            return f"it has {self.progress.updates} updates of {step} steps"
        if (TOKENIZER in self.files) != (self.config.get("tokenizer") is not None):
            return f"it has a {TOKENIZER} without the setting, or the setting tokenizer without the file"
        for array, entry in self.arrays.items():
            runs = sorted(run for part in entry.slices for run in part.runs)
            if strange := {part.file for part in entry.slices} - self.files.keys():
                return f"{array} has a slice in {', '.join(sorted(strange))}, which is not among its files"
            if any(start >= stop for start, stop in runs) or (runs and runs[-1][1] > prod(entry.shape)):
                return f"{array} has slices that are not in its shape {entry.shape}"
            if any(one[1] > two[0] for one, two in pairwise(runs)):
                return f"{array} has slices that overlap"
        return ""


def _sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


# may differ: text and tokenizer are compared by their content, and a run may go on with another backend
FREE = ("text", "tokenizer", "backend")
PROLONGED = ("steps", "lr_schedule", "lr_decay_steps")  # may differ if all steps so far keep their learning rates


def manifest_of(config: TrainConfig, layout: Layout, corpus: Corpus | DocumentCorpus, progress: Progress) -> Manifest:
    """Return the manifest of a run, without arrays and files."""
    return Manifest(str(layout), asdict(config), corpus.sha256, versions(config.backend), progress)


def config_in(manifest: Manifest) -> TrainConfig:
    """Return the settings of the run that wrote a checkpoint.

    Raises:
        BadCheckpoint: if this version of minidist has other settings, or these are invalid.
    """
    known = {field.name for field in fields(TrainConfig)}
    if strange := sorted(manifest.config.keys() ^ known):
        raise BadCheckpoint(
            f"the checkpoint is from another version of minidist, with other settings: {', '.join(strange)}. Resume it "
            "with the version that wrote it"
        )
    reals = {field.name for field in fields(TrainConfig) if field.type in (float, float | None)}
    settings = {name: inf if name in reals and value == "inf" else value for name, value in manifest.config.items()}
    try:
        return convert(settings, TrainConfig)
    except ValueError as error:
        raise BadCheckpoint(f"the checkpoint has invalid settings: {error}") from None


def layout_in(manifest: Manifest) -> Layout:
    """Return the layout of the run that wrote a checkpoint.

    Raises:
        BadCheckpoint: if this version of minidist has no such layout.
    """
    try:
        return Layout.parse(manifest.layout)
    except ValueError as error:
        raise BadCheckpoint(f"the checkpoint names an invalid layout: {error}") from None


def check_same_run(manifest: Manifest, config: TrainConfig, corpus: Corpus | DocumentCorpus) -> None:
    """Raise BadCheckpoint unless a run with these settings and this text can be the one that wrote the checkpoint."""
    check_tokenizer(manifest, corpus.tokenizer)
    before, taken = config_in(manifest), manifest.progress.step
    there, here = asdict(before), asdict(config)
    other = [name for name in here if name not in FREE + PROLONGED and there[name] != here[name]]
    if other:
        differences = ", ".join(f"{name} {there[name]} there and {here[name]} here" for name in other)
        raise BadCheckpoint(
            f"the checkpoint belongs to a run with other settings: {differences}. Leave these settings out to go on "
            "with those of the checkpoint"
        )
    if taken > config.steps:
        raise BadCheckpoint(f"the checkpoint is of step {taken}, but this run has only {config.steps}: set more steps")
    if any(before.lr_at(step) != config.lr_at(step) for step in range(taken)):
        raise BadCheckpoint(
            f"with {', '.join(f'{name} {here[name]}' for name in PROLONGED)} the {taken} steps so far would have had "
            f"other learning rates than with {', '.join(f'{name} {there[name]}' for name in PROLONGED)}. A run can be "
            "prolonged under --lr-schedule constant, and under wsd from a checkpoint before the decay"
        )
    if corpus.sha256 != manifest.corpus:
        name = manifest.config["text"] or "the course text"
        raise BadCheckpoint(
            f"the checkpoint belongs to a run on another text ({name}): pass the same one with --text FILE"
        )


def check_tokenizer(manifest: Manifest, tokenizer: ByteTokenizer) -> None:
    """Raise BadCheckpoint unless this tokenizer is that of the run that wrote the checkpoint."""
    there = manifest.files[TOKENIZER].sha256 if TOKENIZER in manifest.files else ""
    if there == tokenizer.sha256:
        return
    if not there:
        raise BadCheckpoint("the checkpoint belongs to a run on bytes, without a tokenizer: leave out --tokenizer")
    raise BadCheckpoint(
        f"the checkpoint belongs to a run with another tokenizer than {tokenizer.name}: pass the same one with "
        f"--tokenizer FILE. The checkpoint has a copy of it, {TOKENIZER}, whose SHA-256 is {there}"
    )


def other_versions(manifest: Manifest, backend: str) -> str:
    """Return a note on what has changed since the checkpoint was written and may change bits; "" if nothing has."""
    there = {"backend": manifest.config["backend"]} | manifest.versions
    if manifest.config["products"] == "exact":  # random numbers remain
        there = {name: old for name, old in there.items() if name == "numpy"}
    here = {"backend": backend} | versions(backend)
    changed = [f"{name} {old}, now {here[name]}" for name, old in there.items() if here.get(name, old) != old]
    return f"the checkpoint was written with {' and '.join(changed)}: the bits may differ" if changed else ""
