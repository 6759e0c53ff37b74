"""Animations of real runs, and the three ways to see one: in a terminal, as a page in a browser, as a still picture.

An animation (scene.py) is plain data: shapes on a grid of characters, frame by frame. What draws it knows nothing of
ranks.
"""
