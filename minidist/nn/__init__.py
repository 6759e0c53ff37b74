"""A transformer and how one process trains it; knows nothing of ranks."""

import minidist.nn.arithmetic  # noqa: F401 (gives Tensor its operators)
from minidist.nn.measuring import Measuring
from minidist.nn.memory.heap import keep_freed_memory
from minidist.nn.tensor import stand

keep_freed_memory()
stand(Measuring())
