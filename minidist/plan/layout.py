"""Layout of a planned run on any number of GPUs, written as in ``dp=64,tp=8,pp=16,virtual=8,zero=1``.

The keys are those of the layouts that run here (train/layout.py), without the limits of one laptop. A real system adds
two: the number of samples in a micro-batch, and the attention kernel.
"""

from dataclasses import dataclass, replace
from math import prod

from minidist.nn.config import divisors
from minidist.parallel.context import parts_of
from minidist.plan.cluster.efficiency import ATTENTION
from minidist.plan.cluster.toml_tables import choose
from minidist.plan.models import ModelShape
from minidist.train.notation import read_settings, write_settings
from minidist.train.rules import check, of_choices, of_shape

AXES = ("tp", "cp", "dp", "pp")  # from the ranks that are next to each other to those farthest apart


@dataclass(frozen=True)
class PlannedLayout:
    """Layout of a planned run.

    Attributes:
        zero: stage of ZeRO; it shards over the dp x cp ranks, or over ``shard`` of them.
        reshard_after_forward: 0: stage 3 keeps a layer's parameters from forward to backward.
        grad_sync: "micro_batch": stages 2 and 3 sum gradients in each one; "step": once, and keep them unsharded.
        sp: 1: sequence parallelism among the tensor-parallel ranks.
        ep: number of dp ranks that share the experts.
        cp_kind: "zigzag", "ring", "all-gather" or "ulysses".
        schedule: pipeline schedule. virtual: stages on each rank; more than one makes it interleaved.
        recompute: "none", "selective" (only attention's scores and their softmax) or "full" (all but a layer's input).
        micro_batch: samples in a micro-batch. attention: "standard", "flash", or "" for the chip's (efficiency.toml).

    Raises:
        ValueError: for an invalid value.
    """

    dp: int = 1
    tp: int = 1
    sp: int = 0
    cp: int = 1
    cp_kind: str = "zigzag"
    pp: int = 1
    schedule: str = "1f1b"
    virtual: int = 1
    ep: int = 1
    zero: int = 0
    shard: int = 0
    reshard_after_forward: int = 1
    grad_sync: str = "micro_batch"
    recompute: str = "none"
    micro_batch: int = 1
    attention: str = ""

    def __post_init__(self) -> None:
        for key in ("dp", "tp", "cp", "pp", "ep", "virtual", "micro_batch"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}={getattr(self, key)}: must be at least 1")
        if self.virtual > 1 and self.schedule == "1f1b":
            object.__setattr__(self, "schedule", "interleaved")  # the only schedule with several stages on a rank
        if self.attention not in ("", *ATTENTION):
            raise ValueError(f"attention={self.attention}: {choose(self.attention, ATTENTION)}")
        check(of_choices(self))
        check(of_shape(self))

    @property
    def replicas(self) -> int:
        """Number of ranks with the same parameters, before ZeRO shards them."""
        return self.dp * self.cp

    @property
    def shards(self) -> int:
        """Number of ranks over which ZeRO shards."""
        return self.shard or self.replicas

    @property
    def world_size(self) -> int:
        return self.replicas * self.tp * self.pp

    @property
    def stage_count(self) -> int:
        return self.pp * self.virtual

    def micro_batches(self, batch: int) -> int:
        """Number of micro-batches of one rank in a step of ``batch`` sequences."""
        return batch // (self.dp * self.micro_batch)

    def __str__(self) -> str:
        return write_settings(self, "dp=1")

    @classmethod
    def parse(cls, text: str, world_size: int) -> "PlannedLayout":
        """Parse a layout written ``key=value,key=value``; without ``dp``, it fills the cluster by data parallelism.

        Raises:
            ValueError: for an invalid value, or a layout that does not fill ``world_size`` GPUs; names the nearest.
        """
        settings = read_settings(text, cls, "layout")
        others = prod(max(1, settings.get(axis, 1)) for axis in ("tp", "cp", "pp"))
        if "dp" not in settings and world_size % others == 0:
            settings["dp"] = world_size // others
        layout = cls(**settings)
        if layout.world_size != world_size:
            raise ValueError(
                f"layout {text}: dp x cp x tp x pp = {layout.dp} x {layout.cp} x {layout.tp} x {layout.pp} = "
                f"{layout.world_size:,} ranks, but the cluster has {world_size:,} GPUs: " + _fitting(layout, world_size)
            )
        return layout

    def check(self, model: ModelShape, batch: int) -> None:
        """Raise ValueError if this model, at ``batch`` sequences a step, cannot be split this way; see ``problem``."""
        if reason := self.problem(model, batch):
            raise ValueError(f"layout {self}: {reason}")

    def problem(self, model: ModelShape, batch: int) -> str:
        """Return why this model, at ``batch`` sequences a step, cannot be split this way, and what to choose; or ""."""
        if model.heads % self.tp:
            return f"tp={self.tp} does not divide the {model.heads} heads: {nearest(self.tp, divisors(model.heads))}"
        if model.groups % self.tp and self.tp % model.groups:
            fitting = [n for n in divisors(model.heads) if model.groups % n == 0 or n % model.groups == 0]
            near = nearest(self.tp, fitting)
            return f"tp={self.tp} neither divides the {model.groups} key-value heads nor is a multiple of them: {near}"
        if self.sp and model.context // self.cp % self.tp:
            return f"sp=1 with tp={self.tp} does not divide the {model.context // self.cp} tokens of a rank's sequence"
        parts = parts_of(self.cp, self.cp_kind)
        if self.cp > 1 and model.context % parts:
            fitting = [n for n in divisors(model.context) if n == 1 or model.context % parts_of(n, self.cp_kind) == 0]
            near = nearest(self.cp, fitting)
            return f"cp={self.cp} by {self.cp_kind} cannot cut {model.context} tokens into {parts} equal parts: {near}"
        if self.cp > 1 and self.cp_kind == "ulysses" and model.heads // self.tp % self.cp:
            return f"cp={self.cp} by ulysses does not divide the {model.heads // self.tp} heads of a rank"
        if self.ep > 1 and model.moe is None:
            return f"ep={self.ep} shares experts, but {model.name} has none: set ep=1"
        if model.moe is not None and (experts := model.moe.experts) % self.ep:
            near = nearest(self.ep, [n for n in divisors(experts) if self.dp % n == 0])
            return f"ep={self.ep} does not divide the {experts} experts: {near}"
        if self.stage_count > model.layers + 2:
            most = (model.layers + 2) // self.virtual
            return (
                f"pp={self.pp} x virtual={self.virtual} = {self.stage_count} stages, but {model.layers} layers with "
                f"embedding and head make at most {model.layers + 2}: choose pp up to {most}"
            )
        if batch % (self.dp * self.micro_batch):
            fitting = [n for n in divisors(batch) if batch % (n * self.micro_batch) == 0]
            near = nearest(self.dp, fitting) if fitting else "choose a smaller micro_batch"
            ranks = f"dp={self.dp} x micro_batch={self.micro_batch}"
            return f"{ranks} does not divide the batch of {batch} sequences: {near}"
        if self.virtual > 1 and self.micro_batches(batch) % self.pp:
            return (
                f"the interleaved schedule takes micro-batches in rounds of pp={self.pp}, but a rank has "
                f"{self.micro_batches(batch)}: set virtual=1, or another dp or micro_batch"
            )
        return ""


