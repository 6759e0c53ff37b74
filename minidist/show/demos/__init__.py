"""Demonstrations: each runs one mechanism for real and animates what happened, without and with an injected bug.

There is a folder for each mechanism. Its ``__init__.py`` puts the animation together from these files:

    run.py    what the ranks run and record, and the injected bug
    bug.py    the bug, if it is long
    story.py  the story that is told about the run: marks and beats

shared/ has code that several mechanisms use; registry.py lists all demonstrations.
"""

from minidist.show.demos.demonstration import Demonstration
from minidist.show.demos.registry import DEMONSTRATIONS

__all__ = ["DEMONSTRATIONS", "Demonstration"]
