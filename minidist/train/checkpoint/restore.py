"""Reading a checkpoint in any layout: each rank reads the slices that it needs, whichever ranks wrote them.

The manifest says where every slice is in the full array, and the axes say where each of this rank's parts is
(``Axis.regions``). Where the two overlap there are elements to read. (PyTorch calls it resharding on load.)

A file is trusted only after its SHA-256 has been compared: the process that starts the ranks does so, once for all of
them, before any work begins.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from minidist import backend
from minidist.files import sha256_of
from minidist.nn.models import model_of
from minidist.nn.tokenizer import TOKENIZER
from minidist.overrides import overridable
from minidist.parallel.tools.regions import Region, Run, overlaps
from minidist.train.checkpoint.commit import committed, latest
from minidist.train.checkpoint.disk import Disk, check_regular
from minidist.train.checkpoint.manifest import ArrayEntry, BadCheckpoint, Manifest, Progress, config_in
from minidist.train.config import TrainConfig
from minidist.train.share import Share

STATES = ("exp_avg.", "exp_avg_sq.")  # prefixes of the names of the optimizer's states
CODES = {"float32": "F32", "float64": "F64"}  # of safetensors

Read = Callable[[str, str, int, int], np.ndarray]  # file, array, start, stop -> those elements of the slice there


def find_checkpoint(path: str) -> Path:
    """Return the checkpoint that ``--resume PATH`` means: that folder, or the newest checkpoint in it.

    Raises:
        BadCheckpoint: if there is none.
    """
    folder, disk = Path(path), Disk()
    own = folder.resolve()  # a checkpoint may be called "." here, or by a link's name
    beside = committed(disk, own.parent)
    if own.name in beside:
        return own if folder.is_symlink() or folder.name != own.name else folder
    if (name := latest(disk, folder)) is None:
        hint = f"beside it are {', '.join(beside)}" if beside else "name the folder that --save wrote"
        raise BadCheckpoint(f"there is no checkpoint in {folder}: {hint}")
    return folder / name


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare every file of a checkpoint with its manifest, and its arrays with those of the run's settings.

    Raises:
        BadCheckpoint: naming the files that are missing, truncated or changed, and the arrays that differ.
    """
    problems = []
    for name in manifest.files:
        try:
            check_file(folder, name, manifest)
        except BadCheckpoint as error:
            problems.append(str(error))
    for name, array in manifest.arrays.items():
        if missing := missing_elements(array):
            problems.append(f"{folder}: no file has {missing:,} of the {array.shape} elements of {name}")
    config = config_in(manifest)
    if config.layers > len(manifest.arrays):
        raise BadCheckpoint(
            f"{folder} has only {len(manifest.arrays)} arrays, but its model has {config.layers} layers"
        )
    there = {name: (array.shape, array.dtype) for name, array in manifest.arrays.items()}
    try:
        expected = arrays_of(config)
    except (MemoryError, ValueError):  # NumPy's, of arrays that no memory holds
        raise BadCheckpoint(f"{folder} has the settings of a model that is too large for this machine") from None
    for name in sorted(name for name in there | expected if there.get(name) != expected.get(name)):
        one, other = (f"{a[name][1]} {a[name][0]}" if name in a else "none" for a in (expected, there))
        problems.append(f"{folder}: expected {name} to be {one}, got {other}")
    if problems:
        raise BadCheckpoint("\n".join(problems))


def check_file(folder: Path, name: str, manifest: Manifest) -> None:
    """Compare one file with the manifest: its bytes, then the names, dtypes and sizes of its arrays.

    Raises:
        BadCheckpoint: naming the file.
    """
    path, entry = folder / name, manifest.files[name]
    check_regular(path)
    if path.stat().st_size != entry.bytes:
        raise BadCheckpoint(f"{path} has {path.stat().st_size:,} bytes, but had {entry.bytes:,} when it was written")
    if sha256_of(path) != entry.sha256:
        raise BadCheckpoint(f"{path} has been changed since it was written: its SHA-256 differs")
    if name == TOKENIZER:
        return
    expected = {
        array: (CODES[entry.dtype], [sum(stop - start for start, stop in part.runs)])
        for array, entry in manifest.arrays.items()
        for part in entry.slices
        if part.file == name
    }
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {array: file.get_slice(array) for array in file.keys()}  # noqa: SIM118  not a dictionary
            there = {array: (part.get_dtype(), part.get_shape()) for array, part in slices.items()}
    except SafetensorError as error:
        raise BadCheckpoint(f"{path} is not a safetensors file: {error}") from None
    if there != expected:
        other = min(array for array in there | expected if there.get(array) != expected.get(array))
        one, two = (" ".join(map(str, a[other])) if other in a else "nothing" for a in (expected, there))
        raise BadCheckpoint(f"{path}: its manifest says that {other} is {one}, but it is {two}")


