"""Whatever happens to a run, it goes on where it should, and ends on the bits of plain runs.

Stories are drawn: a run begins anew or from the checkpoint of another layout, saves, copies to peers, checks its
numbers; ranks die, raise, hang, or flip a bit; a checkpoint is damaged, the disk is full once; and the run goes on with
the ranks that are left, or all. Some stories are told by hand.

The bits are those of one process or, where bits depend on the layout, of a chain of plain runs: each stretch of steps
in its own layout, handed on by a checkpoint in a folder of its own. Where a run goes on follows from what it was asked
to keep (``foretold``). A folder holds the checkpoints of one line of steps, and ``latest`` is its end.
"""

import os
import random
import re
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from acting import train_acting
from choosing import long
from clusters import RUN_SECONDS, PatientCluster
from multiprocess import active_children

from minidist.train import trainer
from minidist.train.checkpoint.commit import committed, latest, name_of, step_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.folder import own_folder
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.peers import PeerCopies
from minidist.train.checkpoint.restore import full_arrays, is_whole
from minidist.train.checkpoint.saver import Saver, Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import Elasticity, run_elastic
from minidist.train.resilience.faults import Fault
from minidist.train.result import RunOptions
from minidist.train.rules import loosened_by
from minidist.train.trainer import run
from minidist.verify.matrix import covering, every_combination

