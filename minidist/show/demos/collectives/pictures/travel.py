"""What travels: a chunk, a sum or an array on its way from rank to rank, over several messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from minidist.show.demos.collectives.run import Sent, Step
from minidist.show.figures.contributions import LETTERS

CROWDED = 5  # ranks: with more, only what is sent on is shown before it is sent


@dataclass
class Journey:
    """A thing that goes from rank to rank.

    Args:
        id: its name, the same in every frame.
        stops: frame -> (rank that has it then, its chunks there); from the frame before its first message to its last.
    """

    id: str
    stops: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    first: int = 0  # the frame before its first message
    last: int = 0  # the frame of its last one

    def at(self, frame: int) -> tuple[int, tuple[int, ...]] | None:
        """The rank that has it and the chunks that it is there, if it is on its way."""
        if not self.first <= frame <= self.last:
            return None
        return self.stops[max(number for number in self.stops if number <= frame)]


def journeys(steps: Sequence[Step]) -> list[Journey]:
    """The things that the messages of a run carry: what has arrived and is sent on stays the same thing.

    On many ranks there is no room for what waits to be sent and is not sent on: it appears when it has arrived.
    """
    found: list[Journey] = []
    for number, step in enumerate(steps):
        arrived = {journey.stops[journey.last]: journey for journey in found if journey.last < number}
        for message in step.messages:
            here = message.source, message.from_chunks
            journey = arrived.pop(here, None) if _sends_what_it_has(steps, number, message) else None
            if journey is None:
                journey = Journey(_name(message, found), first=number - 1)
                journey.stops[number - 1] = (message.source, message.from_chunks)
                found.append(journey)
            journey.stops[number] = (message.destination, message.to_chunks)
            journey.last = number
    for journey in found:
        if len(steps[0].values) > CROWDED and len(journey.stops) == 2:
            journey.first = journey.last
    return found


def _sends_what_it_has(steps: Sequence[Step], number: int, message: Sent) -> bool:
    """Whether the message has what the sender's chunk holds now: an all-to-all sends what it held at first."""
    if not message.from_chunks:
        return False
    sent = steps[number - 1].values[message.source, message.from_chunks[0]]
    old, new = (steps[i].values[message.destination, message.to_chunks[0]] for i in (number - 1, number))
    return sent in (new, new ^ old)  # a sum of marks is a set


def _name(message: Sent, taken: Sequence[Journey]) -> str:
    letters = "".join(LETTERS[chunk] for chunk in message.from_chunks)
    plain = f"{'chunk' if len(letters) == 1 else 'chunks'} {letters} from rank {message.source}"
    if all(plain != journey.id for journey in taken):
        return plain
    return f"{plain} to rank {message.destination}" + " again" * sum(j.id.startswith(plain + " to") for j in taken)
