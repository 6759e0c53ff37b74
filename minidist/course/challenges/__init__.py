"""Challenges: open tasks without points, scored by a number beside the library's, and a leaderboard."""
