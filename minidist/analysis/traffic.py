"""Traffic of a run: its messages by time, axis, node or expert; and which rank waits for which."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from minidist.analysis.replay import Flight
from minidist.trace import Event, Message

AXES = ("pp", "dp", "tp")
# Groups inside an axis of the mesh. Those that exchange tokens, "ep", are inside dp too, and count by themselves.
AXIS_OF = {"shard": "dp", "replicate": "dp", "dp_cp": "dp", "edp": "dp", "embedding": "pp"}

STUCK, PATIENT, RUNNING, FINISHED = "stuck", "patient", "running", "finished"  # states of a rank that may wait


def along(sent: np.ndarray, shape: Sequence[int], names: Sequence[str] = AXES) -> dict[str, np.ndarray]:
    """Return by axis the part of the traffic between ranks that differ along that axis alone.

    Args:
        sent: (N, N), from each rank to each.
        shape: shape of the mesh; the last axis changes fastest.
        names: axis names.

    Returns:
        (N, N) for each name.
    """
    places = np.stack(np.unravel_index(np.arange(len(sent)), tuple(shape)), axis=1)  # (N, axes)
    differs = places[:, None] != places[None]  # (N, N, axes)
    return {name: sent * (differs[..., i] & (differs.sum(axis=-1) == 1)) for i, name in enumerate(names)}


def inside_and_between(sent: np.ndarray, ranks_per_node: int) -> tuple[int, int]:
    """Return how much all ranks together sent to ranks of their own node, and to ranks of other nodes.

    Args:
        sent: (N, N), from each rank to each.
        ranks_per_node: nodes are filled in the order of ranks.
    """
    node = np.arange(len(sent)) // ranks_per_node
    inside = node[:, None] == node
    return int(sent[inside].sum()), int(sent[~inside].sum())


def renumbered(sent: np.ndarray, shape: Sequence[int], order: Sequence[int]) -> np.ndarray:
    """Return the traffic, (N, N), as if the ranks of the mesh were numbered with its axes in another order.

    Args:
        sent: (N, N), from each rank to each.
        shape: shape of the mesh in which the ranks are numbered now.
        order: the axes of that mesh in the new order, the slowest first.
    """
    ranks = np.arange(len(sent)).reshape(shape).transpose(order).ravel()  # the rank at each place
    return sent[np.ix_(ranks, ranks)]


def by_kind(rows: Sequence[dict]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (axis, name) -> a rank's calls and bytes sent, over all sizes and dtypes; rows: as for ``by_axis``."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        kind = row["axis"], row["name"]
        calls, nbytes = found.get(kind, (0, 0))
        found[kind] = calls + row["calls"], nbytes + row["bytes_sent"]
    return found


def by_axis(rows: Sequence[dict]) -> dict[str, int]:
    """Return the bytes that a rank sent along each axis of the mesh, from the rows of ``RankResult.collectives``."""
    found: dict[str, int] = dict.fromkeys(AXES, 0)
    for row in rows:
        axis = AXIS_OF.get(row["axis"]) or row["axis"]
        found[axis] = found.get(axis, 0) + row["bytes_sent"]
    return found


def real_flights(logs: Sequence[list]) -> list[Flight]:
    """Return the messages of a run, in microseconds from the first entry of any log.

    A flight starts when the message is put into its queue and ends when it is taken out.
    """
    zero = _zero(logs)
    ends = [entry for log in logs for entry in log if isinstance(entry, Message)]
    left = {(m.source, m.destination, m.number): m.time for m in ends if m.kind == "send"}
    found = [
        Flight(m.source, m.destination, m.nbytes, (left[name] - zero) / 1000, (m.time - zero) / 1000)
        for m in ends
        if m.kind == "receive" and (name := (m.source, m.destination, m.number)) in left
    ]
    return sorted(found, key=lambda flight: (flight.start, flight.end))


def spans(logs: Sequence[list], track: str) -> list[tuple[int, float, float]]:
    """Return (rank, start, end) of every event on a track, on the clock of ``real_flights``."""
    zero = _zero(logs)
    return [
        (rank, (entry.start - zero) / 1000, (entry.end - zero) / 1000)
        for rank, log in enumerate(logs)
        for entry in log
        if isinstance(entry, Event) and entry.track == track
    ]


def _zero(logs: Sequence[list]) -> int:
    starts = [entry.start for log in logs for entry in log if isinstance(entry, Event)]
    times = [entry.time for log in logs for entry in log if isinstance(entry, Message)]
    return min([*starts, *times], default=0)


@dataclass(frozen=True)
class ExpertLoad:
    """The load of a run's experts at each step, as ``RankResult.expert_counts`` has it."""

    tokens: np.ndarray  # that chose each expert: integers (steps, L, E)
    dropped: np.ndarray  # choices that found no room: integers (steps, L)
    visits: np.ndarray  # different nodes that a token's experts are on, over all tokens: integers (steps, L)

    @classmethod
    def of(cls, counts: Sequence[np.ndarray]) -> "ExpertLoad":
        stacked = np.stack(counts)  # (steps, L, E + 2)
        return cls(stacked[..., :-2], stacked[..., -2], stacked[..., -1])

    @property
    def imbalance(self) -> np.ndarray:
        """The tokens of the busiest expert, in units of the mean: (steps, L). 1 is even, E is collapse."""
        return self.tokens.max(axis=-1) / self.tokens.mean(axis=-1)

    def by_rank(self, ranks: int) -> np.ndarray:
        """Return the tokens of each rank's experts, if ``ranks`` ranks share the experts evenly: (steps, L, ranks).

        These are the rows that a rank computes where all data-parallel ranks exchange tokens (ep = dp) and none is
        dropped.
        """
        steps, layers, experts = self.tokens.shape
        return self.tokens.reshape(steps, layers, ranks, experts // ranks).sum(axis=-1)


def edges(waiting: Mapping[int, str]) -> dict[int, int]:
    """Return the wait-for graph, rank -> the rank that it waits for, from ``Deadlock.waiting``.

    A cycle in it, none of whose ranks can act, is a deadlock. A rank that did not describe its wait has no edge.
    """
    found = {rank: re.search(r"waits for .*?rank (\d+)", text) for rank, text in waiting.items()}
    return {rank: int(named[1]) for rank, named in found.items() if named}


def state_of(rank: int, waits: Mapping[int, int], finished: Set[int]) -> str:
    """Return a rank's state: RUNNING; PATIENT, if it waits for a rank that can act; FINISHED; else STUCK.

    It follows the edges: a rank that can act ends the wait, a cycle or a finished rank never does.
    """
    first, seen = rank, set()
    while rank in waits and rank not in seen:
        seen.add(rank)
        rank = waits[rank]
    if rank in waits or (rank in finished and rank != first):
        return STUCK
    if rank in finished:
        return FINISHED
    return RUNNING if rank == first else PATIENT
