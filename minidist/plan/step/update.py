"""What happens to gradients and parameters in a step: sums over the replicas, the optimizer, parameters back.

    plain      one all-reduce of the gradients
    ZeRO 1     a reduce-scatter of the gradients and an all-gather of the parameters
    ZeRO 2     the same; the reduce-scatter in every micro-batch, unless gradients are summed once a step
    ZeRO 3     parameters are gathered for each micro-batch: for forward, and again for backward if they were resharded

Gradients hide behind the backward of a micro-batch, parameters behind its forward. Of what is sent once a step, the
last layer's part always shows.
"""

from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import Held, Numerics
from minidist.plan.step.collectives import Group, Network
from minidist.plan.step.kernels import Machine
from minidist.plan.step.sent import Sent


def gradients_and_parameters(
    layout: PlannedLayout,
    numerics: Numerics,
    network: Network,
    replicas: Group,
    held: Held,
    micro_batches: int,
    forward: float,
    backward: float,
    layers: int,
) -> list[Sent]:
    """What data parallelism and ZeRO send in a step.

    Args:
        replicas: the ranks that ZeRO shards over, or that hold the same parameters. held: parameters of the rank.
        forward, backward: seconds of one micro-batch, to hide behind.
        layers: of the rank: of what is sent once a step, one part in so many cannot hide.
    """
    groups = [(held.dense, replicas)]
    if held.experts:
        size = max(1, replicas.size // layout.ep)
        groups.append((held.experts, network.group(size, layout.tp * layout.cp * layout.ep)))
    gradients = sum(network.reduce_scatter(group, numerics.gradient * count) for count, group in groups)
    parameters = sum(network.all_gather(group, numerics.parameter * count) for count, group in groups)

    def sent(collective: str, each: float, calls: int, seconds: float, hidden: float, rounds: int = 1) -> Sent:
        exposed = calls * max(0.0, seconds - hidden, seconds / layers if calls == 1 else 0.0)
        nbytes = sum(rounds * calls * each * count * (group.size - 1) / group.size for count, group in groups)
        return Sent("dp", collective, replicas, nbytes, calls * seconds, exposed)

    if layout.zero == 0:
        found = [sent("all_reduce", numerics.gradient, 1, 2 * gradients, backward, rounds=2)]
    else:
        sums, gathers = calls_of(layout, micro_batches)
        found = [
            sent("reduce_scatter", numerics.gradient, sums, gradients, backward),
            sent("all_gather", numerics.parameter, gathers, parameters, forward),
        ]
    return across_copies(layout, numerics, network, held) + [one for one in found if one.nbytes]


def calls_of(layout: PlannedLayout, micro_batches: int) -> tuple[int, int]:
    """How often ZeRO sums gradients in a step, and how often it gathers parameters."""
    sums = micro_batches if layout.zero >= 2 and layout.grad_sync == "micro_batch" else 1
    if layout.zero < 3:
        return sums, 1
    if layout.reshard_after_forward:
        return sums, 2 * micro_batches
    return sums, micro_batches if layout.pp == 1 else 1  # each backward reshards; in a pipeline the end of the step


def across_copies(layout: PlannedLayout, numerics: Numerics, network: Network, held: Held) -> list[Sent]:
    """Copies of a sharded model sum their shards' gradients (hybrid sharding); nothing hides it."""
    copies = layout.replicas // layout.shards
    if not layout.zero or copies == 1:
        return []
    group = network.group(copies, layout.tp * layout.shards)
    shard = numerics.gradient * held.full / layout.shards
    seconds = network.all_reduce(group, shard)
    return [Sent("dp", "all_reduce", group, 2 * (copies - 1) / copies * shard, seconds, seconds)]


def optimizer_seconds(layout: PlannedLayout, numerics: Numerics, machine: Machine, held: Held) -> float:
    """The norm reads gradients, the update reads and writes all state and writes parameters: memory alone."""
    count = held.sharded(layout) if layout.zero else held.full
    return machine.memory(count * (2 * numerics.gradient + 2 * numerics.optimizer + numerics.parameter))
