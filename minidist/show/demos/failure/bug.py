"""Saving with one bug, and resuming with another: files are not flushed in time, and Adam's moments are not loaded.

KempnerForge had the first (issue 102): ``latest`` was advanced, and the old checkpoint deleted, before an asynchronous
save had been flushed. A file can be read once it is written, so nothing seems to be missing until the power fails.
"""

from pathlib import Path
from unittest.mock import patch

from minidist.show.demos.failure.recording import train_recorded
from minidist.train import trainer
from minidist.train.checkpoint import saver
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import Manifest, Progress
from minidist.train.checkpoint.restore import Read, restore
from minidist.train.checkpoint.saver import Saver, Write
from minidist.train.share import Share
from minidist.train.trainer import train_rank

FORGETS = "the checkpoint's Adam moments are not loaded: they begin at zero again"
BUG = "`latest` moves, and the old checkpoint goes, before the ranks' files are flushed"


def write_without_flush(disk: Disk, path: Path, content: bytes) -> None:
    """Write a file as ``write_durably`` does, but flush nothing: it need not be on the disk when the call returns."""
    new = path.with_name(f".new-{path.name}")
    disk.write(new, content)
    disk.rename(new, path)


class EarlySaver(Saver):
    """Saver that flushes this rank's file only after the checkpoint has been committed."""

    def end_save(self, write: Write, wait: bool) -> None:
        super().end_save(write, wait)
        if self.write is None:
            self.disk.flush(write.path)
            self.disk.flush_folder(write.path.parent)


def train_early(world, config, layout, options):
    """Run ``train_recorded`` with the bug: rank 0 commits before the ranks' files are flushed."""
    with patch.object(saver, "write_durably", write_without_flush):
        return train_recorded(world, config, layout, options, EarlySaver)


def restore_without_moments(manifest: Manifest, read: Read, share: Share) -> Progress:
    """Restore a checkpoint as ``restore`` does, but set Adam's moments to zero.

    KempnerForge had this bug, too (pull request 115): a new optimizer has no moments yet, so there was nothing to load
    the saved ones into, and they were dropped silently.
    """
    progress = restore(manifest, read, share)
    for arrays in share.optimizer.kinds.values():
        for array in arrays.values():
            array[...] = 0
    return progress


def train_forgetful(world, config, layout, options):
    """Run ``train_rank`` with the bug: Adam's moments are zero after a checkpoint has been restored."""
    with patch.object(trainer, "restore", restore_without_moments):
        return train_rank(world, config, layout, options)
