"""A transformer and how one process trains it. Knows nothing of ranks."""

import minidist.nn.arithmetic  # noqa: F401 (gives Tensor its operators)
