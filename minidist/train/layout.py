"""A layout: how one training run is split over ranks. Written ``dp=4,algorithm=ring``, here and in every table."""

from dataclasses import dataclass
from math import inf

from minidist.comm.collectives import ALL_GATHER, ALL_REDUCE
from minidist.comm.transports.shared_memory.segment import MAX_RANKS
from minidist.nn.recompute import MODES
from minidist.parallel.context import KINDS, parts_of
from minidist.parallel.data import SYNCS as TIGHT_SYNCS
from minidist.parallel.tools.schedules import SCHEDULES
from minidist.train.checks.loosened import check_loosened
from minidist.train.checks.nodes import check_nodes
from minidist.train.notation import read_settings, whole_number, write_settings

SYNCS = (*TIGHT_SYNCS, "delayed", "server", "async", "local")  # the last four loosen the step
GRAD_SYNCS = ("micro_batch", "step")
ZERO_ALGORITHMS = tuple(ALL_GATHER)  # reduce-scatter has the same


@dataclass(frozen=True)
class Layout:
    """Everything that may differ between two runs whose fingerprints must agree.

    The last fields loosen the ranks' steps from one another. Only in their trivial settings do such runs agree with one
    process (checks/loosened.py: ``why_it_differs``).

    Raises:
        ValueError: for a value that no run can have, naming it and what it may be.
    """

    dp: int = 1  # data-parallel ranks
    algorithm: str = "auto"  # for summing gradients: see comm/collectives.py
    sync: str = "overlapped"  # when gradients are summed: see parallel/data.py
    bucket_mb: float = 1.0  # MiB of gradients in one message
    zero: int = 0  # the stage of ZeRO: see parallel/zero.py
    shard: int = 0  # ranks that share one copy under ZeRO; 0 for all of dp
    prefetch: int = 0  # 1: stage 3 gathers the next block while the current one computes
    reshard_after_forward: int = 1  # 0: stage 3 keeps a block's parameters from forward to backward
    grad_sync: str = "micro_batch"  # how often stages 2 and 3 sum gradients; between, they are sharded, or full
    tp: int = 1  # tensor-parallel ranks: see parallel/tensor.py
    sp: int = 0  # 1: sequence parallelism among them
    ep: int = 1  # ranks, of dp, that share the experts: see parallel/expert.py
    cp: int = 1  # context-parallel ranks: see parallel/context.py
    cp_kind: str = "ring"  # how attention brings them together
    pp: int = 1  # pipeline-parallel ranks: see parallel/pipeline.py
    schedule: str = "1f1b"  # see parallel/tools/schedules.py
    virtual: int = 1  # stages per rank; more than one makes the schedule interleaved
    stages: str = ""  # layers of each stage, as in 2+3+3; "" spreads them evenly
    recompute: str = "none"  # which activations backward computes again: see nn/recompute.py
    node_size: int = 0  # ranks that share a node, and its fast links; 0 for all: see comm/nodes/placement.py
    servers: int = 0  # ranks beside dp that hold the parameters, with sync=server or async: see parallel/loosened/
    staleness: int = 0  # steps by which a worker may be ahead of the slowest, with sync=server
    arrivals: str = "live"  # who comes next, with sync=server or async: see parallel/loosened/arrivals.py
    local_steps: int = 8  # that a worker takes alone, with sync=local: see parallel/loosened/local.py
    outer_lr: float = 0.7  # of the step that follows them
    outer_momentum: float = 0.9
    fragments: int = 1  # of the model, which take turns in that step
    compress: str = ""  # what is sent in place of a bucket's gradients: see parallel/compression/
    error_feedback: int = 1  # 0: what compression leaves out is lost

    def __post_init__(self) -> None:
        for key, kind in (("dp", "data"), ("tp", "tensor"), ("cp", "context"), ("pp", "pipeline")):
            if not 1 <= getattr(self, key) <= MAX_RANKS:
                raise ValueError(
                    f"{key}={getattr(self, key)}: the number of {kind}-parallel ranks must be from 1 to {MAX_RANKS}"
                )
        _choice("algorithm", self.algorithm, ("auto", *ALL_REDUCE))
        _choice("sync", self.sync, SYNCS)
        if not self.bucket_mb > 0:
            raise ValueError(f"bucket_mb={self.bucket_mb:g}: a bucket must be larger than 0 MiB")
        if self.sp not in (0, 1):
            raise ValueError(f"sp={self.sp}: choose 0 or 1")
        if self.sp and self.tp == 1:
            raise ValueError(
                "sp=1 splits the sequence over tensor-parallel ranks, and tp=1 has none: set tp to 2 or more"
            )
        _choice("cp_kind", self.cp_kind, KINDS)
        if self.cp == 1 and self.cp_kind != Layout.cp_kind:
            raise ValueError(
                f"cp_kind={self.cp_kind} is for context parallelism, and cp=1 is none: set cp to 2 or more"
            )
        _choice("recompute", self.recompute, MODES)
        check_loosened(self)
        if self.world_size > MAX_RANKS:
            raise ValueError(f"{self} makes {self.world_size} ranks, and there may be {MAX_RANKS} at most")
        self._check_experts()
        self._check_zero()
        self._check_pipeline()
        check_nodes(self)

    def _check_experts(self) -> None:
        if not 1 <= self.ep <= MAX_RANKS:
            raise ValueError(f"ep={self.ep}: the number of expert-parallel ranks must be from 1 to {MAX_RANKS}")
        if self.dp % self.ep:
            fitting = [n for n in range(1, self.dp + 1) if self.dp % n == 0]
            raise ValueError(
                f"ep={self.ep} data-parallel ranks share the experts, and do not divide dp={self.dp}: choose ep from "
                f"{', '.join(map(str, fitting))}, or dp from {self.ep}, {2 * self.ep}, {3 * self.ep}, ..."
            )
        if self.ep > 1 and self.shard:
            raise ValueError(
                f"shard={self.shard} is one number of ranks, and with ep={self.ep} experts have fewer replicas than "
                "the rest of the model: leave shard 0, which shards each parameter over all of its replicas"
            )

    def _check_zero(self) -> None:
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero={self.zero}: ZeRO has the stages 1, 2 and 3, and 0 is plain data parallelism")
        for key in ("prefetch", "reshard_after_forward"):
            if getattr(self, key) not in (0, 1):
                raise ValueError(f"{key}={getattr(self, key)}: choose 0 or 1")
        if self.zero and self.replicas == 1:
            raise ValueError(
                f"zero={self.zero} shards over data-parallel and context-parallel ranks, and dp=1 has none: "
                "set dp or cp to 2 or more"
            )
        if self.shard and not self.zero:
            raise ValueError(f"shard={self.shard} is for ZeRO: set zero to 1, 2 or 3 as well")
        if self.shard < 0 or (self.shard and self.replicas % self.shard):
            ranks = f"dp={self.dp}" if self.cp == 1 else f"dp x cp = {self.replicas}"
            raise ValueError(f"shard={self.shard} must divide {ranks}: each group of so many ranks holds one copy")
        if self.zero != 3 and (self.prefetch or not self.reshard_after_forward):
            raise ValueError("prefetch and reshard_after_forward are about gathered parameters: they need zero=3")
        _choice("grad_sync", self.grad_sync, GRAD_SYNCS)
        if self.zero < 2 and self.grad_sync != Layout.grad_sync:
            raise ValueError(f"grad_sync={self.grad_sync} is about sharded gradients: it needs zero=2 or zero=3")
        if self.zero and (self.sync, self.bucket_mb) != (Layout.sync, Layout.bucket_mb):
            raise ValueError(f"zero={self.zero} sums gradients block by block: leave sync and bucket_mb as they are")
        if self.zero and self.algorithm not in ("auto", *ZERO_ALGORITHMS):
            *others, last = ("auto", *ZERO_ALGORITHMS)
            raise ValueError(
                f"algorithm={self.algorithm} is an all-reduce, which zero={self.zero} does not make: choose "
                f"{', '.join(others)} or {last}, of its reduce-scatters and all-gathers"
            )

    def _check_pipeline(self) -> None:
        _choice("schedule", self.schedule, tuple(SCHEDULES))
        if self.virtual < 1:
            raise ValueError(f"virtual={self.virtual}: a rank has at least one stage")
        if self.virtual > 1 and self.schedule == Layout.schedule:
            object.__setattr__(self, "schedule", "interleaved")  # the only one that has several stages on a rank
        if self.virtual > 1 and self.schedule != "interleaved":
            raise ValueError(f"virtual={self.virtual} needs schedule=interleaved, not {self.schedule}")
        if self.pp == 1:
            for key in ("schedule", "virtual", "stages"):
                if getattr(self, key) != getattr(Layout, key):
                    raise ValueError(
                        f"{key}={getattr(self, key)} is for a pipeline, and pp=1 is none: set pp to 2 or more"
                    )
            return
        if self.prefetch and self.virtual > 1:
            raise ValueError("prefetch=1 cannot know which of several stages a rank runs next: leave it 0 with virtual")
        if self.stages:
            counts = self.layers_of_stages
            if len(counts) != self.stage_count:
                raise ValueError(
                    f"stages={self.stages} has {len(counts)} stages, but pp={self.pp} x virtual={self.virtual} makes "
                    f"{self.stage_count}"
                )

    @property
    def world_size(self) -> int:
        return self.dp * self.cp * self.tp * self.pp + self.servers

    @property
    def slack(self) -> float:
        """The steps by which a worker may be ahead of the slowest: infinite with sync=async."""
        return inf if self.sync == "async" else self.staleness

    @property
    def replicas(self) -> int:
        """The ranks with the same parameters, but for ZeRO: they have other samples, or other tokens of the same."""
        return self.dp * self.cp

    @property
    def least_chunks(self) -> int:
        """Number of which the sequence chunks must be a multiple."""
        return parts_of(self.cp, self.cp_kind)

    @property
    def stage_count(self) -> int:
        """How many stages the model is cut into."""
        return self.pp * self.virtual

    @property
    def layers_of_stages(self) -> list[int]:
        """How many layers each stage has, where that was chosen by hand; otherwise empty."""
        try:
            counts = [whole_number(count) for count in self.stages.split("+")] if self.stages else []
        except ValueError:
            counts = [0]
        if not all(count > 0 for count in counts):
            raise ValueError(
                f"stages={self.stages}: write how many layers each stage has, at least 1, as in stages=2+3+3"
            )
        return counts

    def __str__(self) -> str:
        """The settings that differ from the defaults, as ``parse`` reads them."""
        return write_settings(self, "dp=1")

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The layout written ``key=value,key=value``.

        Raises:
            ValueError: for an unknown key, a key given twice, or a value of the wrong kind.
        """
        return cls(**read_settings(text, cls, "layout"))


def _choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{key}={value}: choose from {', '.join(choices)}")
