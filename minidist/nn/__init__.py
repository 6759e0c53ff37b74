"""A transformer and how one process trains it. Nothing here sends a message."""

import minidist.nn.arithmetic  # noqa: F401 (gives Tensor its operators)
import minidist.nn.measuring  # noqa: F401 (measures every operation)
from minidist import backend

backend.keep_freed_memory()
