"""The rules for legal layouts and runs. Each is a condition and a message: what is wrong, and what would be right.

``Layout`` is checked by ``of_layout`` when it is made; the planner's layout by ``of_choices`` and ``of_shape``, which
know no limits of one laptop. ``TrainConfig.check`` applies ``of_run`` to a run in a layout, and code that starts a run
applies ``of_options`` to its options. Only the first broken rule is reported: single values come first, then their
combinations. Some legal runs loosen the step: ``why_it_differs`` says which have other bits than one process.
"""

from collections.abc import Iterator
from math import inf, isfinite

import numpy as np

from minidist.comm.collectives import ALL_GATHER, ALL_REDUCE
from minidist.comm.placement import HIERARCHICAL, check_node_size, node_counts
from minidist.comm.transports.shared_memory import MAX_RANKS
from minidist.data.packing import RANDOM
from minidist.nn.config import divisors, listed
from minidist.nn.recompute import MODES
from minidist.parallel.compression.hook import read_method
from minidist.parallel.context import KINDS
from minidist.parallel.data import SYNCS as TIGHT_SYNCS
from minidist.parallel.data import share_of
from minidist.parallel.expert import expert_groups
from minidist.parallel.loosened.arrivals import read_arrivals
from minidist.parallel.tools.schedules import SCHEDULES

SERVED = ("server", "async")  # kinds of sync that have a parameter server
LOOSE = ("delayed", *SERVED, "local")
SYNCS = (*TIGHT_SYNCS, *LOOSE)
GRAD_SYNCS = ("micro_batch", "step")
CHECKS = ("auto", "vote", "replay")  # ways to check the numbers: see resilience/checks.py
ZERO_ALGORITHMS = tuple(ALL_GATHER)  # reduce-scatter has the same
LAYOUT_CHOICES = {  # legal values of the settings that have few
    "algorithm": ("auto", *ALL_REDUCE),
    "sync": SYNCS,
    "zero": (0, 1, 2, 3),
    "prefetch": (0, 1),
    "reshard_after_forward": (0, 1),
    "grad_sync": GRAD_SYNCS,
    "sp": (0, 1),
    "cp_kind": KINDS,
    "schedule": tuple(SCHEDULES),
    "recompute": MODES,
    "error_feedback": (0, 1),
}


def check(broken: Iterator[str]) -> None:
    """Raise ValueError with the message of the first broken rule, if there is one."""
    for words in broken:
        raise ValueError(words)


def changed(layout, *keys: str) -> list[str]:
    """Return the settings among ``keys`` that are not the default, as ``key=value``."""
    return [f"{key}={getattr(layout, key)}" for key in keys if getattr(layout, key) != getattr(type(layout), key)]


def without(layout, reasons: dict[str, str]) -> Iterator[str]:
    """Yield a message for each setting that must keep its default; ``reasons``: key -> what is wrong with others."""
    for key, why in reasons.items():
        for setting in changed(layout, key):
            yield f"{setting} {why}: leave {key} {getattr(type(layout), key)}"


def of_choices(layout) -> Iterator[str]:
    for key, choices in LAYOUT_CHOICES.items():
        if (value := getattr(layout, key, choices[0])) not in choices:  # the planner's layouts have some of these keys
            yield f"{key}={value}: choose from {listed(choices)}"


# A layout by itself


def of_layout(layout) -> Iterator[str]:
    """Yield what is wrong with a layout whatever it trains."""
    kinds = {"dp": "data", "tp": "tensor", "cp": "context", "pp": "pipeline", "ep": "expert"}
    for key, kind in kinds.items():
        if not 1 <= getattr(layout, key) <= MAX_RANKS:
            yield f"{key}={getattr(layout, key)}: the number of {kind}-parallel ranks must be from 1 to {MAX_RANKS}"
    yield from of_choices(layout)
    if not layout.bucket_mb > 0:
        yield f"bucket_mb={layout.bucket_mb:g}: a bucket must be larger than 0 MiB"
    if layout.cp == 1 and changed(layout, "cp_kind"):
        yield f"cp_kind={layout.cp_kind} needs context parallelism, but cp=1 is none: set cp to 2 or more"
    yield from of_looser_steps(layout)
    if layout.world_size > MAX_RANKS:
        yield f"{layout} makes {layout.world_size} ranks, but there may be at most {MAX_RANKS}"
    yield from of_shape(layout)
    yield from of_gradient_sums(layout)
    yield from of_nodes(layout)


