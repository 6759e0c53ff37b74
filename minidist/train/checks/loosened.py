"""What loosens the step: which settings a layout may have, and which of them still have the bits of one process."""

from math import inf, isfinite

from minidist.parallel.compression.hook import read_method
from minidist.parallel.loosened.arrivals import read_arrivals

SERVED = ("server", "async")  # kinds of sync that have a parameter server
LOOSE = (*SERVED, "local", "delayed")
OF_SERVERS = ("servers", "staleness", "arrivals")  # the settings of each
OF_LOCAL = ("local_steps", "outer_lr", "outer_momentum", "fragments")


def check_loosened(layout) -> None:
    """Raises ValueError for settings of a Layout that loosen the step in a way that cannot be."""
    served = layout.sync in SERVED
    _only_with(layout, OF_SERVERS, served, "sync=server or sync=async")
    _only_with(layout, OF_LOCAL, layout.sync == "local", "sync=local")
    _only_with(layout, ("error_feedback",), bool(layout.compress), "compress")
    _only_with(layout, ("bucket_mb",), not served and layout.sync != "delayed", "sync=bucketed or sync=overlapped")
    if served:
        _check_server(layout)
    if layout.sync == "local":
        _check_local(layout)
    if layout.sync == "delayed" and layout.ep > 1:
        raise ValueError(f"sync=delayed sums all gradients over one group, and ep={layout.ep} has two: leave ep 1")
    if layout.compress:
        _check_compression(layout)
    if layout.error_feedback not in (0, 1):
        raise ValueError(f"error_feedback={layout.error_feedback}: choose 0 or 1")


def _only_with(layout, keys: tuple[str, ...], legal: bool, needed: str) -> None:
    for key in keys:
        if not legal and getattr(layout, key) != getattr(type(layout), key):
            raise ValueError(f"{key}={getattr(layout, key)} is for {needed}: set that as well, or leave {key} out")


def _check_server(layout) -> None:
    if layout.servers < 0:
        raise ValueError(f"servers={layout.servers}: at least one rank has to hold the parameters: choose 1 or more")
    if not layout.servers:
        object.__setattr__(layout, "servers", 1)
    if layout.staleness < 0:
        raise ValueError(
            f"staleness={layout.staleness}: a worker may be 0 or more steps ahead of the slowest; sync=async sets no "
            "bound"
        )
    if layout.sync == "async" and layout.staleness:
        raise ValueError(f"staleness={layout.staleness} bounds what sync=async leaves unbounded: choose sync=server")
    for key in ("tp", "cp", "pp", "ep"):
        if getattr(layout, key) > 1:
            raise ValueError(
                f"{key}={getattr(layout, key)} splits the model over ranks, and with sync={layout.sync} each worker "
                f"computes with all of it: leave {key} 1"
            )
    if layout.zero:
        raise ValueError(
            f"zero={layout.zero} shards the optimizer over data-parallel ranks, and with sync={layout.sync} the "
            "servers have it: leave zero 0, and choose more servers"
        )
    if layout.algorithm != "auto":
        raise ValueError(
            f"algorithm={layout.algorithm} sums gradients, and with sync={layout.sync} they go to servers in messages "
            "of their own: leave algorithm auto"
        )
    read_arrivals(layout.arrivals, layout.dp)


def _check_local(layout) -> None:
    if layout.local_steps < 1:
        raise ValueError(f"local_steps={layout.local_steps}: a worker takes at least 1 step alone")
    if not (isfinite(layout.outer_lr) and layout.outer_lr > 0):
        raise ValueError(f"outer_lr={layout.outer_lr:g} must be larger than 0, and finite")
    if not 0 <= layout.outer_momentum < 1:
        raise ValueError(f"outer_momentum={layout.outer_momentum:g} must be from 0 to below 1")
    if not 1 <= layout.fragments <= layout.local_steps:
        raise ValueError(
            f"fragments={layout.fragments} take turns within local_steps={layout.local_steps}: choose from 1 to "
            f"{layout.local_steps}"
        )
    for key, why in (("zero", "shards over data-parallel ranks"), ("ep", "shares experts among data-parallel ranks")):
        if getattr(layout, key) != getattr(type(layout), key):
            raise ValueError(
                f"{key}={getattr(layout, key)} {why}, which then exchange messages in every step; with sync=local they "
                f"are workers that do not: leave {key} {getattr(type(layout), key)}"
            )


