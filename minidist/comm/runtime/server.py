"""First import of the server that forks ranks: what all of them run, loaded once, and how the server ends.

The server ends after all processes that use it, however they end, so it can remove what a killed parent leaves.
"""

import atexit
import os

from multiprocess import forkserver

import minidist.comm.runtime.worker  # noqa: F401
from minidist.comm.runtime.sweep import remove_socket

user = os.getppid()  # now: it is gone when the server ends
atexit.register(lambda: remove_socket(str(forkserver._forkserver._forkserver_address or ""), user))