def of_shape(layout) -> Iterator[str]:
    """Yield what is wrong with the axes of a layout, however many ranks they have."""
    if layout.sp and layout.tp == 1:
        yield "sp=1 splits the sequence over tensor-parallel ranks, but tp=1 is a single one: set tp to 2 or more"
    if layout.dp % layout.ep:
        yield (
            f"ep={layout.ep} ranks share the experts, but do not divide dp={layout.dp}: choose ep from "
            f"{listed(divisors(layout.dp))}, or dp from {layout.ep}, {2 * layout.ep}, {3 * layout.ep}, ..."
        )
    if layout.zero and layout.replicas == 1:
        yield f"zero={layout.zero} shards over dp x cp ranks, but there is only one: set dp or cp to 2 or more"
    if layout.shard and not layout.zero:
        yield f"shard={layout.shard} is for ZeRO: set zero to 1, 2 or 3 as well"
    if layout.shard < 0 or (layout.shard and layout.replicas % layout.shard):
        ranks = f"dp={layout.dp}" if layout.cp == 1 else f"dp x cp = {layout.replicas}"
        yield f"shard={layout.shard} must divide {ranks}: it is the number of ranks that share one copy"
    if layout.virtual < 1:
        yield f"virtual={layout.virtual}: a rank needs at least one stage"
    if layout.virtual > 1 and layout.schedule != "interleaved":
        yield f"virtual={layout.virtual} needs schedule=interleaved, not {layout.schedule}"
    for setting in changed(layout, "schedule", "virtual") if layout.pp == 1 else ():
        yield f"{setting} needs a pipeline, but pp=1 is none: set pp to 2 or more"


def of_looser_steps(layout) -> Iterator[str]:
    served, local = layout.sync in SERVED, layout.sync == "local"
    for keys, legal, needed in (
        (("servers", "staleness", "arrivals"), served, "sync=server or sync=async"),
        (("local_steps", "outer_lr", "outer_momentum", "fragments"), local, "sync=local"),
        (("error_feedback",), layout.compress, "compress"),
        (("bucket_mb",), not served and layout.sync != "delayed", "sync=bucketed or sync=overlapped"),
    ):
        for setting in () if legal else changed(layout, *keys):
            yield f"{setting} is for {needed}: set that as well, or leave {setting.partition('=')[0]} out"
    if served:
        yield from of_servers(layout)
    if local:
        yield from of_local_steps(layout)
    if layout.sync == "delayed":
        yield from without(layout, {"ep": "sums gradients in two groups of ranks, but sync=delayed in one"})
    if layout.compress:
        yield from of_compression(layout)


def of_servers(layout) -> Iterator[str]:
    if layout.servers < 0:
        yield f"servers={layout.servers}: at least one rank has to hold the parameters: choose 1 or more"
    if layout.staleness < 0:
        yield f"staleness={layout.staleness}: must be 0 or more steps; sync=async has no bound"
    if layout.sync == "async" and layout.staleness:
        yield f"staleness={layout.staleness} bounds what sync=async leaves unbounded: choose sync=server"
    splits = f"splits the model over ranks, but with sync={layout.sync} each worker computes with the whole model"
    yield from without(layout, dict.fromkeys(("tp", "cp", "pp", "ep"), splits) | {
        "zero": f"shards the optimizer over data-parallel ranks, but with sync={layout.sync} the servers hold it",
        "algorithm": f"sums gradients over ranks, but with sync={layout.sync} they are sent to servers",
    })  # fmt: skip
    read_arrivals(layout.arrivals, layout.dp)


