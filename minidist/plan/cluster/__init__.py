"""Hardware as data, networks as graphs, and the cost of work on them."""
