"""A trace as a file for https://ui.perfetto.dev or chrome://tracing, in Chrome's trace event format.

Each rank is a process, and its tracks (steps, compute, communication, waiting) are that process's threads. A message is
an arrow from the moment it was put into the queue to the moment it was taken out.
"""

from collections.abc import Sequence
from pathlib import Path

from minidist.files import strict_json
from minidist.trace import Event, Message

TRACKS = ("step", "compute", "communication", "wait", "messages")
MESSAGE_US = 1.0  # the width of the small box at which an arrow starts or ends


def to_perfetto(logs: Sequence[list]) -> dict:
    """Return the ranks' logs in Chrome's format, {"traceEvents": [...]}. Times are in µs from the first entry."""
    logs = [[entry for entry in log if isinstance(entry, Event | Message)] for log in logs]  # entries with a time
    starts = [entry.start if isinstance(entry, Event) else entry.time for log in logs for entry in log]
    zero = min(starts, default=0)
    events: list[dict] = []
    for rank, log in enumerate(logs):
        events.append({"ph": "M", "pid": rank, "tid": 0, "name": "process_name", "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "pid": rank, "tid": 0, "name": "process_sort_index", "args": {"sort_index": rank}})
        for track, name in enumerate(TRACKS):
            events.append({"ph": "M", "pid": rank, "tid": track, "name": "thread_name", "args": {"name": name}})
        for entry in log:
            if isinstance(entry, Event):
                events.append(_slice(rank, entry.track, entry.name, entry.start, entry.end, zero, entry.details))
            else:
                events += _message(rank, entry, zero)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slice(rank: int, track: str, name: str, start: int, end: int, zero: int, details: dict) -> dict:
    return {
        "ph": "X",
        "pid": rank,
        "tid": TRACKS.index(track),
        "name": name,
        "ts": (start - zero) / 1000,
        "dur": (end - start) / 1000,
        "args": details,
    }


def _message(rank: int, message: Message, zero: int) -> list[dict]:
    """Return a small box on the rank's message track, and one end of an arrow on it."""
    arrow = {
        "ph": "s" if message.kind == "send" else "f",
        "bp": "e",
        "id": f"{message.source}-{message.destination}-{message.number}",
        "name": "message",
        "cat": "message",
        "pid": rank,
        "tid": TRACKS.index("messages"),
        "ts": (message.time - zero) / 1000,
    }
    peer = f"to rank {message.destination}" if message.kind == "send" else f"from rank {message.source}"
    end = message.time + int(MESSAGE_US * 1000)
    box = _slice(rank, "messages", f"{message.kind} {peer}", message.time, end, zero, {"bytes": message.nbytes})
    return [box, arrow]


def write(path: str | Path, logs: Sequence[list]) -> None:
    Path(path).write_text(strict_json(to_perfetto(logs)), encoding="utf-8")
