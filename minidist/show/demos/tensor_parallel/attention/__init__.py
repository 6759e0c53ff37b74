"""Attention by heads: each rank has whole heads, and the output projection's rows that belong to them."""

from dataclasses import replace

from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.demos.tensor_parallel.attention.run import Held, matches, numbers_of, split, whole
from minidist.show.demos.tensor_parallel.attention.scene import scene_of
from minidist.show.player.scene import Scene

NAME = "heads"
BUG = "in forward, attention's g does not sum over the ranks"


def scenes(warm: WarmRanks, seed: int) -> tuple[Scene, Scene]:
    """The scene, and the same with g skipped.

    Raises:
        RuntimeError: if the parts do not join to the bits of one process.
    """
    numbers = numbers_of(seed)
    one, ranks, bad = whole(warm, numbers), split(warm, numbers), split(warm, numbers, broken=True)
    if not matches(ranks, one):
        raise RuntimeError("attention by heads does not match one process: this is a bug in minidist")
    right = scene_of(NAME, ranks, one, numbers, "The heads, joined, have the bits of one process.")
    broken = scene_of(f"broken {NAME}", bad, one, numbers, damage(bad, one), bug=True)
    return right, replace(broken, twin=NAME, questions=(), bug=BUG)


def damage(ranks: list[Held], one: Held) -> str:
    """What a skipped sum has done, in a few words."""
    wrong = sum(int((held.y != one.y).sum()) for held in ranks)
    return f"y is wrong in {wrong} of {len(ranks) * one.y.size} cells, and no two ranks agree."
