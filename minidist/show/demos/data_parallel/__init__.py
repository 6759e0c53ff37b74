"""Data parallelism: which all-reduces a rank's own backward hides, as GPUs would and as measured here.

Three ways to sum the gradients; then the same three with one bucket that is never sent.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from minidist.nn.gpt import GPT
from minidist.parallel.data import fill_buckets
from minidist.show.demos.data_parallel import measured, weights
from minidist.show.demos.data_parallel.bug import DROPPED_BUCKET, drops_a_bucket
from minidist.show.demos.data_parallel.drift import (
    STEPS,
    stride,
    train_broken_keeping_weights,
    train_keeping_weights,
)
from minidist.show.demos.data_parallel.run import BUCKETS, config_of, layouts_of
from minidist.show.demos.data_parallel.scene import Race
from minidist.show.demos.data_parallel.steps import Step, full_times
from minidist.show.demos.data_parallel.weights import Drift
from minidist.show.demos.shared.gpus import CHIPS, DIALS, OnDemand, at_start, last_step_of, on_gpus
from minidist.show.demos.shared.runs import WarmRanks, diverges, fastest, warm_ranks
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run
from minidist.verify.comparison import ONE_PROCESS


@dataclass(frozen=True)
class Runs:
    """One training in each way to sum, correct or broken.

    Args:
        runs: sync -> its fastest run.
        drift: drift of the ranks' weights over more steps.
        verdict: the verdict in a few words.
        details: sync -> the verdict in full.
    """

    runs: dict[str, Run]
    drift: Drift
    verdict: str
    details: dict[str, str]

    @property
    def logs(self) -> dict[str, list[list]]:
        return {sync: [last_step_of(rank.log) for rank in run.ranks] for sync, run in self.runs.items()}

    @property
    def ranks(self) -> int:
        return len(self.runs["overlapped"].ranks)


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on ``ranks`` ranks, in three ways, and with one bucket dropped.

    Raises:
        ValueError: for a width that shows nothing or takes too long.
    """
    config = config_of(ranks, size, seed)
    parameters = GPT(config.model).parameters()[::-1]  # in the order of backward
    elements = sum(parameter.size for parameter in parameters)
    layouts = layouts_of(ranks, elements)
    with warm_ranks() as warm:
        one = _keeping_weights(warm, config, ONE_PROCESS, train_keeping_weights)
        right, broken = _right(warm, config, layouts, elements, one), _broken(warm, config, layouts, one)
    fine, bad = on_all_gpus(right, broken)
    here, fake = ({sync: Step.of(sync, logs) for sync, logs in runs.logs.items()} for runs in (right, broken))
    longest = max(step.end for steps in (here, fake) for step in steps.values())
    start = on_one_clock(right.logs, *(dial.values[dial.start] for dial in DIALS))
    fine.append(measured.scene(here, start, longest, right.verdict, right.details["overlapped"]))
    bad.append(measured.scene(fake, start, longest, broken.verdict, broken.details["overlapped"], measured.NAME))
    most, every = 1.05 * broken.drift.most, stride(elements)
    fine.append(weights.scene(right.drift, most, every, right.verdict, right.details["overlapped"]))
    bad.append(weights.scene(broken.drift, most, every, broken.verdict, broken.details["overlapped"], weights.NAME))
    dropped = fill_buckets(parameters, elements / BUCKETS)[DROPPED_BUCKET - 1]
    others = f" and {len(dropped) - 1} more" if len(dropped) > 1 else ""
    return Animation(
        "dp",
        "Data parallelism: all-reduces under backward",
        tuple(fine),
        bad[0],
        f"bucket {DROPPED_BUCKET} is never sent ({dropped[0].name}{others})",
        [rank.log for rank in right.runs["overlapped"].ranks],
        tuple(bad[1:]),
    )


def _right(warm: WarmRanks, config: TrainConfig, layouts: dict[str, Layout], elements: int, one: Run) -> Runs:
    runs = {sync: fastest(warm, config, layout) for sync, layout in layouts.items()}
    details = {sync: f"{warm.prove(config, run)} {_bytes(run, elements)}" for sync, run in runs.items()}
    longer = _keeping_weights(warm, config, layouts["overlapped"], train_keeping_weights)
    verdict = f"The bits of one process: {runs['overlapped'].fingerprint[:8]}"
    return Runs(runs, Drift.of(longer, one), verdict, details)


def _broken(warm: WarmRanks, config: TrainConfig, layouts: dict[str, Layout], one: Run) -> Runs:
    runs = {sync: warm.train(config, layout, drops_a_bucket, trace=True) for sync, layout in layouts.items()}
    ends = {tuple(rank.fingerprint for rank in run.ranks) for run in runs.values()}
    if len(ends) != 1:
        raise RuntimeError("without the sum of a bucket, the ways to sum differ in bits: this is a bug in minidist")
    details = diverges(warm.first_difference(config, runs["overlapped"], drops_a_bucket))
    longer = _keeping_weights(warm, config, layouts["overlapped"], train_broken_keeping_weights)
    ranks, models = len(runs["overlapped"].ranks), len(set(*ends))
    return Runs(runs, Drift.of(longer, one), f"{ranks} ranks, {models} different models.", dict.fromkeys(runs, details))


def _keeping_weights(warm: WarmRanks, config: TrainConfig, layout: Layout, rank_function: Callable) -> Run:
    return warm.train(replace(config, steps=STEPS), layout, rank_function, digests=False)


def _bytes(run: Run, elements: int) -> str:
    """What all ranks sent in a step, next to the formula."""
    ranks, sent = len(run.ranks), sum(row["bytes_sent"] for rank in run.ranks for row in rank.collectives)
    formula = 2 * (ranks - 1) * 8 * (elements + 1)
    return f"All ranks send {sent:,} B in a step; formula 2 (N−1) 8 (P+1), with the loss: {formula:,} B."


def on_one_clock(logs: dict[str, list[list]], link: str, latency: str, chip: str, full=()) -> dict[str, Step]:
    """Each sync's step as GPUs would run it; ``full`` is when buckets are full, in ns."""
    return {
        sync: Step.of(sync, on_gpus(one, link, latency, chip).logs, () if sync == "naive" else full)
        for sync, one in logs.items()
    }


def on_all_gpus(right: Runs, broken: Runs) -> tuple[list[Scene], list[Scene]]:
    """The scenes as GPUs would run them, correct and broken, with dials."""
    logs = right.logs, broken.logs
    full = {chip: full_times(logs[0]["overlapped"], chip) for chip in CHIPS}

    @cache
    def races(*words: str) -> tuple[Race, Race]:
        both = [on_one_clock(one, *words, full[words[-1]]) for one in logs]
        longest = max(step.end for steps in both for step in steps.values())
        fine, bad = (
            Race(steps, longest, words, runs.ranks, dict.fromkeys(steps, runs.verdict), runs.details, runs is broken)
            for runs, steps in zip((right, broken), both, strict=True)
        )
        return fine, bad

    def scene(sync: str, which: int) -> Scene:
        return at_start(OnDemand(DIALS, lambda *words: races(*words)[which].scene(sync)))

    fine, bad = ([scene(sync, which) for sync in right.runs] for which in (0, 1))
    return fine, bad
