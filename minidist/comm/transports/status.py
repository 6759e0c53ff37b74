"""What a rank tells others about itself, so that a deadlock can be found."""

from dataclasses import dataclass

RUNNING, BLOCKED, FINISHED = 0, 1, 2


@dataclass(slots=True, frozen=True)
class Status:
    """What a rank publishes about itself.

    Attributes:
        state: RUNNING, BLOCKED or FINISHED.
        awaited: bit p is set while the rank waits for rank p.
        moved: pieces of messages that it has moved.
        polls: unsuccessful polls of its queues while blocked.
    """

    state: int
    awaited: int
    moved: int
    polls: int
