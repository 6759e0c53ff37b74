"""The stage: marks with keyframes on one continuous clock, and beats at which the lecturer stops.

A demonstration tells a ``Story`` (story.py) with six primitives (primitives.py). page.py plays it in a browser, text.py
in a terminal, still.py draws one moment of it.
"""
