"""kill -9 at any moment: the last committed checkpoint is whole, and a run goes on from it."""

import os
import random
import signal
import threading
import time

import pytest
from choosing import long

from minidist.comm import RankFailed
from minidist.train.checkpoint.commit import LATEST, committed, latest, name_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.restore import check_files
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=1, heads=2, width=16, context=8, global_batch=6, steps=200, lr=1e-3, clip=0.5)
LAYOUTS = [Layout.parse(text) for text in ("dp=2", "tp=2", "zero=3,dp=3", "dp=3", "zero=1,dp=2", "cp=1,dp=1")]
SECONDS = 0.15  # after the first step a rank is killed within so long; a save of this model takes some 10 ms


def die_and_go_on(ranks, folder, kills: int, seed: int) -> tuple[int, int]:
    """Kill a rank at a random moment, resume in another layout, and so on. Every step is saved.

    Returns how often a rank was really killed, and how many committed checkpoints were then not whole, or gone.
    """
    rng, disk = random.Random(seed), Disk()
    struck = lost = 0
    for _ in range(kills):
        layout, mode = rng.choice(LAYOUTS), rng.choice(("async", "async", "sync"))
        newest = latest(disk, folder)
        cluster, delay = ranks(layout.world_size), rng.random() * SECONDS
        victim = rng.randrange(layout.world_size)
        saved: list[int] = []
        first = int(newest.removeprefix("step-")) if newest else 0

        def on_event(rank, event, cluster=cluster, delay=delay, victim=victim, saved=saved, first=first):
            if event[0] == "step" and event[1] == first and rank == 0:
                pid = cluster._ranks[victim].process.pid
                threading.Thread(target=kill_after, args=(delay, pid), daemon=True).start()
            if event[0] == "saved":
                saved.append(int(event[1].removeprefix("step-")))

        resume = str(folder / newest) if newest else None
        options = RunOptions(saving=Saving(str(folder), every=1, keep=2, mode=mode), resume=resume, progress=True)
        try:
            run(cluster, CONFIG, layout, options, on_event=on_event)
            return struck, lost  # the run has reached its end
        except RankFailed as error:
            assert error.exitcode == -signal.SIGKILL, error
            struck += 1
        there = committed(disk, folder)
        if LATEST in disk.names(folder):
            lost += disk.read(folder / LATEST).decode() not in there
        lost += bool(saved) and name_of(max(saved)) not in there
        for name in there:
            check_files(folder / name, Manifest.read(disk, folder / name))
    return struck, lost


def kill_after(seconds: float, pid: int) -> None:
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kills", [4, long(100)])
def test_no_kill_loses_a_checkpoint(ranks, tmp_path, kills):
    struck = lost = round = 0
    while struck < kills:
        folder = tmp_path / str(round)  # a run that reaches its end before enough kills is followed by another
        more, gone = die_and_go_on(ranks, folder, kills - struck, seed=round)
        struck, lost, round = struck + more, lost + gone, round + 1
    assert lost == 0
