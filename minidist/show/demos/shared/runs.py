"""Training runs for demonstrations: their width, warm ranks, a comparison with one process, the fastest of several."""

from collections.abc import Callable
from contextlib import contextmanager, nullcontext

from minidist.analysis.steps import step_length, traced_step
from minidist.comm.runtime.clusters import WarmClusters, preload
from minidist.comm.runtime.launch import Cluster
from minidist.comm.transports.cores import cores
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run
from minidist.verify.comparison import ONE_PROCESS, Difference, agrees, first_difference

RANKS = min(4, max(2, cores()))  # default for pictures of real times
TRIES = 3  # runs of which such a picture shows the fastest


class WarmRanks:
    """Ranks that stay warm: ``with warm(n) as cluster`` gives the same n ranks each time, and they outlive the block.

    Args:
        clusters: function n -> a Cluster of n ranks.
    """

    def __init__(self, clusters: Callable[[int], Cluster]) -> None:
        self.clusters = clusters
        self.references: dict[TrainConfig, Run] = {}

    def __call__(self, size: int) -> nullcontext[Cluster]:
        return nullcontext(self.clusters(size))

    def train(
        self,
        config: TrainConfig,
        layout: Layout,
        rank_function: Callable | None = None,
        trace: bool = False,
        digests: bool = True,
    ) -> Run:
        """Train, and return the run. ``digests`` records a digest of every step, which takes time on many ranks."""
        options = RunOptions(step_digests=digests, trace=trace)
        with self(layout.world_size) as cluster:
            return run(cluster, config, layout, options, rank_function=rank_function)

    def reference(self, config: TrainConfig) -> Run:
        """Return the single-process run of a config; it is trained once."""
        if config not in self.references:
            self.references[config] = self.train(config, ONE_PROCESS)
        return self.references[config]

    def first_difference(self, config: TrainConfig, broken: Run, rank_function: Callable) -> Difference:
        """Return the place where a broken run diverges from the single-process run.

        Raises:
            RuntimeError: if it does not: the bug does no harm.
        """
        reference = self.reference(config)
        place = None if agrees(reference, broken) else first_difference(reference, broken, rank_function, self)
        if place is None:
            raise RuntimeError(f"the bug injected in {broken.layout} changes no bit: choose another size or seed")
        return place

    def harm(self, config: TrainConfig, broken: Run, rank_function: Callable) -> str:
        """Return a sentence that says where a broken run diverges: step, parameter, ulps, and elements that differ.

        Raises:
            RuntimeError: if it does not.
        """
        difference = self.first_difference(config, broken, rank_function)
        return f"Training diverges from the single-process run: it {difference}."

    def prove(self, config: TrainConfig, right: Run) -> str:
        """Check that a run matches the single-process run; return a sentence that says so.

        Raises:
            RuntimeError: if it does not.
        """
        if not agrees(self.reference(config), right):
            raise RuntimeError(f"{right.layout} does not match the single-process run: this is a bug in minidist")
        steps = "one step" if len(right.losses) == 1 else f"{len(right.losses)} steps"
        return f"After {steps} it matches the single-process run bit for bit (SHA-256 {right.fingerprint[:8]})."

    def train_proved(
        self, config: TrainConfig, layout: Layout, rank_function: Callable | None = None, digests: bool = True
    ) -> tuple[Run, str]:
        """Train with tracing; return the run and the sentence of ``prove``."""
        run = self.train(config, layout, rank_function, trace=True, digests=digests)
        return run, self.prove(config, run)

    def train_broken(self, config: TrainConfig, layout: Layout, rank_function: Callable) -> tuple[Run, str]:
        """Train a broken run with tracing; return the run and the sentence of ``harm``."""
        run = self.train(config, layout, rank_function, trace=True)
        return run, self.harm(config, run, rank_function)


@contextmanager
def warm_ranks():
    """Yield ranks that stay warm until the block ends."""
    preload("minidist.train.trainer", "minidist.show.demos")  # modules with the functions that ranks run
    with WarmClusters() as clusters:
        yield WarmRanks(clusters)


def check_harm(right: Run, broken: Run) -> None:
    """Raise RuntimeError if two runs end on the same bits, so that the injected bug does no harm."""
    if right.fingerprint == broken.fingerprint:
        raise RuntimeError(f"the bug injected in {broken.layout} changes no bit: choose another size or seed")


def on_cores() -> str:
    """Return the number of the machine's cores as text, such as "4 cores"."""
    return f"{cores()} core{'s' * (cores() > 1)}"


def fastest(
    warm: WarmRanks, config: TrainConfig, layout: Layout, rank_function: Callable | None = None, digests: bool = True
) -> Run:
    """Train a few times with tracing; return the run with the fastest last step, which the machine disturbed least.

    Ranks that share cores delay each other in every run, so one run is enough for them.
    """
    count = TRIES if layout.world_size <= cores() else 1
    tried = [warm.train(config, layout, rank_function, trace=True, digests=digests) for _ in range(count)]
    return min(tried, key=lambda run: step_length(traced_step([rank.log for rank in run.ranks])))


def check_width(size: int, least: int, most: int) -> None:
    """Raise ValueError for a width that shows nothing or takes too long. Call this before any rank starts."""
    if not least <= size <= most:
        raise ValueError(f"size, the model's width, must be from {least} to {most}, got {size}")


def heads_of(width: int) -> int:
    """Return the number of attention heads for this width: 4, or fewer if 4 does not divide it."""
    return next(heads for heads in (4, 2, 1) if width % heads == 0)
