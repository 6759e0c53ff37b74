"""Demonstrations: each runs real ranks and makes a film of what happened, and of what happens with a bug planted."""

from minidist.show.demos.demonstration import Demonstration
from minidist.show.demos.registry import DEMONSTRATIONS

__all__ = ["DEMONSTRATIONS", "Demonstration"]
