"""Saving with one bug: rank 0 commits while the ranks' files are in the system's memory only. And resuming with one.

KempnerForge had it (issue 102): ``latest`` was advanced, and the old checkpoint deleted, before an asynchronous save
had been flushed. A file that has been written can be read, so nothing seems to be missing until the power fails.
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
    """``write_durably``, but nothing is on the disk when it returns."""
    new = path.with_name(f".new-{path.name}")
    disk.write(new, content)
    disk.rename(new, path)


class EarlySaver(Saver):
    """Flushes this rank's file once the checkpoint has been committed."""

    def end_save(self, write: Write, wait: bool) -> None:
        super().end_save(write, wait)
        if self.write is None:
            self.disk.flush(write.path)
            self.disk.flush_folder(write.path.parent)


def train_early(world, config, layout, options):
    """``train_recorded`` with this bug."""
    with patch.object(saver, "write_durably", write_without_flush):
        return train_recorded(world, config, layout, options, EarlySaver)


def restore_without_moments(manifest: Manifest, read: Read, share: Share) -> Progress:
    """``restore``, but Adam begins anew: its moments are zero.

    KempnerForge had this one, too (pull request 115): a new optimizer has no moments yet, so there was nothing for the
    saved ones to be loaded into, and they were dropped without a word.
    """
    progress = restore(manifest, read, share)
    for arrays in share.optimizer.kinds.values():
        for array in arrays.values():
            array[...] = 0
    return progress


def train_forgetful(world, config, layout, options):
    """``train_rank`` with that bug."""
    with patch.object(trainer, "restore", restore_without_moments):
        return train_rank(world, config, layout, options)
