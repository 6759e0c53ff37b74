"""The program of a grading process on standby: ``python -m minidist.course.authoring.stand_by REQUEST``.

It imports what graders need and starts the server that forks ranks. Then it waits until the file REQUEST exists, which
holds pytest's arguments as JSON, and runs pytest once. grading/standby.py is the other side.
"""

import json
import sys
import time
from pathlib import Path

import pytest

from minidist.comm.runtime.clusters import preload
from minidist.course.authoring.plugin import RANK_MODULES
from minidist.course.sandbox.limits import set_limits

POLL_SECONDS = 0.02


def main(request: Path) -> int:
    set_limits(None)  # the server passes them on to the ranks
    preload(*RANK_MODULES)
    while not request.exists():
        time.sleep(POLL_SECONDS)
    return pytest.main(json.loads(request.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
