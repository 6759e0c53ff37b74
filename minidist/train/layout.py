"""A layout: how one training run is split over ranks. Written ``dp=4,algorithm=ring``, here and in every table."""

from dataclasses import dataclass
from math import inf

from minidist.parallel.context import parts_of
from minidist.train.notation import read_settings, whole_number, write_settings
from minidist.train.rules import SERVED, check, of_layout


@dataclass(frozen=True)
class DataParallelism:
    """Layout: data parallelism and ZeRO."""

    dp: int = 1  # data-parallel ranks
    algorithm: str = "auto"  # for summing gradients: see comm/collectives.py
    sync: str = "overlapped"  # when gradients are summed: see parallel/data.py and parallel/loosened/
    bucket_mb: float = 1.0  # MiB of gradients in one message
    zero: int = 0  # the stage of ZeRO: see parallel/zero.py
    shard: int = 0  # ranks that share one copy under ZeRO; 0 for all of dp x cp
    prefetch: int = 0  # 1: stage 3 gathers the next block while the current one computes
    reshard_after_forward: int = 1  # 0: stage 3 keeps a block's parameters from forward to backward
    grad_sync: str = "micro_batch"  # how often stages 2 and 3 sum gradients; with "step" they stay full until then


@dataclass(frozen=True)
class ModelParallelism:
    """Layout: tensor, sequence, expert, context and pipeline parallelism; recomputation; nodes."""

    tp: int = 1  # tensor-parallel ranks: see parallel/tensor.py
    sp: int = 0  # 1: sequence parallelism among them
    ep: int = 1  # ranks, of dp, that share the experts: see parallel/expert.py
    cp: int = 1  # context-parallel ranks: see parallel/context.py
    cp_kind: str = "ring"  # how queries meet all keys: see parallel/context.py
    pp: int = 1  # pipeline-parallel ranks: see parallel/pipeline.py
    schedule: str = "1f1b"  # see parallel/tools/schedules.py
    virtual: int = 1  # stages per rank; more than one makes the schedule interleaved
    stages: str = ""  # layers of each stage, as in 2+3+3; "" spreads them evenly
    recompute: str = "none"  # which activations backward computes again: see nn/recompute.py
    node_size: int = 0  # ranks that share a node, and its fast links; 0 for all: see comm/placement.py


@dataclass(frozen=True)
class LooserSteps:
    """Layout: looser steps. Only in trivial settings do they agree with one process (rules.py: why_it_differs)."""

    servers: int = 0  # ranks that hold the parameters, in addition to dp, with sync=server or async: parallel/loosened/
    staleness: int = 0  # steps by which a worker may be ahead of the slowest, with sync=server
    arrivals: str = "live"  # order of the workers, with sync=server or async: see parallel/loosened/arrivals.py
    local_steps: int = 8  # steps that a worker takes alone, with sync=local: see parallel/loosened/local.py
    outer_lr: float = 0.7  # of the outer step that follows them
    outer_momentum: float = 0.9
    fragments: int = 1  # parts of the model, which take turns in the outer step
    compress: str = ""  # what is sent in place of a bucket's gradients: see parallel/compression/
    error_feedback: int = 1  # 0: what compression leaves out is lost


@dataclass(frozen=True)
class Layout(LooserSteps, ModelParallelism, DataParallelism):
    """Everything that may differ between two runs whose fingerprints must agree.

    (A dataclass lists the fields of its last base first.)

    Raises:
        ValueError: for an invalid value, naming it and the valid ones (rules.py).
    """

    def __post_init__(self) -> None:
        if self.sync in SERVED and not self.servers:
            object.__setattr__(self, "servers", 1)  # at least one rank has to hold the parameters
        if self.virtual > 1 and self.schedule == Layout.schedule:
            object.__setattr__(self, "schedule", "interleaved")  # the only one that has several stages on a rank
        check(of_layout(self))

    @property
    def world_size(self) -> int:
        return self.dp * self.cp * self.tp * self.pp + self.servers

    @property
    def slack(self) -> float:
        """Steps by which a worker may be ahead of the slowest; infinite with sync=async."""
        return inf if self.sync == "async" else self.staleness

    @property
    def replicas(self) -> int:
        """Number of ranks with the same parameters, before ZeRO shards them, and other samples or other tokens."""
        return self.dp * self.cp

    @property
    def least_chunks(self) -> int:
        """The number of sequence chunks must be a multiple of this."""
        return parts_of(self.cp, self.cp_kind)

    @property
    def stage_count(self) -> int:
        """Number of stages that the model is cut into."""
        return self.pp * self.virtual

    @property
    def layers_of_stages(self) -> list[int]:
        """Number of layers in each stage if they were chosen by hand; otherwise empty."""
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
        """Return the settings that differ from the defaults, as ``parse`` reads them."""
        return write_settings(self, "dp=1")

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Parse a layout written ``key=value,key=value``.

        Raises:
            ValueError: for an unknown key, a key given twice, or a value of the wrong kind.
        """
        return cls(**read_settings(text, cls, "layout"))
