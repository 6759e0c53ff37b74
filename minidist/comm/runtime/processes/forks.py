"""What a process forgets that the user forks from this one with ``os.fork``.

The child inherits everything that multiprocess knows of its parent's processes, and would take them for its own: end
the parent's ranks when it exits, and wait for the parent's fork server, which is not its child. So it starts afresh.
Children that multiprocess forks by itself, such as ranks, lose nothing by it.
"""

import os
import threading
from contextlib import suppress

from multiprocess import process, resource_tracker


def forget_parents_processes() -> None:
    """Call it in a child, right after the fork."""
    from multiprocess import forkserver  # not on Windows

    process._children.clear()  # it ends these when it exits
    process.current_process()._config.pop("tempdir", None)  # the parent removes this folder when it exits
    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        with suppress(OSError):
            os.close(server._forkserver_alive_fd)  # the server lives while anybody holds it
    server.__init__()
    resource_tracker._resource_tracker._lock = threading.RLock()  # another thread may have held it