def of_local_steps(layout) -> Iterator[str]:
    if layout.local_steps < 1:
        yield f"local_steps={layout.local_steps}: must be at least 1 step"
    if not (isfinite(layout.outer_lr) and layout.outer_lr > 0):
        yield f"outer_lr={layout.outer_lr:g}: must be above 0 and finite"
    if not 0 <= layout.outer_momentum < 1:
        yield f"outer_momentum={layout.outer_momentum:g}: must be at least 0 and below 1"
    if not 1 <= layout.fragments <= layout.local_steps:
        steps = layout.local_steps
        yield f"fragments={layout.fragments} take turns within local_steps={steps}: choose 1 to {steps}"
    apart = "which then exchange messages in every step, but with sync=local they do not"
    yield from without(layout, {
        "zero": f"shards over data-parallel ranks, {apart}", "ep": f"shares experts among data-parallel ranks, {apart}"
    })  # fmt: skip


def of_compression(layout) -> Iterator[str]:
    method = f"compress={layout.compress}"
    if not read_method(layout.compress).feeds_back and not layout.error_feedback:
        yield f"error_feedback=0: {method} rounds by chance and has no error feedback: leave error_feedback out"
    if layout.sync not in ("bucketed", "overlapped"):
        yield f"{method} compresses buckets, but sync={layout.sync} has none: choose sync=bucketed or sync=overlapped"
    yield from without(layout, {
        "zero": f"keeps only a shard of the gradients, but {method} must know all that it left out of them",
        "ep": f"sums gradients in two groups of ranks, but {method} in one",
    })  # fmt: skip


def of_gradient_sums(layout) -> Iterator[str]:
    """Yield what is wrong with how ZeRO's stages communicate, and with the stages of a pipeline."""
    if layout.ep > 1 and layout.shard:
        yield (
            f"shard={layout.shard} is the same for all, but with ep={layout.ep} experts have fewer replicas than "
            "the rest of the model: leave shard 0, which shards each parameter over all of its replicas"
        )
    if layout.zero != 3 and (layout.prefetch or not layout.reshard_after_forward):
        yield "prefetch and reshard_after_forward apply to gathered parameters: they need zero=3"
    if layout.prefetch and layout.virtual > 1:
        yield "prefetch=1 cannot know which of several stages a rank runs next: leave it 0 if virtual is above 1"
    if layout.zero < 2 and changed(layout, "grad_sync"):
        yield f"grad_sync={layout.grad_sync} applies to sharded gradients: it needs zero=2 or zero=3"
    if layout.zero and changed(layout, "sync", "bucket_mb"):
        yield f"zero={layout.zero} sums gradients block by block: leave sync and bucket_mb out"
    *others, last = ("auto", *ZERO_ALGORITHMS)
    if layout.zero and layout.algorithm not in (*others, last):
        yield (
            f"algorithm={layout.algorithm} is for all-reduce, but zero={layout.zero} uses reduce-scatter and all-gather"
            f": choose {listed(others)} or {last}"
        )
    if layout.stages and layout.pp == 1:
        yield f"stages={layout.stages} needs a pipeline, but pp=1 is none: set pp to 2 or more"
    count = len(layout.layers_of_stages)
    if layout.stages and count != layout.stage_count:
        makes = f"pp={layout.pp} x virtual={layout.virtual} makes {layout.stage_count}"
        yield f"stages={layout.stages} has {count} stages, but {makes}"


def of_nodes(layout) -> Iterator[str]:
    if layout.node_size < 0:
        yield f"node_size={layout.node_size}: must be at least 1 rank, or 0 for all ranks on one node"
    if layout.node_size:
        check_node_size(layout.node_size, layout.world_size)
    if layout.algorithm == HIERARCHICAL and (uneven := uneven_group(layout, layout.node_size)):
        fitting = [n for n in divisors(layout.world_size) if not uneven_group(layout, n)]
        yield (
            f"algorithm={HIERARCHICAL} needs the same number of a group's ranks on every node, but with "
            f"node_size={layout.node_size} the group of ranks {listed(uneven)} has "
            f"{listed(counts_on_nodes(uneven, layout.node_size))} on its nodes: choose node_size from "
            f"{listed(fitting)}, or another algorithm, such as auto"
        )


