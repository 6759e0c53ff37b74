"""The parts of a planned step: the kernels of a layer, its collectives, and the pipeline around them."""
