"""Animations of real runs, and the ways to show one: in a terminal, as a page in a browser, as a GIF, as a picture.

A scene (scene.py) is plain data: shapes on a grid of characters, frame by frame. Each file that draws scenes imports
scene.py; animation.py puts the scenes of a demonstration together and imports those files.
"""
