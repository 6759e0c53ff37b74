"""Challenges: open tasks without points, scored by a number to compare with the library's, and a leaderboard."""
