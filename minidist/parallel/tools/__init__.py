"""Tools that the axes of parallelism are built from. No tool imports an axis."""