MEMORY = "the memory of peers"
CONFIG = TrainConfig(
    layers=2, heads=2, width=8, context=8, global_batch=5, micro_batch=1, steps=6, warmup=2, lr=1e-2, clip=0.5,
    dropout=0.1, sequence_chunks=2, experts=4, expert_hidden=4, aux_loss=0.01, aux_scope="global_batch", bias_rate=0.01,
)  # fmt: skip
DENSE = replace(CONFIG.without_experts(), sequence_chunks=1, lr=0.05)
OVERFLOWING = replace(DENSE, precision="fp16", lr=3.0)  # some steps are skipped, and the loss scale moves
INEXACT = {  # settings with which the layouts below have different bits
    replace(DENSE, reduce_dtype="float32"): (
        "dp=5", "dp=2", "dp=3,algorithm=naive", "dp=3,zero=3", "tp=2", "dp=2,zero=1,algorithm=direct", "dp=4",
    ),
    replace(DENSE, softmax="online32", sequence_chunks=4): (
        "cp=2", "dp=1", "cp=2,cp_kind=all-gather", "cp=4", "cp=2,cp_kind=zigzag", "dp=2",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Story:
    """A run: what is asked of it, and what happens to it.

    Attributes:
        faults: in the order of their steps, at most one in each.
        before, cut: the layout of the run that it goes on from, and after how many steps, if there is one; ``here`` if
            that has saved in the folder in which this one saves.
        save, copies, check: steps from one checkpoint, copy in memory, or check of the numbers to the next; 0 for none.
        damaged, full: the steps whose checkpoint changes once it is committed, and for whose the disk is full.
        ahead: what the run before has left there that is newer, as a kill between two steps of a commit leaves it, or
            damaged, so that nobody needs it: "older latest", "half written", or "damaged".
    """

    layout: str
    faults: tuple[str, ...] = ()
    before: str = ""
    cut: int = 0
    here: bool = False
    save: int = 0
    keep: int = 0
    mode: str = "sync"
    copies: int = 0
    check: int = 0
    how: str = "shrink"
    damaged: int = 0
    full: int = 0
    ahead: str = ""
    config: TrainConfig = field(default=DENSE, repr=False)

    @property
    def orders(self) -> list[Fault]:
        return list(map(Fault.parse, self.faults))


SUMS, SOFTMAX = INEXACT
BRANCH = Story("dp=2", before="dp=5", cut=2, here=True, save=2, ahead="older latest", config=SUMS)
BY_HAND = [
    Story("dp=3", ("rank=1,step=0,kind=kill",), save=2),
    Story("dp=4,zero=1", ("rank=3,step=2,kind=kill", "rank=0,step=3,kind=raise", "rank=1,step=5,kind=kill"), copies=2),
    # two micro-batches and two heads occupy 2 of the 3 ranks that are left; the third alone has a snapshot
    Story("dp=2,tp=2", ("rank=0,step=5,kind=kill",), copies=2, config=replace(DENSE, global_batch=2)),
    # what was saved since the last check holds the wrong number, and nobody can tell any longer
    Story("dp=3", ("rank=0,step=3,kind=flip:weights", "rank=2,step=4,kind=kill"), save=1, keep=1, check=3),
    Story("dp=3", ("rank=0,step=3,kind=flip:moments", "rank=2,step=5,kind=kill"), copies=1, check=3),
    Story("dp=3", ("rank=1,step=4,kind=flip:weights",), save=1, keep=1, check=3, how="restart"),
    Story("dp=3", ("rank=1,step=5,kind=kill",), save=1, full=5, mode="async"),
    Story("dp=2", ("rank=0,step=4,kind=kill",), before="tp=2", cut=3, save=4, how="restart", config=OVERFLOWING),
    BRANCH,
    replace(BRANCH, ahead="half written"),
    replace(BRANCH, layout="dp=1", before="cp=2", ahead="damaged", config=SOFTMAX),
]
SHORT = (0, 6, 8)
WHY = {"kill": "was killed by SIGKILL", "raise": "failed: OrderedFault", "hang": "hangs: it waits for no other"}
PATIENCE = 3.0  # seconds, with a rank that hangs
combinations = cache(partial(every_combination, CONFIG))


@cache
def layouts_of(experts: bool, precision: str, most: int) -> list[Layout]:
    """The legal layouts, in one order."""
    wanted = CONFIG.experts * experts, precision
    some = [c.layout for c in combinations(most) if (c.experts, c.precision) == wanted]
    return [layout for layout in some if not loosened_by(layout)]


def drawn(seed: int, most: int) -> Story:
    rng = random.Random(seed)
    if seed % 4 == 3:
        config = rng.choice(list(INEXACT))
        layouts = [Layout.parse(text) for text in INEXACT[config]]
    else:
        experts, precision = seed % 2 == 0, rng.choice(("fp32", "bf16", "fp16", "fp8"))
        config = replace(CONFIG if experts else CONFIG.without_experts(), precision=precision)
        config = replace(config, optimizer=rng.choice(("adamw", "lamb", "sgd")))
        if (precision, config.optimizer) == ("fp16", "adamw"):
            config = replace(config, lr=1.0)  # gradients overflow: the scale moves
        layouts = layouts_of(experts, precision, most)
    size = rng.choice(sorted({layout.world_size for layout in layouts if layout.world_size > 1}))
    layout = rng.choice([layout for layout in layouts if layout.world_size == size])
    count = rng.choice((0, 1, 2, 2) if size > 2 else (0, 1, 1))
    told = {"save": rng.choice((1, 2, 3)), "keep": rng.choice((0, 2)), "copies": rng.choice((0, 0, 1, 2, 3))}
    told |= {"how": rng.choice(("shrink", "restart")), "mode": rng.choice(("sync", "sync", "async"))}
    if not count or rng.random() < 0.5:
        told |= {"before": str(rng.choice(layouts)), "cut": rng.randrange(1, config.steps - 1)}
        told["here"] = rng.random() < 0.5
    steps = sorted(rng.sample(range(told.get("cut", 0), config.steps), count))
    kinds = [rng.choice(("kill", "raise", *(["hang"] * 2 if seed % 4 == 0 else []))) for _ in steps]
    if count and rng.random() < 0.4:
        kinds[0] = f"flip:{rng.choice(('weights', 'gradients', 'weights' if config.optimizer == 'sgd' else 'moments'))}"
        told["check"] = rng.choice((2, 3))
    elif count and told["mode"] == "sync" and rng.random() < 0.6:
        told["damaged"] = steps[0] // told["save"] * told["save"]
    elif rng.random() < 0.3:
        told["full"] = rng.randrange(1, config.steps // told["save"]) * told["save"] if told["save"] < 3 else 3
    if told["copies"] and not told.get("damaged") and rng.random() < 0.4:
        told["save"] = told["full"] = 0
    ranks = [rng.randrange(size if not place else 1) for place in range(count)]
    faults = (f"rank={rank},step={step},kind={kind}" for rank, step, kind in zip(ranks, steps, kinds, strict=True))
    return Story(str(layout), tuple(faults), config=config, **told)


def foretold(story: Story, begun: int, faults: list[Fault]) -> tuple[int, int, bool, list[Fault]]:
    """Return the step of the next interruption, after how many steps the run goes on, if from memory, and later faults.

    It goes on with the newest state that it was asked to keep, and that it can rely on: without checks with whatever
    there was, with them with nothing newer than the last one.

    Args:
        begun: the steps with which this attempt began. faults: that have not struck yet.
    """
    first, *later = faults
    at = first.step
    if first.kind == "flip":  # found by the next check, unless a rank fails before
        at = next(n for n in range(at + 1, at + 99) if n % story.check == 0 or n == story.config.steps)
        if later and later[0].step < at:
            at, later = later[0].step, later[1:]
    checked = [n for n in range(begun + 1, first.step + 1) if story.check and n % story.check == 0]
    limit = max([begun, *checked]) if story.check else at
    disk = {n for n in range(story.cut + 1, limit + 1) if story.save and n % story.save == 0}
    memory = {n for n in range(max(1, begun), limit + 1) if story.copies and (n == begun or n % story.copies == 0)}
    newest = max(disk - {story.damaged, story.full} | memory | {story.cut})
    return at, newest, newest in memory, later


def out_of_luck(story: Story):
    """A rank function: for one checkpoint the disk is full, and another changes as soon as it is committed."""

    class Full(Disk):
        def write(self, path, content):
            if story.full and path.parent.name == name_of(story.full) and "rank-1" in path.name:
                super().write(path, content[: len(content) // 2])
                raise OSError(28, "No space left on device")
            super().write(path, content)

    def rank_function(world, *arguments):
        def damage(step):
            if world.rank == 0 and step + 1 == story.damaged:
                file = Path(arguments[2].saving.folder) / name_of(story.damaged) / "rank-0.safetensors"
                content = file.read_bytes()
                file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

        with mock.patch.object(trainer, "Saver", partial(Saver, disk=Full())):
            return train_acting(world, *arguments, end=damage)

    return rank_function


@pytest.fixture(autouse=True)
def nothing_is_left(ranks):
    """No process and no shared memory of an attempt outlives it. (``ranks`` loads what ranks import.)"""
    before = left(ranks)
    yield
    assert left(ranks) == before


def left(ranks) -> tuple[set[int], set[str]]:
    """The processes that are no warm ranks, and the names of shared memory that no warm rank uses."""
    where = Path("/dev/shm")
    names = {path.name for path in where.glob(f"minidist-{os.getpid()}-*")} if where.is_dir() else set()
    warm = ranks._clusters.values()
    processes = {child.pid for child in active_children()} - {rank.process.pid for one in warm for rank in one._ranks}
    return processes, names - {one._segment.name for one in warm if one._segment is not None}


@pytest.fixture(scope="module")
def plain(ranks, tmp_path_factory):
    """``plain(config, layouts)`` is the run whose steps are taken in these layouts, one after another."""

    @cache
    def result(config: TrainConfig, layouts: tuple[Layout, ...]):
        if config not in INEXACT:
            return run(ranks(1), config, Layout())
        folder, resume = tmp_path_factory.mktemp("chain"), None
        ends = [n for n, (one, other) in enumerate(pairwise(layouts), 1) if one != other]
        for until in (*ends, len(layouts)):
            saving = Saving(str(folder / str(until)), every=99, mode="sync")
            options = RunOptions(saving=saving, resume=resume, stop_after=until - 1)
            found = run(ranks(layouts[until - 1].world_size), config, layouts[until - 1], options)
            resume = str(folder / str(until) / name_of(until))
        return found

    return result


def spoil(folder: Path, story: Story) -> None:
    """Leave what is newer than the step after which the story goes on so that nobody needs it."""
    for name in committed(Disk(), folder):
        if step_of(name) > story.cut and story.ahead == "damaged":
            (folder / name / "rank-0.safetensors").write_bytes(b"")
        if step_of(name) > story.cut and story.ahead == "half written":
            (folder / name / "manifest.json").unlink()
    if story.ahead != "damaged":
        (folder / "latest").write_text(name_of(story.cut))


def tell(ranks, folder: Path, story: Story):
    """Let a story happen: the run, and its interruptions."""
    config, layout, resume = story.config, Layout.parse(story.layout), None
    if story.before:
        before, first = Layout.parse(story.before), folder / ("run" if story.here else "first")
        every, until = (story.cut, config.steps) if story.ahead else (99, story.cut)
        options = RunOptions(saving=Saving(str(first), every, keep=0, mode=story.mode), stop_after=until - 1)
        run(ranks(before.world_size), config, before, options)
        if story.ahead:
            spoil(first, story)
        resume = str(first / name_of(story.cut))
    by_replay = any(fault.place == "gradients" for fault in story.orders)  # a vote sees none
    options = RunOptions(
        resume=resume, saving=Saving(str(folder / "run"), story.save, story.keep, story.mode) if story.save else None,
        peer_copies=PeerCopies(story.copies) if story.copies else None, faults=tuple(story.orders),
        check_replicas=story.check, check_by="replay" if by_replay else "auto", stop_after=config.steps - 1,
    )  # fmt: skip
    if not story.faults:
        return run(ranks(layout.world_size), config, layout, options, rank_function=out_of_luck(story)), []

    def on_interruption(it):  # nothing that the run is not going on from is left, should it be killed at once
        assert all(step_of(name) <= it.resumed for name in committed(Disk(), folder / "run"))
        if story.save:  # else another run gets in meanwhile, and its checkpoints are removed as newer ones
            with pytest.raises(ValueError, match="another run is saving in"), own_folder(str(folder / "run"), None):
                pass

    patience = PATIENCE if any(fault.kind == "hang" for fault in story.orders) else RUN_SECONDS
    return run_elastic(
        config, layout, options, Elasticity(story.how, patience=patience), rank_function=out_of_luck(story),
        on_interruption=on_interruption, start=PatientCluster,
    )  # fmt: skip


def check_folder(folder: Path, story: Story, result) -> None:
    """Check that what was to be saved is there, whole, on the way to the result; the last checkpoint is the result."""
    names, steps = committed(Disk(), folder), story.config.steps
    due = {n for n in range(story.cut + 1, steps + 1) if n % story.save == 0 or n == steps} - {story.full}
    expected = [name_of(n) for n in sorted(due | ({story.cut} if story.here else set()))][-story.keep :]
    assert names == expected if story.mode == "sync" else set(names) <= set(expected), (names, expected)
    assert names[-1] == latest(Disk(), folder) == name_of(steps)
    for name in names:
        manifest = Manifest.read(Disk(), folder / name)
        assert list(manifest.progress.losses) == result.losses[: step_of(name)], name
        assert is_whole(Disk(), folder / name) == (step_of(name) != story.damaged), name
    arrays = full_arrays(folder / names[-1], manifest, optimizer=True)
    assert all(np.array_equal(arrays[name], values) for name, values in result.ranks[0].arrays.items())


def check(ranks, plain, folder: Path, story: Story) -> None:
    """Let a story happen, and look at all that must be so."""
    config, layout = story.config, Layout.parse(story.layout)
    layouts = [Layout.parse(story.before or "dp=1")] * story.cut + [layout] * (config.steps - story.cut)
    result, interruptions = tell(ranks, folder, story)
    begun, faults = story.cut, story.orders
    for it in interruptions:
        first = faults[0]
        at, resumed, from_memory, faults = foretold(story, begun, faults)
        assert it.step == at and it.before == layout, (story, it)
        assert it.resumed == resumed or (story.mode == "async" and it.resumed <= resumed), (story, it)
        if story.mode == "sync":
            assert (it.source == MEMORY) == from_memory and it.lost == "", (story, it)
        named = {first.rank} if first.kind != "flip" or at == first.step else {first.rank, None}
        assert first.kind == "flip" or (it.ranks == (first.rank,) and WHY[first.kind] in it.why), (story, it)
        assert it.detect >= PATIENCE * (first.kind == "hang") and it.restart > 0, (story, it)
        assert (it.recompute > 0) == (it.resumed < it.step), (story, it)
        assert set(it.ranks) <= named | {fault.rank for fault in story.orders}, (story, it)
        assert story.how == "restart" or it.after.world_size <= layout.world_size - len(it.ranks), (story, it)
        assert story.how == "shrink" or it.after == layout, (story, it)
        begun, layout = it.resumed, it.after
        layouts[begun:] = [layout] * (config.steps - begun)
    assert not faults and result.layout == layout, story
    expected = plain(config, tuple(layouts))
    assert {rank.fingerprint for rank in result.ranks} == {expected.fingerprint}, (story, interruptions)
    assert result.losses == expected.losses and result.steps_here == config.steps - begun, story
    for name in ("loss_scale", "skipped_steps"):
        assert getattr(result.ranks[0], name) == getattr(expected.ranks[0], name), story
    assert expected.ranks[0].skipped_steps > 0 or config != OVERFLOWING
    if story.full and not interruptions:
        errors = [error for rank in result.ranks for error in rank.save_errors]
        assert len(errors) == len(result.ranks), (story, errors)
        assert all(re.search("rank-1.safetensors.*No space left", error) for error in errors), (story, errors)
    if story.save:
        check_folder(folder / "run", story, result)


@pytest.mark.parametrize("number", [number if number in SHORT else long(number) for number in range(len(BY_HAND))])
def test_a_story_told_by_hand(ranks, plain, tmp_path, number):
    check(ranks, plain, tmp_path, BY_HAND[number])


def kinds_of(story: Story) -> dict[str, bool]:
    """Return the kinds of a story."""
    kinds = {name: name in str(story.faults) for name in ("kill", "raise", "hang", "flip")}
    kinds |= {name: bool(getattr(story, name)) for name in ("copies", "check", "damaged", "full", "here", "save")}
    kinds |= {"async": story.mode == "async", "restart": story.how == "restart", "two faults": len(story.faults) > 1}
    resumed = bool(story.before) and not story.faults
    return kinds | {"resumed": resumed, "inexact": story.config in INEXACT, "experts": bool(story.config.experts)}


@pytest.mark.parametrize("many", [False, long(True)], ids=["two", "every two kinds"])
def test_stories(ranks, plain, tmp_path, many):
    """Every two kinds of stories that can meet in one do, in some of a hundred."""
    stories = [drawn(seed, 6) for seed in range(100)] if many else [drawn(2, 4), drawn(3, 4)]
    rows = list(map(kinds_of, stories))
    for number in covering(rows) if many else range(2):
        check(ranks, plain, tmp_path / str(number), stories[number])
    assert not many or all({row[kind] for row in rows} == {True, False} for kind in rows[0])
