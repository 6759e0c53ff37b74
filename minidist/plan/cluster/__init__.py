"""Hardware as data, networks as graphs, and what work costs on them."""
