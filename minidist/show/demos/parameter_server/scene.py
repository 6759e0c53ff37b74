"""What the animation of a run with a parameter server says: a frame for each gradient that lands."""

from collections.abc import Sequence

from minidist.show.demos.parameter_server.picture import Lanes
from minidist.show.demos.parameter_server.recorded import Landing, Recorded
from minidist.show.demos.parameter_server.run import LONG, STALENESS
from minidist.show.player.scene import Frame, Scene

TITLES = {
    "synchronous": "Synchronous: every step waits for the slowest worker",
    "asynchronous": "Asynchronous: nobody waits, and gradients are stale",
    "bounded": f"Bounded: workers run {STALENESS} steps ahead, then they wait",
}
BEGINS = {
    "synchronous": "All workers pull version 0. The server updates when it has a gradient of each.",
    "asynchronous": "All workers pull version 0. The server will update with each gradient as it comes.",
    "bounded": f"All workers pull version 0. None may begin a step more than {STALENESS} ahead of the slowest.",
}


def end_of(slower: int) -> float:
    """Where the time of all pictures ends, in simulated seconds: a bound has made others wait for the straggler."""
    return LONG * max(9.0, 2.6 * slower)


def of_run(kind: str, run: Recorded, slower: int, verdict: str, broken: bool = False) -> Scene:
    """The beginning of a run, gradient by gradient."""
    lanes = Lanes(run, end_of(slower), STALENESS if kind == "bounded" else None)
    frames = [Frame(lanes.shapes(0.0, 0), BEGINS[kind], _facts(lanes, 0.0, []), 0.0)]
    for count, one in enumerate(lanes.landings, 1):
        landed = lanes.landings[:count]
        note = _note(lanes, one)
        frames.append(Frame(lanes.shapes(one.end, count), note, _facts(lanes, one.end, landed), one.end))
    frames.append(_end(lanes))
    wrong = [count for count, one in enumerate(lanes.landings, 1) if one.again]
    key = lanes.key | ({"applied again": "wrong"} if broken else {})
    return Scene(
        f"broken {kind}" if broken else kind, TITLES[kind], tuple(frames), lanes.height, key, verdict,
        wrong[0] if broken else None, _stills(lanes), kind if broken else "",
    )  # fmt: skip


def _note(lanes: Lanes, one: Landing) -> str:
    who = f"Worker {one.worker}"
    if one.again:
        return f"Its acknowledgement was lost, so {who.lower()} sends it again: the server applies and counts it again."
    if lanes.run.layout.sync == "server" and not lanes.run.layout.staleness:
        if lanes.run.made[one.found + 1] > one.end:
            return f"{who}'s gradient is there. No update yet: others still compute."
        return f"{who}'s gradient is the last. One update with the mean: version {one.found + 1}, which all pull."
    found = f"{who}'s gradient of version {one.read} meets version {one.found}: staleness {one.staleness}."
    following = lanes.next_of(one)
    if following is None or lanes.copied(one):
        return found
    if following.begin > one.end:
        return f"{found} The worker has to wait."
    if lanes.breaks_the_bound(following):
        return f"{found} The worker goes on, {following.ahead} steps ahead."
    return found


def _facts(lanes: Lanes, now: float, landed: Sequence[Landing]) -> dict[str, str]:
    stale = [one.staleness for one in landed]
    begun = [one for one in lanes.run.landings if one.begin <= now and one.read <= lanes.version(now, landed)]
    return {
        "time": f"{now:.1f} s",
        "gradients": str(len(landed)),
        "version": str(lanes.version(now, landed)),
        "staleness, mean": f"{sum(stale) / len(stale):.1f}" if stale else "-",
        "the highest": str(max(stale)) if stale else "-",
        "steps ahead, at most": str(max(one.ahead for one in begun)),
        "waiting": f"{lanes.idle(now):.0%}",
    }


def _end(lanes: Lanes) -> Frame:
    """All that has landed, and who still computes or waits."""
    landings, end, idle = lanes.landings, lanes.end, lanes.idle(lanes.end)
    waited = f"Workers waited {idle:.0%} of the time" if idle > 0.005 else "Nobody waited"
    note = f"After {end:.0f} s: {len(landings)} gradients, {lanes.version(end, landings)} updates. {waited}."
    return Frame(lanes.shapes(end, len(landings)), note, _facts(lanes, end, landings), end)


def _stills(lanes: Lanes) -> tuple[int, ...]:
    """Near the beginning, the straggler's first gradient, and the end."""
    straggler = lanes.run.workers - 1
    first = next(count for count, one in enumerate(lanes.landings, 1) if one.worker == straggler)
    return tuple(sorted({min(3, first - 1), first, len(lanes.landings) + 1}))
