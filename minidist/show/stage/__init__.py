"""The stage: marks with keyframes on one continuous clock, and beats at which the lecturer stops.

A demonstration tells a ``Story`` (story.py) with marks (marks.py), alone or assembled: curve.py, lanes.py, mountain.py,
network.py, piles.py. page.py plays it in a browser, terminal.py in a terminal; still.py draws single moments.
"""
