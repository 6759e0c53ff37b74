"""Checks of a run's numbers while it trains: every K steps ranks vote, and replay if the vote names no rank."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minidist.parallel.tools.messages import all_gather_object, sendrecv_object
from minidist.train.checkpoint.peers import Peers
from minidist.train.checkpoint.saver import Saver
from minidist.train.hooks import StepHook
from minidist.train.resilience.replay import Kept, first_difference, judge, replay, to_the_right
from minidist.train.resilience.vote import (
    GRADIENT,
    LOSS,
    NAMING,
    Disagreement,
    Element,
    Noted,
    Notes,
    largest_difference,
    outvoted,
    vote,
    voters,
)
from minidist.train.share import Share


@dataclass(frozen=True)
class Finding:
    """The error that a check has found.

    ``rank`` holds (vote) or computed (replay) other numbers than the others, maybe because it was sent wrong ones.
    """

    way: str  # "vote" or "replay"
    step: int  # of the error; equal to ``verified`` if the copy kept for a replay has changed
    verified: int  # the last step whose numbers are known to be right; -1 for those before the first step
    rank: int | None  # None if no rank can be named
    suspects: tuple[int, ...]  # the ranks with a part that differs
    names: tuple[str, ...]  # the parts that differ; after a replay only those that a step makes first
    element: Element | None  # the one that differs most; None if the arrays of that step are gone

    def __str__(self) -> str:
        who = f"rank {self.rank}" if self.rank is not None else f"one of ranks {', '.join(map(str, self.suspects))}"
        if self.step == self.verified:
            what = f"the copy of its state after step {self.step} that {who} kept for a replay has changed in memory"
        elif self.way == "vote":
            what = f"{who} holds numbers after step {self.step} that differ from those of ranks that must hold the same"
        else:
            what = f"{who} computed wrong numbers in step {self.step}: computed again from the same state, they differ"
        if self.rank is None:
            what += ", and it cannot be told which"
        more = f" and {len(self.names) - 3} more" if len(self.names) > 3 else ""
        return f"{what}. Different: {', '.join(self.names[:3])}{more}. {self._where()} {self._advice()}"

    def _where(self) -> str:
        if self.element is None:
            return "The arrays of that step are gone, so no element can be named (a check after every step names it)."
        here, there = self.element.values
        other = "on another rank" if self.way == "vote" else "when computed again"
        return f"The largest difference: {self.element} is {here:g}, and {there:g} {other}."

    def _advice(self) -> str:
        if self.verified < 0:
            return "No step before it was verified: begin again."
        return f"The last verified step is {self.verified}: resume from a checkpoint of that step or before."


class CorruptedNumbers(RuntimeError):
    """Numbers of this run are wrong, so training on is useless; ``finding`` says what is known."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class ReplicaChecks(StepHook):
    """Hook that checks a run's numbers on one rank. All ranks call it together.

    Args:
        every: steps from one check to the next; the last step is checked too.
        way: "vote"; "replay" to replay if the vote names no rank; "auto" for "replay" if some part of the state has
            too few holders for a vote to name one, otherwise "vote".
        keepers: savers of the run's state. They keep what the last check found right until the next check: a failure
            between the two goes back to it.
    """

    def __init__(self, share: Share, every: int, way: str, keepers: Sequence[Saver | Peers]) -> None:
        self.world, self.share, world = share.world, share, share.world
        self.every, self.keepers = every, keepers
        self.verified = len(share.losses) - 1
        holders = voters(all_gather_object(Notes(share, gradients=False).keys, world)).values()
        self.replays = way == "replay" or (way == "auto" and min(map(len, holders)) < NAMING)
        self.notes = Notes(share, gradients=self.replays)
        self.keys = all_gather_object(self.notes.keys, world)
        self.begin()

    def begin(self) -> None:
        """Take the current state as verified, and start to record the next steps."""
        for keeper in self.keepers:
            keeper.verified = self.verified + 1
        self.notes.begin()
        self.steps: list[int] = []  # since the last check
        if self.replays:
            self.kept = Kept(self.share, self.notes)

    def end_step(self, step: int, loss: float, last: bool) -> None:
        """Note the numbers of a step, and check them if a check is due.

        Raises:
            CorruptedNumbers: on every rank, if any rank's numbers are wrong.
        """
        self.notes.after_step(loss)
        self.steps.append(step)
        if (step + 1) % self.every and not last:
            return
        finding = self.check()
        if finding is not None:
            self.world.report(("corrupted", finding))
            raise CorruptedNumbers(finding)
        self.verified = step
        if self.world.rank == 0:
            self.world.report(("verified", step))
        self.begin()

    def check(self) -> Finding | None:
        """Return what is wrong, the same on every rank; None if nothing is, as far as this way of checking can tell."""
        noted = all_gather_object(self.notes.noted, self.world)
        time, found = vote(self.keys, noted)
        if self.replays and outvoted(found) is None:
            finding = self.compute_again(noted)
            if finding is not None:
                return finding
        return self.outcome_of_vote(time, found) if found else None

    # The vote

    def outcome_of_vote(self, time: int, found: list[Disagreement]) -> Finding:
        rank = outvoted(found)
        suspects = {voter for disagreement in found for voter in disagreement.odd or disagreement.voters}
        names = tuple(dict.fromkeys(str(disagreement.key) for disagreement in found))
        elements = (self.compare_with_another(disagreement, rank) for disagreement in found)
        suspects = tuple(sorted(suspects)) if rank is None else (rank,)
        return Finding("vote", self.step_at(time), self.verified, rank, suspects, names, self.agreed(elements))

    def compare_with_another(self, disagreement: Disagreement, wrong: int | None) -> Element | None:
        """Compare a part on two ranks that noted different digests of it. One of the two returns the result."""
        key, ranks = disagreement.key, disagreement.voters
        if key.kind == LOSS:
            return None
        wrong = ranks[-1] if wrong is None else wrong
        other = next(rank for rank in ranks if rank != wrong and rank not in (disagreement.odd or ()))
        if self.world.rank not in (wrong, other):
            return None
        partner, mine = wrong + other - self.world.rank, self.notes.parts.on_host(key)
        theirs = sendrecv_object(mine, partner, partner, self.world)
        return largest_difference(key, mine, theirs) if self.world.rank == wrong else None

    # The replay

    def compute_again(self, noted: list[Noted]) -> Finding | None:
        """Replay the steps since the last check, and once more if the replay differs from the run."""
        computations, second = [noted], replay(self.share, 1, self.kept, self.steps)
        computations.append(self.by_role(second, 1))
        time = first_difference(*computations)
        if time is None:
            return None
        if self.world.size > 1 and time > 0:  # a copy that has changed is the same in every replay
            computations.append(self.by_role(replay(self.share, 2, self.kept, self.steps), 2))
        rank, different = judge(self.keys, computations, time)
        names = tuple(dict.fromkeys(str(key) for keys in different.values() for key in keys))
        suspects = tuple(different)
        if time == 0:
            rank = suspects[0] if len(suspects) == 1 else None
        elements = self.differences(second) if time == len(self.steps) else []
        return Finding("replay", self.step_at(time), self.verified, rank, suspects, names, self.agreed(elements))

    def by_role(self, notes: Notes, shift: int) -> list[Noted]:
        """Return the notes of every role, gathered from a computation whose roles are shifted."""
        everyone = all_gather_object(notes.noted, self.world)
        return [everyone[(role + shift) % self.world.size] for role in range(self.world.size)]

    def differences(self, second: Notes) -> Iterable[Element | None]:
        """Compare the state of the role that this rank has replayed with the current state of its usual rank."""
        replayed, mine = second.parts, self.notes.parts
        keys = [key for key in second.keys if key.kind not in (GRADIENT, LOSS)]
        first = to_the_right([mine.on_host(key) for key in mine.get], 1, self.world)
        return [largest_difference(key, one, replayed.on_host(key)) for key, one in zip(keys, first, strict=True)]

    # Both

    def step_at(self, time: int) -> int:
        """Return the step after which the notes at place ``time`` were taken."""
        return self.steps[time - 1] if time else self.verified

    def agreed(self, elements: Iterable[Element | None]) -> Element | None:
        """Return the element with the largest difference on any rank, on every rank alike."""
        mine = max(filter(None, elements), key=lambda element: element.size, default=None)
        return max(filter(None, all_gather_object(mine, self.world)), key=lambda element: element.size, default=None)
