"""What one submission may use."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    Raises:
        ValueError: if nothing could run within the limits.
    """

    seconds: float = 600.0  # of wall time, over all its tasks
    memory: float = 4.0  # GiB, of each process
    processes: int = 64  # at once

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"--timeout {self.seconds:g} must be more than 0 seconds")
        if not self.memory >= 1:
            raise ValueError(f"--memory {self.memory:g} must be at least 1 GiB, which Python and NumPy need")
        if self.processes < 16:
            raise ValueError(f"--processes {self.processes} must be at least 16: each rank of a task is a process")
