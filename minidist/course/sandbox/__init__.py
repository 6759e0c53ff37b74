"""Runs a learner's answers inside a rank and cleans up behind them, so that no answer can affect the next one."""
