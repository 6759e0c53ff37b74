"""One plain file from a checkpoint: full arrays under their names, for any program that reads safetensors."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from minidist.parallel.tools.regions import Region
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.restore import STATES, Files, read_part


def full_arrays(folder: Path, manifest: Manifest, optimizer: bool = False) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint in their full shapes, as one process has them.

    Args:
        optimizer: whether to include the optimizer's states.
    """
    names = [name for name in manifest.arrays if optimizer or not name.startswith(STATES)]
    with Files(folder) as files:
        return {name: _full(manifest, name, files) for name in names}


def _full(manifest: Manifest, name: str, files: Files) -> np.ndarray:
    entry = manifest.arrays[name]
    return read_part(entry, name, Region.full(entry.shape).runs, files.read).reshape(entry.shape)


def export(folder: Path, manifest: Manifest, to: Path, optimizer: bool = False) -> None:
    """Write ``full_arrays`` to one safetensors file."""
    save_file(full_arrays(folder, manifest, optimizer), to, metadata={"step": str(manifest.progress.step)})
