"""Training on a disk that is slow, or with a thread that writes late."""

import time
from unittest.mock import patch

import minidist as md
from minidist.train.checkpoint import saver
from minidist.train.checkpoint.disk import Disk


def train_on_slow_disk(world, config, layout, options):
    """Run ``md.train_rank`` on a disk that takes 0.1 s to write a rank's file."""
    write = Disk.write

    def slow_write(self, path, content):
        time.sleep(0.1 * path.name.startswith(".new-rank"))
        write(self, path, content)

    with patch.object(Disk, "write", slow_write):
        return md.train_rank(world, config, layout, options)


def train_with_snapshot(snapshot):
    """Return a ``md.train_rank`` with this function as its snapshot, and a thread that writes it 0.3 s later."""

    def train_rank(world, config, layout, options):
        encode = saver.encode_safetensors

        def late(arrays):
            time.sleep(0.3)
            return encode(arrays)

        with patch.object(saver, "encode_safetensors", late), patch.object(saver, "_copy", snapshot):
            return md.train_rank(world, config, layout, options)

    return train_rank
