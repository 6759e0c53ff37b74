"""Ranks that fail, are slow or compute wrong numbers: ordered faults, elastic training, rebalancing, vote, replay."""
