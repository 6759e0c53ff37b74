"""minidist: distributed training of transformers, for real, on a laptop; all layouts match bit for bit."""

from minidist import backend  # first: it pins the BLAS to one thread before NumPy loads it
from minidist.comm import *  # noqa: F403
from minidist.comm import __all__ as _comm

__version__ = "0.1.0"

__all__ = [*_comm, "backend"]
