"""What two runs must have in common if their layouts must not show, beyond the fingerprint of their last state."""

import json
from pathlib import Path

from verify.made_up import train_by_made_up_times
from verify.settings import Case

from minidist.data.packing import PADDED
from minidist.train.checkpoint.commit import name_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.restore import full_arrays
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.result import Run, RunOptions
from minidist.train.rules import loosened_by
from minidist.train.share import batch_of, corpus_of
from minidist.train.trainer import run
from minidist.verify.comparison import bits

OF_THE_LAYOUT = {  # what --json tells of the layout and of its ranks
    "layout", "seconds", "tokens_per_second", "traffic", "memory", "collectives", "flops", "step_seconds", "pauses",
    "compute_seconds", "micro_batch_seconds", "micro_batch_counts", "copy_pauses", "pushes",
}  # fmt: skip


def difference(ranks, case: Case, folder: Path) -> list[str]:
    """Return what differs between a case and its reference, both run here, by name; nothing if all is well.

    Args:
        ranks: n -> a cluster of n ranks. folder: for their checkpoints.
    """
    runs = []
    for name, layout in (("one", case.reference), ("found", case.layout)):
        saving = None if loosened_by(layout) else Saving(str(folder / name), every=case.config.steps)
        rebalance = case.rebalance and layout != case.reference
        options = RunOptions(step_digests=not layout.slack, validate=True, sample=3, saving=saving, rebalance=rebalance)
        function = train_by_made_up_times if rebalance else None
        runs.append(run(ranks(layout.world_size), case.config, layout, options, rank_function=function))
    one, found = runs
    whole = {name: getattr(one.ranks[0], name) for name in ("fingerprint", "losses", "step_digests")}
    wrong = [name for name, value in whole.items() for rank in found.ranks if getattr(rank, name) != value]
    expected, told = (json.loads(json.dumps(each.as_dict())) for each in runs)
    wrong += [key for key in expected.keys() | told.keys() if key not in told or key not in expected]
    wrong += [key for key in expected.keys() - OF_THE_LAYOUT if told.get(key) != expected[key]]
    wrong += ["the sample"] * (found.ranks[0].sample != one.ranks[0].sample)
    wrong += ["counts of experts"] * any(counts_of(rank) != counts_of(one.ranks[0]) for rank in found.ranks)
    wrong += [f"FLOPs in {phase}" for phase in ("forward", "backward") if flops(found, phase) != flops(one, phase)]
    if not loosened_by(case.layout):
        wrong += exported_difference(folder, case.config.steps)
    return wrong


def counts_of(rank) -> list:
    return [counts.tolist() for counts in rank.expert_counts]


def flops(result: Run, phase: str) -> int:
    """Return the FLOPs of all ranks and steps; products that several tensor-parallel ranks compute alike count once.

    Those are the routers', on all ranks, and those of keys and values where there are more ranks than heads of these.
    Backward has two for each of forward; of ranks that share keys and values, only the first computes both.
    """
    config, tp, backward = result.config, result.layout.tp, phase == "backward"
    model, tokens = config.model, sum(map(tokens_computed, [config] * config.steps, range(config.steps)))
    router = len(model.sparse_layers) * config.experts * (tp - 1) * (1 + backward)
    keys = config.layers * 2 * config.width // config.heads * max(0, tp - model.groups)
    again = 2 * tokens * config.width * (router + keys)
    return sum(rank.flops.get(phase, 0) for rank in result.ranks) - again


def tokens_computed(config: TrainConfig, step: int) -> int:
    """Tokens of all micro-batches of a step, which may end with the longest of their documents."""
    if config.packing not in PADDED:
        return config.tokens_of(range(step, step + 1))
    numbers = range(config.batch_at(step) // config.micro_batch)
    return sum(batch_of(corpus_of(config), config, step, number).tokens.size for number in numbers)


def exported_difference(folder: Path, step: int) -> list[str]:
    """The arrays of two checkpoints, exported, that do not have the same bits."""
    places = [folder / name / name_of(step) for name in ("one", "found")]
    one, found = (full_arrays(place, Manifest.read(Disk(), place), optimizer=True) for place in places)
    names = one.keys() | found.keys()
    return [
        f"exported {name}"
        for name in names
        if name not in one or name not in found or (bits(one[name]) != bits(found[name])).any()
    ]
