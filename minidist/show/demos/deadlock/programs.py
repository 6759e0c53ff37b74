"""The programs as a scene shows them, and the lines in which the ranks are."""

from collections.abc import Mapping

TOGETHER = ("ops = [isend(x, right),", "       irecv(y, left)]", "for work in batch(ops):", "    work.wait()")
ODD = (
    "if rank % 2 == 0:",
    "    send(x, right)",
    "    recv(y, left)",
    "else:",
    "    recv(y, left)",
    "    send(x, right)",
)
SEND_FIRST = ("send(x, right)", "recv(y, left)")


def lines_of(program: tuple[str, ...], calls: Mapping[int, str]) -> tuple[int, ...]:
    """The lines that some rank is in; a rank that has ended is in none.

    Args:
        calls: rank -> the call it is in, "" at the end.
    """
    if program == TOGETHER:
        return (2, 3) if any(calls.values()) else ()
    found = {_line(program, rank, call) for rank, call in calls.items() if call}
    return tuple(sorted(found))


def _line(program: tuple[str, ...], rank: int, call: str) -> int:
    kind = call.split()[0]
    start = program.index("else:") if program == ODD and rank % 2 else 0
    return next(number for number in range(start, len(program)) if program[number].strip().startswith(kind))
