"""The parts of a picture of ring attention: the circle of ranks, the matrix of scores, and time or sums beside it."""