def nearest(value: int, fitting: list[int]) -> str:
    """Return the nearest fitting numbers below and above a value, in words."""
    below = [n for n in fitting if n <= value][-1:]
    above = [n for n in fitting if n > value][:1]
    return (
        "the nearest legal "
        + ("values are " if len(below + above) > 1 else "value is ")
        + " and ".join(map(str, below + above))
    )


def _fitting(layout: PlannedLayout, world_size: int) -> str:
    """Return, in words, how to fill the cluster: with another dp, or else with another size of another axis."""
    rest = layout.world_size // layout.dp
    if world_size % rest == 0:
        return f"choose dp={world_size // rest}"
    ways = []
    for axis in ("pp", "cp", "tp"):
        others = rest // getattr(layout, axis)
        fitting = [n for n in divisors(world_size) if world_size % (n * others) == 0]
        if fitting:
            best = min(fitting, key=lambda n: abs(n - getattr(layout, axis)))
            ways.append(f"{axis}={best},dp={world_size // (others * best)}")
    return "choose " + " or ".join(ways) if ways else "choose axes whose product is the number of GPUs"


def stages_of(layers: int, stages: int) -> list[int]:
    """Return the number of layers of each stage: equal, or if the stages do not divide the layers, fewer at both ends.

    The first stage has the embedding too and the last one the head, so Llama 3 takes one layer away from each (Llama
    team, 2024, section 3.3.2).
    """
    each, more = divmod(layers, stages)
    counts = [each] * stages
    middle_first = sorted(range(stages), key=lambda stage: (stage in (0, stages - 1), stage))
    for stage in middle_first[:more]:
        counts[stage] += 1
    return counts


def with_attention(layout: PlannedLayout, attention: str) -> PlannedLayout:
    """Return the layout, with this attention kernel if it names none."""
    return layout if layout.attention else replace(layout, attention=attention)
