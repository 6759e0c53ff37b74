"""Checkpoints that tests look at and damage."""

import shutil
from pathlib import Path

import pytest

from minidist.train.checkpoint.saver import Saving
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run


@pytest.fixture(scope="module")
def saved(request, ranks, tmp_path_factory):
    """The checkpoints of steps 2 and 4 of a run on three ranks, with the CONFIG of the test's file."""
    folder = tmp_path_factory.mktemp("saved")
    run(ranks(3), request.module.CONFIG, Layout(dp=3), RunOptions(saving=Saving(str(folder), every=2)))
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the checkpoints, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))
