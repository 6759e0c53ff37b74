"""Rows of a table with what the scene ``race`` of ``minidist.show.dp`` shows."""


def all_reduces(race) -> list[int]:
    """Return how many all-reduces each way to sum has, in the order of the lanes from the top.

    Args:
        race: the scene, with the dial where it begins.
    """
    sums: dict[float, set[str]] = {}  # height of a way's lower bar -> its all-reduces
    for mark in race.marks:
        if mark.thing.startswith("all-reduce"):
            sums.setdefault(mark.now["y"], set()).add(mark.thing)
    return [len(sums[height]) for height in sorted(sums)]


def rows(race) -> list[tuple[str, str, int, str]]:
    """Return (way, time of a step, all-reduces, share of their time that backward hides) for each way to sum."""
    found = []
    for (way, fact), count in zip(race.beats[-1].facts.items(), all_reduces(race), strict=True):
        time, hidden = fact.split(", ")
        found.append((way, time, count, hidden.split()[0]))
    return found
