"""Contents of a checkpoint, kind by kind."""

from math import prod

import numpy as np


def sizes(manifest) -> dict[str, list[int]]:
    """Return kind of array -> bytes of each array of that kind in a checkpoint."""
    found: dict[str, list[int]] = {}
    for name, array in manifest.arrays.items():
        if name.startswith("exp_avg"):
            kind = "second moments" if name.startswith("exp_avg_sq") else "first moments"
        elif f"exp_avg.{name}" in manifest.arrays:
            kind = f"weights in {array.dtype}"
        else:
            kind = "routers: biases, and the last step's counts"
        found.setdefault(kind, []).append(prod(array.shape) * np.dtype(array.dtype).itemsize)
    return found


def rows(manifest) -> list[tuple]:
    """Return (what, arrays or value, bytes) for everything in a checkpoint."""
    progress = manifest.progress
    scaler = f"{progress.loss_scale:g}; {progress.good_steps}; {progress.skipped_steps}"
    return [
        *((kind, len(some), f"{sum(some):,}") for kind, some in sizes(manifest).items()),
        ("steps taken, and the loss of each", f"{progress.step}, {len(progress.losses)} losses", ""),
        ("updates of the optimizer", progress.updates, ""),
        ("loss scale; good steps; skipped steps", scaler, ""),
        ("also: settings, SHA-256 of the text, versions", "", ""),
    ]
