"""What a training run is asked for, and what it leaves behind."""

from dataclasses import asdict, dataclass, field

import numpy as np

import minidist
from minidist import trace
from minidist.backend import versions
from minidist.comm.placement import Links
from minidist.parallel.loosened.server import Push
from minidist.train.checkpoint.peers import PeerCopies
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring.noise_scale import NoiseScale
from minidist.train.resilience.faults import Fault


@dataclass(frozen=True)
class Reporting:
    """What a run measures, reports and brings back."""

    step_digests: bool = False
    progress: bool = False  # report every step to the parent
    live: str | None = None  # report moments; the folder where faults are ordered while it runs: resilience/faults.py
    validate: bool = False
    sample: int = 0  # tokens to generate
    trace: bool = False  # of the last steps
    noise_scale: int = 0  # steps from one measurement to the next; 0 for none: see measuring/noise_scale.py
    measure_peak: bool = False  # in FLOP/s, after the last step: see measuring/evaluate.py
    stop_after: int | None = None  # the step after which to stop and bring the arrays back
    stop_file: str | None = None  # a file: once it exists, the run ends after the next step, which it saves


@dataclass(frozen=True)
class Surviving:
    """What a run saves, goes on from, and does about faults."""

    saving: Saving | None = None  # of checkpoints
    resume: str | None = None  # the folder of a checkpoint to go on from
    init_from: str | None = None  # a folder of Hugging Face's with the first weights; unused once there is a checkpoint
    peer_copies: PeerCopies | None = None  # of snapshots, in the memory of other ranks
    recover: int | None = None  # the step of snapshots in the ranks' memory to go on from
    faults: tuple[Fault, ...] = ()
    rebalance: bool = False  # deal micro-batches out anew where ranks differ in speed: see resilience/
    check_replicas: int = 0  # steps from one check of the numbers to the next; 0 for none: see resilience/checks.py
    check_by: str = "auto"  # one of rules.CHECKS


@dataclass(frozen=True)
class RunOptions(Surviving, Reporting):
    """What a run does, and brings back, beside its training, its losses and its fingerprint."""

    loader: int = 0  # steps whose micro-batches a process beside each rank prepares ahead; 0 for none
    links: Links | None = None  # of the layout's nodes, for algorithm=auto; None for those of Links()


@dataclass
class Learned:
    """What was learned on one rank."""

    losses: list[float]  # of each step, the mean over the global batch; also of those before a checkpoint
    fingerprint: str
    seconds: float  # for all steps taken here
    traffic: trace.Traffic
    step_digests: list[str] = field(
        default_factory=list
    )  # of weights and optimizer state after each step, if asked for
    loss_scale: float = 1.0  # at the end
    skipped_steps: int = 0  # because float16 overflowed
    validation_loss: float | None = None  # nats per token
    bits_per_byte: float | None = None  # of the same text, whatever the tokens
    sample: bytes | None = None
    expert_counts: list[np.ndarray] = field(default_factory=list)  # of each step: see nn/moe/balance.py
    pushes: list[Push] = field(default_factory=list)  # that a parameter server took, one after another
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Counted:
    """What was counted on one rank."""

    memory: dict[str, int] = field(default_factory=dict)  # peak bytes, by kind and in total: see ledger.py
    collectives: list[dict] = field(default_factory=list)  # of one step: see trace.Collectives
    flops: dict[str, int] = field(default_factory=dict)  # of all steps' matrix products, by phase: see flops.py
    step_flops: dict[str, int] = field(default_factory=dict)  # the same without steps that were computed again to check
    peak_flops: float = 0.0  # a second; 0 if nobody asked for it
    noise: list[tuple[int, NoiseScale]] = field(default_factory=list)  # with the steps before which it was measured
    log: list = field(default_factory=list)
    bytes_read: int = 0  # of a checkpoint
    gpu: str = ""  # its model; "" with NumPy
    by_nccl: bool = False  # whether collectives of all ranks go by NCCL
    override_calls: dict[str, int] = field(default_factory=dict)  # how often each override was called


@dataclass
class Timed:
    """How long steps and pauses took on one rank; for each step taken here, without what is between steps."""

    step_seconds: list[float] = field(default_factory=list)
    compute_seconds: list[float] = field(default_factory=list)  # see comm's transports/cores.py
    seconds_without_core: list[float] = field(default_factory=list)  # computing had to wait for a core
    micro_batch_seconds: list[float] = field(default_factory=list)  # forward and backward of one micro-batch
    micro_batch_counts: list[int] = field(default_factory=list)  # micro-batches that this rank ran
    pauses: list[float] = field(default_factory=list)  # seconds for which saves kept it from training
    save_errors: list[str] = field(default_factory=list)  # why checkpoints could not be saved
    copy_pauses: list[float] = field(default_factory=list)  # seconds for which copies to peers did
    restore_seconds: float = 0.0  # for putting a checkpoint, or copies from peers, in place


@dataclass
class RankResult(Timed, Counted, Learned):
    """What one rank brings back from a run."""


OF_EACH_RANK = (  # what ``--json`` writes as it is, a list of all ranks' each
    "memory", "collectives", "flops", "step_seconds", "compute_seconds", "micro_batch_seconds", "micro_batch_counts",
    "pauses", "copy_pauses",
)  # fmt: skip


@dataclass
class Run:
    """One training run, over all its ranks."""

    layout: Layout
    config: TrainConfig
    ranks: list[RankResult]
    seconds: float  # from the call to the last rank's result

    @property
    def fingerprint(self) -> str:
        return self.ranks[0].fingerprint

    @property
    def losses(self) -> list[float]:
        return self.ranks[0].losses

    @property
    def pushes(self) -> list[Push]:
        """That the first parameter server took, one after another; none without servers."""
        return next((rank.pushes for rank in self.ranks if rank.pushes), [])

    @property
    def tokens_per_second(self) -> float:
        steps = range(len(self.losses) - self.steps_here, len(self.losses))
        return self.config.tokens_of(steps) / max(rank.seconds for rank in self.ranks)

    @property
    def steps_here(self) -> int:
        """How many steps were taken, and not by the run that left the checkpoint."""
        return len(self.ranks[0].compute_seconds)

    def as_dict(self) -> dict:
        """What ``--json`` writes."""
        return {
            "layout": str(self.layout),
            "config": asdict(self.config),
            "losses": self.losses,
            "validation_loss": self.ranks[0].validation_loss,
            "bits_per_byte": self.ranks[0].bits_per_byte,
            "fingerprint": self.fingerprint,
            "versions": {"minidist": minidist.__version__} | versions("numpy"),
            "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
            "traffic": [rank.traffic.as_dict() for rank in self.ranks],
            **{name: [getattr(rank, name) for rank in self.ranks] for name in OF_EACH_RANK},
            "resumed_after": len(self.losses) - self.steps_here,
            "save_errors": self.ranks[0].save_errors,
            "loss_scale": self.ranks[0].loss_scale,
            "skipped_steps": self.ranks[0].skipped_steps,
            "noise_scale": [{"step": step} | noise.as_dict() for step, noise in self.ranks[0].noise],
            "pushes": [[asdict(push) for push in rank.pushes] for rank in self.ranks if rank.pushes],
            "expert_counts": [counts.tolist() for counts in self.ranks[0].expert_counts],
        }
