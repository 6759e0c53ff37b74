"""What training and verification say of settings that cannot be, before any rank starts: every line of refusals.txt."""

from pathlib import Path

import numpy as np
from refusals import check_refusals

from minidist.nn.gpt import GPT, GPTConfig
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import Elasticity, run_elastic
from minidist.train.resilience.faults import order
from minidist.train.resilience.shrink import best_layout
from minidist.train.result import RunOptions

FILE = Path(__file__).with_name("refusals.txt")
__all__ = ["Elasticity", "Layout", "RunOptions", "TrainConfig", "best_layout", "order", "run_elastic"]  # for the file
MODEL, GOOD = GPT(GPTConfig(context=8, layers=1, heads=2, width=8)), np.zeros((2, 8), np.int64)


def test_what_cannot_be_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("minidist.cli.train.command.new_cluster", None)  # whoever starts ranks fails
    monkeypatch.setattr("minidist.verify.comparison.new_cluster", None)
    check_refusals(FILE, dict(globals()), monkeypatch, tmp_path)
