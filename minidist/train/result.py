"""The options of a training run, and its results."""

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
    """Options: what a run measures, reports and returns."""

    step_digests: bool = False
    progress: bool = False  # report every step to the parent
    live: str | None = None  # report moments; the folder in which to order faults while it runs: resilience/faults.py
    validate: bool = False
    sample: int = 0  # tokens to generate
    trace: bool = False  # record the last steps
    noise_scale: int = 0  # steps from one measurement to the next; 0 for none: see measuring/noise_scale.py
    measure_peak: bool = False  # in FLOP/s, after the last step: see measuring/evaluate.py
    stop_after: int | None = None  # the step after which to stop and return the arrays
    stop_file: str | None = None  # a file: once it exists, the run ends after the next step, which it saves


@dataclass(frozen=True)
class Surviving:
    """Options: what a run saves, where it resumes, and the faults that strike it."""

    saving: Saving | None = None  # how to save checkpoints
    resume: str | None = None  # the folder of a checkpoint to resume from
    init_from: str | None = None  # a folder of Hugging Face's with the initial weights; unused if the run resumes
    peer_copies: PeerCopies | None = None  # how to copy snapshots into the memory of other ranks
    recover: int | None = None  # the step of snapshots in the ranks' memory to resume from
    faults: tuple[Fault, ...] = ()
    rebalance: bool = False  # deal micro-batches out anew where ranks differ in speed: see resilience/
    check_replicas: int = 0  # steps from one check of the numbers to the next; 0 for none: see resilience/checks.py
    check_by: str = "auto"  # one of rules.CHECKS


@dataclass(frozen=True)
class RunOptions(Surviving, Reporting):
    """Options of a run: what it does and returns besides training, the losses and the fingerprint."""

    loader: int = 0  # steps whose micro-batches a process next to each rank prepares ahead; 0 for none
    links: Links | None = None  # of the layout's nodes, for algorithm=auto; None for Links()


@dataclass
class Learned:
    """Results of training on one rank."""

    losses: list[float]  # mean over the global batch in each step, also in those before a checkpoint
    fingerprint: str
    seconds: float  # for all steps taken here
    traffic: trace.Traffic
    step_digests: list[str] = field(default_factory=list)  # weights and optimizer state after each step, if asked for
    loss_scale: float = 1.0  # at the end
    skipped_steps: int = 0  # because float16 overflowed
    validation_loss: float | None = None  # nats per token
    bits_per_byte: float | None = None  # the same loss, in bits per byte of the text
    sample: bytes | None = None
    expert_counts: list[np.ndarray] = field(default_factory=list)  # of each step: see nn/moe/balance.py
    pushes: list[Push] = field(default_factory=list)  # gradients that a parameter server applied, in order
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Counted:
    """Memory, traffic and FLOPs counted on one rank."""

    memory: dict[str, int] = field(default_factory=dict)  # peak bytes, by kind and in total: see ledger.py
    collectives: list[dict] = field(default_factory=list)  # of the last step: see trace.Collectives
    flops: dict[str, int] = field(default_factory=dict)  # of all steps' matrix products, by phase: see flops.py
    step_flops: dict[str, int] = field(
        default_factory=dict
    )  # the same without computation repeated to check or measure
    peak_flops: float = 0.0  # FLOP/s; 0 if not measured
    noise: list[tuple[int, NoiseScale]] = field(default_factory=list)  # with the step before which each was measured
    log: list = field(default_factory=list)
    bytes_read: int = 0  # of a checkpoint
    gpu: str = ""  # its model; "" with NumPy
    by_nccl: bool = False  # whether collectives of all ranks use NCCL
    override_calls: dict[str, int] = field(default_factory=dict)  # how often each override was called


@dataclass
class Timed:
    """Durations of the steps that one rank took here, without the time between them, and of pauses."""

    step_seconds: list[float] = field(default_factory=list)
    compute_seconds: list[float] = field(default_factory=list)  # see comm's transports/cores.py
    seconds_without_core: list[float] = field(default_factory=list)  # that computing waited for a core
    micro_batch_seconds: list[float] = field(default_factory=list)  # forward and backward of one micro-batch
    micro_batch_counts: list[int] = field(default_factory=list)  # micro-batches that this rank ran
    pauses: list[float] = field(default_factory=list)  # seconds that each save kept it from training
    save_errors: list[str] = field(default_factory=list)  # why checkpoints could not be saved
    copy_pauses: list[float] = field(default_factory=list)  # seconds that each copy to peers kept it from training
    restore_seconds: float = 0.0  # to restore a checkpoint, or copies from peers


@dataclass
class RankResult(Timed, Counted, Learned):
    """Results of a run on one rank."""


OF_EACH_RANK = (  # fields that ``--json`` writes unchanged, each as a list over the ranks
    "memory", "collectives", "flops", "step_seconds", "compute_seconds", "micro_batch_seconds", "micro_batch_counts",
    "pauses", "copy_pauses",
)  # fmt: skip


@dataclass
class Run:
    """Results of a training run, over all its ranks."""

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
        """Gradients that the first parameter server applied, in order; none without servers."""
        return next((rank.pushes for rank in self.ranks if rank.pushes), [])

    @property
    def tokens_per_second(self) -> float:
        steps = range(len(self.losses) - self.steps_here, len(self.losses))
        return self.config.tokens_of(steps) / max(rank.seconds for rank in self.ranks)

    @property
    def steps_here(self) -> int:
        """Number of steps that this run took, without those before its checkpoint."""
        return len(self.ranks[0].compute_seconds)

    def as_dict(self) -> dict:
        """Return the content that ``--json`` writes."""
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
