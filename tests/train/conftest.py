"""Checkpoints that tests look at and damage, also as a run goes on."""

import shutil
from pathlib import Path
from unittest import mock

import pytest

from minidist.train import around
from minidist.train.checkpoint.commit import name_of
from minidist.train.checkpoint.saver import Saving
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank


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


@pytest.fixture
def after_commit():
    """``after_commit(then)`` trains a rank; ``then(root)`` is called in rank 0 after the commit of step 1: all wait."""

    def training(then):
        class Saver(around.Saver):
            def commit(self, name, files):
                problem = super().commit(name, files)
                if name == name_of(1):
                    then(self.root)
                return problem

        def train(*arguments):
            with mock.patch.object(around, "Saver", Saver):
                return train_rank(*arguments)

        return train

    return training