def uneven_group(layout, node_size: int) -> list[int]:
    """Return the first group that sums gradients with unequal numbers of ranks on its nodes; [] if there is none."""
    groups = gradient_groups(layout) if node_size else []
    return next((group for group in groups if len(set(counts_on_nodes(group, node_size))) > 1), [])


def counts_on_nodes(group: list[int], node_size: int) -> list[int]:
    return node_counts(tuple(rank // node_size for rank in group))


def gradient_groups(layout) -> list[list[int]]:
    """Return the groups of world ranks whose collectives use the layout's algorithm; replicas of shards use "auto"."""
    mesh = np.arange(layout.world_size).reshape(layout.pp, layout.dp, layout.cp, layout.tp)
    replicas = mesh.transpose(0, 3, 1, 2).reshape(-1, layout.shard or layout.replicas).tolist()
    return replicas + (expert_groups(mesh, layout.ep)[1] if layout.ep > 1 else [])


# A run in a layout


def of_loosened_run(config, layout) -> Iterator[str]:
    """Yield why a run's steps cannot be loosened as its layout says. All other rules hold in every precision."""
    loosened = loosened_by(layout)
    if loosened and config.precision == "fp16":
        yield (
            f"{loosened} with precision fp16: all ranks must skip a step together when the sum of its gradients "
            f"overflows, but with {loosened} not all of them have this sum: choose bf16 or fp32"
        )
    if layout.compress:
        read_method(layout.compress).check(full_rank(config))
    if layout.sync in LOOSE and config.rampup_batch_size:
        yield f"{loosened} needs batches of the same size in all steps: leave rampup_batch_size out"
    if layout.sync in LOOSE and config.experts:
        yield f"{loosened} does not balance the load of experts: train a dense model"
    if layout.sync in LOOSE and config.packing != RANDOM:
        yield f"{loosened} averages micro-batches, whose targets must all count: choose packing random"
    if layout.sync == "local" and layout.fragments > config.layers:
        yield f"fragments={layout.fragments} share the {config.layers} layers: choose at most {config.layers}"


def of_run(config, layout) -> Iterator[str]:
    """Yield why a run with a constant batch size cannot be split as a layout says."""
    batch = f"global_batch {config.global_batch} / micro_batch {config.micro_batch}"
    does_not_divide = f"dp={layout.dp} does not divide {batch} = {config.micro_batches}; change one of them"
    if layout.dp > config.micro_batches:
        makes = f"but {batch} makes {config.micro_batches}; change one of them"
        yield f"dp={layout.dp} needs {layout.dp} micro-batches, {makes}"
    if config.heads % layout.tp:
        heads, fitting = f"the {config.heads} attention heads", listed(divisors(config.heads))
        yield f"tp={layout.tp} does not divide {heads}: choose tp from {fitting}, or other heads"
    groups = config.model.groups
    if groups % layout.tp and layout.tp % groups:
        fitting = [n for n in divisors(config.heads) if groups % n == 0 or n % groups == 0]
        yield (
            f"tp={layout.tp} neither divides the {groups} key-value heads nor is a multiple of them, so a rank would "
            f"hold parts of several: choose tp from {listed(fitting)}, or other kv_heads"
        )
    chunk = config.context // config.sequence_chunks
    if layout.sp and chunk % layout.tp:
        yield (
            f"sp=1 splits the {chunk} tokens of context / sequence_chunks over tp={layout.tp} ranks: choose a "
            f"multiple of {layout.tp}"
        )
    if layout.ep > 1 and not config.experts:
        yield f"ep={layout.ep} shares experts, but this model has none: set experts to a multiple of {layout.ep}"
    if config.experts and config.experts % layout.ep:
        fitting = [n for n in divisors(layout.dp) if config.experts % n == 0]
        yield (
            f"ep={layout.ep} does not divide the {config.experts} experts: choose ep from {listed(fitting)}, or a "
            f"multiple of {layout.ep} experts"
        )
    if layout.ep > 1 and layout.pp > 1 and config.micro_batches % layout.dp:
        yield f"with ep={layout.ep} ranks meet in every micro-batch, so all need the same number: {does_not_divide}"
    if layout.cp > 1:
        yield from of_run_with_context(config, layout)
    if layout.pp > 1:
        yield from of_run_with_stages(config, layout, batch, does_not_divide)


def of_run_with_context(config, layout) -> Iterator[str]:
    parts, heads = layout.least_chunks, max(1, config.model.groups // layout.tp)
    if config.sequence_chunks % parts:
        fitting = [n for n in range(parts, config.context + 1, parts) if config.context % n == 0][:4]
        numbers = f"choose sequence_chunks from {listed(fitting)}" if fitting else "choose another cp or context"
        yield (
            f"cp={layout.cp} by {layout.cp_kind} splits the sequence into {parts} parts, but sequence_chunks "
            f"{config.sequence_chunks} is not a multiple: with a context of {config.context} tokens, {numbers}"
        )
    if layout.cp_kind == "ulysses" and heads % layout.cp:
        kind = "attention" if config.model.groups == config.heads else "key-value"
        other = f"cp from {listed(divisors(heads)[1:])}, or " if heads > 1 else ""
        yield (
            f"cp={layout.cp} by ulysses does not divide the {heads} {kind} head{'s' * (heads > 1)} of a rank: choose "
            f"{other}another cp_kind, which splits no heads"
        )


def of_run_with_stages(config, layout, batch: str, does_not_divide: str) -> Iterator[str]:
    count, chosen = layout.stage_count, layout.layers_of_stages
    if chosen and sum(chosen) != config.layers:
        yield f"stages={layout.stages} makes {sum(chosen)} layers, but the model has {config.layers}"
    if config.layers < count:
        yield f"{layout} makes {count} stages, more than the {config.layers} layers: each stage needs at least one"
    least, most = (len(share_of(rank, layout.dp, config.micro_batches)) for rank in (layout.dp - 1, 0))
    if least != most and (layout.zero == 3 or (layout.zero == 2 and layout.grad_sync == "micro_batch")):
        meets = f"zero={layout.zero} with pp={layout.pp} communicates in every micro-batch"
        yield f"{meets}, so all ranks need the same number: {does_not_divide}"
    if layout.schedule == "interleaved" and (least % layout.pp or most % layout.pp):
        makes = f"{least} or {most}" if most > least else f"{least}"
        yield (
            f"the interleaved schedule takes micro-batches in rounds of pp={layout.pp}, but {batch} / dp={layout.dp} "
            f"makes {makes} on a rank: change one of them"
        )


# The options of a run


def of_options(config, layout, options) -> Iterator[str]:
    """Yield why a run in this layout cannot have these RunOptions."""
    loosened = loosened_by(layout)
    for flag, steps in (("--check-replicas", options.check_replicas), ("--noise-scale", options.noise_scale)):
        if steps < 0:
            yield f"{flag} must be 0 (never) or more steps, got {steps}"
    if options.check_by not in CHECKS:
        yield f"--check-by must be one of {listed(CHECKS)}, got {options.check_by}"
    if options.check_by == "vote" and layout.world_size == 1:
        yield "--check-by vote compares ranks, but there is only one: choose auto or replay"
    if options.loader < 0:
        yield f"--loader must be 0 (none) or more steps, got {options.loader}"
    if options.noise_scale:
        yield from of_noise_scale(config, layout)
    if options.rebalance:
        yield from of_rebalancing(config, layout, options)
    in_memory = options.peer_copies is not None or options.recover is not None
    for what, asked, why in (
        ("checkpoints", options.saving or options.resume, "no checkpoint holds"),
        ("--init-from", options.init_from, "no file of weights holds"),
        ("copies in the memory of peers", in_memory, "no copy holds"),
        ("--check-replicas", options.check_replicas, "no other rank can confirm"),
    ):
        if loosened and asked:
            yield f"{what} with {loosened}: each rank has some state of its own, which {why}: leave one of them out"


def of_rebalancing(config, layout, options) -> Iterator[str]:
    if options.check_replicas:
        yield "--check-replicas repeats steps with the layout's micro-batches, but --rebalance changes them: choose one"
    if config.rampup_batch_size:
        yield "--rebalance needs batches of the same size in all steps: leave rampup_batch_size out"
    if layout.pp > 1:
        yield f"--rebalance changes the micro-batches of a rank, for which pp={layout.pp} has no schedule: set pp to 1"
    if layout.dp == 1:
        yield "--rebalance deals out micro-batches among data-parallel ranks, but dp=1 is a single one: set dp to 2"
    if loosened := loosened_by(layout):
        yield f"--rebalance with {loosened}: the weights would depend on who computes a micro-batch: leave one out"


def of_noise_scale(config, layout) -> Iterator[str]:
    if layout.world_size > 1:
        yield "--noise-scale measures on one rank, and every layout takes the same steps: leave the layout out"
    if config.micro_batches < 2:
        yield "--noise-scale compares a micro-batch with the batch, but they are equal: choose a smaller --micro-batch"
    if config.experts:
        yield "--noise-scale computes gradients twice, and experts would count tokens twice: leave them out"
    if config.packing != RANDOM:
        yield "--noise-scale compares micro-batches whose targets all count: choose packing random"
    if config.precision == "fp16":
        yield "--noise-scale has no loss scale, which fp16 needs: choose another precision"


# Which legal runs have other bits


def loosened_by(layout) -> str:
    """Return the setting that loosens a layout's steps, trivially or not, such as ``sync=local``; "" if none does."""
    if layout.sync in LOOSE:
        return f"sync={layout.sync}"
    return f"compress={layout.compress}" if layout.compress else ""


def full_rank(config) -> int:
    """Return a rank at which PowerSGD sends every gradient as it is, because its factors would be no smaller.

    It is ``width``, unless the first matrix of an MLP needs more: laid flat it has heads x width rows, and one head's
    hidden units as columns. A Llama's gates double the columns, experts multiply the rows.
    """
    rows, gated, hidden = config.heads * config.width, config.arch == "llama", config.model.hidden_units
    mlps = (1, hidden), (1, config.shared_expert), (config.experts, config.expert_hidden or hidden)
    matrices = [(count * rows, (1 + gated) * units // config.heads) for count, units in mlps]
    return max(config.width, *(-(-m * n // (m + n)) for m, n in matrices))  # least r with r (m + n) >= m n


def linear(config) -> bool:
    """Return whether a step changes the weights by -lr times the gradient only: SGD without clipping or decay."""
    return config.optimizer == "sgd" and config.clip == inf and not config.weight_decay


def why_it_differs(config, layout) -> str:
    """Return why a run is not meant to have the bits of one process; "" if it is."""
    if layout.sync == "delayed":
        return "sync=delayed applies each gradient one step late"
    if layout.slack:
        bound = "of any age" if layout.slack == inf else f"with workers up to staleness={layout.staleness} steps apart"
        trivial = "sync=server with staleness=0 has the bits of one process"
        return f"sync={layout.sync} applies gradients of old weights, {bound}; {trivial}"
    if layout.sync == "local":
        trivial = (layout.local_steps, layout.outer_lr, layout.outer_momentum) == (1, 1, 0)
        if not (trivial and linear(config)):
            return (
                "sync=local averages what workers learned apart; local_steps=1,outer_lr=1,outer_momentum=0 with "
                "optimizer sgd, clip inf and weight_decay 0 has the bits of one process"
            )
    return read_method(layout.compress).why_it_differs(full_rank(config)) if layout.compress else ""
