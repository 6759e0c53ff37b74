"""Demonstrations: each runs one mechanism for real and animates what happened, without and with an injected bug.

There is a folder for each mechanism. Its ``__init__.py`` puts the animation together from these files:

    run.py    what the ranks run, what is recorded of it, and the injected bug
    bug.py    the bug, where it is long
    story.py  what is shown and said of it: marks and beats

shared/ has what several mechanisms use, and registry.py the list of all demonstrations.
"""

from minidist.show.demos.demonstration import Demonstration
from minidist.show.demos.registry import DEMONSTRATIONS

__all__ = ["DEMONSTRATIONS", "Demonstration"]
