"""One file for each axis of parallelism. Joins comm and nn; these files never import each other."""