def _check_compression(layout) -> None:
    method = read_method(layout.compress)
    if not method.feeds_back and not layout.error_feedback:
        raise ValueError(
            f"error_feedback=0: compress={layout.compress} rounds by chance and is right in the mean, so that nothing "
            "is left to feed back: leave error_feedback out"
        )
    if layout.sync not in ("bucketed", "overlapped"):
        raise ValueError(
            f"compress={layout.compress} compresses buckets of gradients, and sync={layout.sync} has none: choose "
            "sync=bucketed or sync=overlapped"
        )
    if layout.zero:
        raise ValueError(
            f"compress={layout.compress} needs a rank that knows all that it left out of its gradients, and with "
            f"zero={layout.zero} it keeps a shard of them only: leave zero 0"
        )
    if layout.ep > 1:
        raise ValueError(
            f"compress={layout.compress} sums all gradients over one group, and ep={layout.ep} has two: leave ep 1"
        )


def check_loosened_run(config, layout) -> None:
    """Raises ValueError where a run cannot be loosened as its layout says."""
    loosened = loosened_by(layout)
    if not loosened:
        return
    if config.precision == "fp16":
        raise ValueError(
            f"{loosened} with precision fp16: all ranks skip a step together when the sum of its gradients overflows, "
            f"and with {loosened} not all of them have this sum: choose bf16 or fp32"
        )
    if layout.compress:
        read_method(layout.compress).check(full_rank(config))
    if layout.sync in LOOSE and config.rampup_batch_size:
        raise ValueError(f"{loosened} takes batches of one size in all steps: leave rampup_batch_size out")
    if layout.sync in LOOSE and config.experts:
        raise ValueError(f"{loosened} does not balance the load of experts: train a dense model")
    if layout.sync == "local" and layout.fragments > config.layers:
        raise ValueError(
            f"fragments={layout.fragments} share the blocks, and the model has layers={config.layers}: choose at most "
            f"{config.layers}"
        )


def full_rank(config) -> int:
    """The least rank with which PowerSGD leaves every gradient as it is: of no parameter are the factors smaller.

    A dense model's matrices have ``width`` rows or columns. Those of all experts together may have more of both.
    """
    hidden = max(config.expert_hidden or 4 * config.width, config.shared_expert)
    return max(config.width, hidden // config.heads) if config.experts else config.width


def loosened_by(layout) -> str:
    """The setting that loosens a layout's steps, such as ``sync=local``, in a trivial way or not; "" if none does."""
    if layout.sync in LOOSE:
        return f"sync={layout.sync}"
    return f"compress={layout.compress}" if layout.compress else ""


def check_loosened_options(layout, options) -> None:
    """Raises ValueError for RunOptions that a loosened run cannot have."""
    loosened = loosened_by(layout)
    if not loosened:
        return
    refused = (
        ("checkpoints", options.saving or options.resume, "no checkpoint holds"),
        (
            "copies in the memory of peers",
            options.peer_copies is not None or options.recover is not None,
            "no copy holds",
        ),
        ("--check-replicas", options.check_replicas, "no other rank can confirm"),
    )
    for what, asked, why in refused:
        if asked:
            raise ValueError(
                f"{what} with {loosened}: each rank has some state of its own, which {why}: leave one of them out"
            )
    if options.rebalance:
        raise ValueError(
            f"--rebalance with {loosened}: who computes which micro-batch would change the weights, and not only the "
            "speed: leave one of them out"
        )


def linear(config) -> bool:
    """Whether a step changes the weights by -lr times the gradient and nothing else: SGD, no clipping, no decay."""
    return config.optimizer == "sgd" and config.clip == inf and not config.weight_decay


def why_it_differs(config, layout) -> str:
    """Why a run is not meant to have the bits of one process; "" if it is."""
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
    if layout.compress:
        return read_method(layout.compress).why_it_differs(full_rank(config))
    return ""
