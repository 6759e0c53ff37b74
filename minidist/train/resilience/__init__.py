"""When ranks fail, or are slow: faults to order, elastic training, micro-batches dealt out anew."""
