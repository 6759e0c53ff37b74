"""Demonstrations: each runs real ranks and animates what happened, and what happens with an injected bug."""

from minidist.show.demos.demonstration import Demonstration
from minidist.show.demos.registry import DEMONSTRATIONS

__all__ = ["DEMONSTRATIONS", "Demonstration"]
