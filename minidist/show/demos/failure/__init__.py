"""Failures: a rank dies and the run goes on without it, and a checkpoint is saved so that no power cut spoils it.

A real run loses its last rank just before a checkpoint is due. It goes on in another layout, and ends on the
fingerprint of the run that was never interrupted. A second run records the disk operations of each rank while it saves.
The same operations then run on a disk that loses power (show/demos/failure/crashing_disk.py), and minidist's own code
decides whether training can resume from what is left. In one broken run, the moments of Adam are not loaded; in the
other, `latest` moves before the ranks' files are flushed.
"""

from dataclasses import replace

from minidist.show.demos.failure import story
from minidist.show.demos.failure.bug import BUG, FORGETS, train_early, train_forgetful
from minidist.show.demos.failure.power_cut import moments_of
from minidist.show.demos.failure.recording import record
from minidist.show.demos.failure.run import config_of, interrupted, layouts_of
from minidist.show.demos.shared.runs import check_harm, warm_ranks
from minidist.show.stage.animation import Animation

MOST = 6  # steps between two checkpoints


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Kill a rank of a run with ``size`` steps between two checkpoints, and cut the power while one is saved."""
    if size < 2:
        raise ValueError(f"size, the steps between two checkpoints, must be from 2 to {MOST}, got {size}: none is lost")
    config = config_of(ranks, size, seed)
    saved = replace(config, steps=2 * size)  # up to its second checkpoint
    with warm_ranks() as warm:
        run, forgetful = interrupted(warm, config, ranks, size, train_forgetful)
        proof = warm.prove(config, run.resumed)
        right, recording = record(warm, saved, layouts_of(ranks)[0], size)
        early, wrong = record(warm, saved, layouts_of(ranks)[0], size, train_early)
        same = [warm.prove(saved, one) for one in (right, early)]
    check_harm(run.resumed, forgetful.resumed)
    whole, spoiled = moments_of(recording), moments_of(wrong)
    if not any(one.step is None for moment in spoiled for one in moment.left):
        raise RuntimeError("after every power cut minidist finds a whole checkpoint: the injected bug does no harm")
    stories = (
        story.dies(run, proof),
        story.dies(forgetful, "No error: all shapes fit, and the loss still falls.", run, FORGETS),
        story.save(recording, whole, ranks, same[0]),
        story.save(wrong, spoiled, ranks, f"Without a power cut nobody notices. {same[1]}", BUG),
    )
    logs = [rank.log for rank in run.resumed.ranks]
    return Animation("failure", "Failures: a run that cannot tell that it was killed", stories, logs)
