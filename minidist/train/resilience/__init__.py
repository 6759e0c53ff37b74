"""When ranks fail, are slow or compute wrong: faults to order, elastic training, rebalancing, the vote, the replay."""
