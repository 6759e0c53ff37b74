"""Figures that only the chapters draw: a folder for each chapter, and next to this file what several chapters share.

Figures that commands draw too are in minidist/show, and what they show is computed in minidist/analysis.
"""
