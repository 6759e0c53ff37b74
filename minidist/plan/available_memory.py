"""How much memory this machine has left for a run, as far as the system tells it."""

import os
from contextlib import suppress
from pathlib import Path


def available_memory() -> int | None:
    """Bytes that programs could still allocate; None where the system does not say. Rather too many than too few.

    On Linux it is what /proc/meminfo calls available, or what is left of the limit that a container or a batch system
    has set (a cgroup), whichever is less; and the free swap. On other Unixes it is all of the machine's memory.
    """
    memory = _meminfo()
    if memory is None:
        return _physical()
    free, swap = memory
    left = _left_by_cgroup()
    return (free if left is None else min(free, left)) + swap


def _meminfo(file: str = "/proc/meminfo") -> tuple[int, int] | None:
    """Available memory and free swap in bytes."""
    with suppress(OSError, ValueError, KeyError):
        lines = (line.split(":") for line in Path(file).read_text().splitlines())
        kib = {name: int(rest.split()[0]) for name, rest in lines}
        return kib["MemAvailable"] * 1024, kib["SwapFree"] * 1024
    return None


def _left_by_cgroup(file: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int | None:
    """The least that any cgroup around this process leaves: of version 2 (``0::/path``) or 1 (``4:memory:/path``)."""
    left = []
    with suppress(OSError, ValueError):
        for line in Path(file).read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                names = "memory.max", "memory.current", ""
                mounted = Path(root)
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
                mounted = Path(root, "memory")
            else:
                continue
            folder = mounted / path.strip("/")
            for place in (folder, *folder.parents):
                if place.is_relative_to(mounted) and (count := _left_in(place, *names)) is not None:
                    left.append(count)
    return min(left, default=None)


def _left_in(folder: Path, limit: str, usage: str, prefix: str) -> int | None:
    """What one cgroup's limit leaves; None if it has none. Cached files count as used, and give way."""
    with suppress(OSError, ValueError):  # "max" is no number: no limit
        most, used = (int((folder / name).read_text()) for name in (limit, usage))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = sum(int(statistics[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
        return max(0, most - used + cached)
    return None


def _physical() -> int | None:
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
