"""Runs the graders in processes of their own: for one folder of answers, or for a whole class."""
