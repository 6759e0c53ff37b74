"""The outcomes in words. All figures are of the runs that are shown, over the time for which they are watched."""

import numpy as np

from minidist.show.demos.parameter_server.evidence import TARGET, Runs, loss_at
from minidist.show.demos.parameter_server.picture import Lanes
from minidist.show.demos.parameter_server.recorded import Recorded
from minidist.show.demos.parameter_server.run import SEEDS, STALENESS
from minidist.show.demos.parameter_server.shards import Shards
from minidist.train.result import Run
from minidist.verify.comparison import agrees

CHECKED = "Every gradient was computed with the bits of the version named here: digests of all weights agree."


def of_kind(kind: str, run: Recorded, seconds: float, proof: str) -> str:
    """How long workers waited, and how old gradients were.

    Args:
        proof: sentence saying that the synchronous run has the bits of one process.
    """
    landed, idle = run.by(seconds), Lanes(run, seconds).idle(seconds)
    waited = f"Workers waited {idle:.0%} of the time"
    if kind == "synchronous":
        return f"{waited}, and every gradient is fresh. {proof} {CHECKED}"
    stale = [one.staleness for one in landed]
    slow = [one.staleness for one in landed if one.worker == run.workers - 1]
    others = [one.staleness for one in landed if one.worker != run.workers - 1]
    ages = f"{np.mean(slow):.1f} updates for the straggler, {np.mean(others):.1f} for the others"
    if kind == "asynchronous":
        return (
            f"Nobody waited; the mean staleness is {np.mean(stale):.2f}: {ages}. Whatever the speeds, it tends to "
            f"N − 1 = {run.workers - 1}: each update makes the gradients of all others one version older. {CHECKED}"
        )
    return (
        f"{waited}, and none was more than {STALENESS} steps ahead. The oldest gradient is {max(stale)} updates old; "
        f"the mean staleness is {np.mean(stale):.2f}: {ages}. {CHECKED}"
    )


def of_evidence(runs: Runs) -> str:
    """When each kind reaches the target, and what staleness costs for as many gradients."""
    times = {kind: [run.reaches(TARGET) for run in each] for kind, each in runs.items()}
    first = sorted(times, key=lambda kind: max(times[kind]))
    spread = ", ".join(f"{kind} after {min(times[kind]):.0f} to {max(times[kind]):.0f} s" for kind in first)
    rounds = min(len(run.losses) for each in runs.values() for run in each) - 1
    same = {kind: [run.losses[rounds] for run in each] for kind, each in runs.items()}
    ends = ", ".join(f"{np.mean(each):.2f} {kind}" for kind, each in same.items())
    workers = runs["synchronous"][0].workers
    return (
        f"A loss of {TARGET:.1f}: {spread} ({SEEDS} seeds). "
        f"After {rounds * workers} gradients each it is {ends}: staleness costs little here, and waiting costs much."
    )


def of_shards(shards: Shards, one: Run, two: Run) -> str:
    """How evenly two servers share, and that they end as one does.

    Raises:
        RuntimeError: if they do not.
    """
    if not agrees(one, two):
        raise RuntimeError("in one seeded order, two servers end on other bits than one: this is a bug in minidist")
    held = shards.held(len(shards.sizes))
    share = max(held) / sum(held)
    return (
        f"The fuller server has {share:.1%} of the parameters. In a seeded order both apply the same gradients in the "
        f"same order, so the run ends on the bits of one server (SHA-256 {two.fingerprint[:8]})."
    )


def of_bug(kind: str, run: Recorded, right: Recorded, seconds: float) -> str:
    """What copies do.

    Raises:
        RuntimeError: if they do no harm.
    """
    landed = run.by(seconds)
    copies = [one for one in landed if one.again]
    if not copies or run.fingerprint == right.fingerprint:
        raise RuntimeError("gradients that are applied twice change no bit: this is a bug in minidist")
    losses = f"{loss_at(run, seconds):.2f} instead of {loss_at(right, seconds):.2f}"
    first = copies[0]
    details = (
        f"The server's log has worker {first.worker}'s step {first.step} at version {first.found - 1} and at "
        f"{first.found}: {len(copies)} of {len(landed)} updates in {seconds:.0f} s are copies. The loss tells nobody: "
        f"{losses}. The cure is to know each push by worker and step, and to answer a copy without applying it."
    )
    if kind == "asynchronous":
        return f"The straggler's gradients, the most stale, count twice, and nobody complains. {details}"
    ahead = max(one.ahead for one in landed)
    if ahead <= STALENESS:
        raise RuntimeError("a straggler that is counted twice breaks no bound: choose a larger size")
    return f"The bound of {STALENESS} steps is broken: a worker began a step {ahead} ahead of the slowest. {details}"