@lru_cache
def arrays_of(config: TrainConfig) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and dtype of every array that a run with these settings saves, by name."""
    model = model_of(config.model, seed=None)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    kinds = ("",) if config.optimizer == "sgd" else ("", *STATES)
    parameters = {f"{kind}{name}": (shape, "float32") for kind in kinds for name, shape in shapes.items()}
    return parameters | {name: (array.shape, str(array.dtype)) for name, array in model.extra_state().items()}


def is_whole(disk: Disk, folder: Path) -> bool:
    """Return whether the manifest and all files of a checkpoint are as they were written."""
    try:
        check_files(folder, Manifest.read(disk, folder))
    except BadCheckpoint:
        return False
    return True


@overridable
def missing_elements(array: ArrayEntry) -> int:
    """Return the number of elements of a full array that are in none of its slices."""
    runs = sorted(run for part in array.slices for run in part.runs)
    covered, end = 0, 0
    for start, stop in runs:
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    return int(np.prod(array.shape)) - covered


@overridable
def read_part(array: ArrayEntry, name: str, runs: tuple[Run, ...], read: Read) -> np.ndarray:
    """Read one part of a full array from the slices that any layout wrote.

    Args:
        array: the array's entry in the manifest.
        name: the array's name.
        runs: where the part is in the full array laid flat.
        read: ``read(file, name, start, stop)`` returns those elements of the slice that a file has of an array.

    Returns:
        The part, flat. Only elements of the part are read.

    Raises:
        BadCheckpoint: if some of its elements are in no slice.
    """
    values = np.empty(sum(stop - start for start, stop in runs), array.dtype)
    missing = np.ones(len(values), bool)
    for part in array.slices:
        for here, there, length in overlaps(runs, part.runs):
            values[here : here + length] = read(part.file, name, there, there + length)
            missing[here : here + length] = False
    if missing.any():
        raise BadCheckpoint(f"no file has {missing.sum():,} of the elements of {name} that this rank needs")
    return values


class Files(ExitStack):
    """Context manager that reads slices out of a checkpoint's files; ``bytes_read`` counts their bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.open, self.bytes_read = folder, {}, 0

    def read(self, file: str, name: str, start: int, stop: int) -> np.ndarray:
        if file not in self.open:
            self.open[file] = self.enter_context(safe_open(self.folder / file, framework="numpy"))
        values = self.open[file].get_slice(name)[start:stop]
        self.bytes_read += values.nbytes
        return values


def wanted(share: Share) -> Iterator[tuple[str, tuple[Run, ...], np.ndarray | None]]:
    """Yield what this rank needs of a checkpoint: the name of each array, the runs, and the array to put them into.

    The model's extra state comes last, with None for an array: ``load_extra_state`` puts it in place.
    """
    regions = share.model.regions()
    for parameter in share.model.trained:
        for kind, arrays in ({"": {parameter.name: parameter.data}} | share.optimizer.kinds).items():
            yield f"{kind}{parameter.name}", regions[parameter.name].runs, arrays[parameter.name]
    for name, array in share.gpt.extra_state().items():
        yield name, ((0, array.size),), None


def restore(manifest: Manifest, read: Read, share: Share) -> Progress:
    """Put a checkpoint into this rank's share of a run, and return the run's progress.

    All ranks call it together, before the first step. ``read``: see ``read_part``.

    Raises:
        BadCheckpoint: if an array, or a part of one, is missing.
    """
    extra = {}
    for name, runs, target in wanted(share):
        if name not in manifest.arrays:
            raise BadCheckpoint(f"the checkpoint has no array {name}")
        values = read_part(manifest.arrays[name], name, runs, read)
        if target is None:
            extra[name] = values.reshape(manifest.arrays[name].shape)
        else:
            backend.copy_from_host(target, values.reshape(target.shape))
    share.model.sync_params()
    share.gpt.load_extra_state(extra)
    manifest.progress.put_into(share.optimizer, share.scaler)
    return manifest.progress


class FullArrays(Files):
    """Context manager with the full arrays of a checkpoint, by name; each is read when it is looked up."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder)
        self.entries = manifest.arrays

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        return read_part(entry, name, Region.full(entry.shape).runs, self.read).reshape(entry.shape)


def full_arrays(folder: Path, manifest: Manifest, optimizer: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays of a checkpoint in their full shapes, with or without the optimizer's states."""
    with FullArrays(folder, manifest) as arrays:
        return {name: arrays[name] for name in manifest.arrays if optimizer or not name.startswith(STATES)}


def export(folder: Path, manifest: Manifest, to: Path, optimizer: bool = False) -> None:
    """Write ``full_arrays`` to one safetensors file.

    Raises:
        OSError: if it cannot be written.
    """
    # save_file would put a new file in the place of a device or a pipe, and raise errors of its own
    to.write_bytes(save(full_arrays(folder, manifest, optimizer), {"step": str(manifest.progress.step)}))
