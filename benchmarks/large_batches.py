"""Measure what a larger batch buys: steps and samples to one loss, with AdamW and LAMB.

    python benchmarks/large_batches.py [--json minidist/plan/batches.json] [--png large_batches.png]

About 5 minutes on two cores: two processes, each with a run of its own, since no loss depends on a layout. Held-out
loss is taken at steps 8 % apart, and steps are interpolated. The runs in the JSON file were on scaling.py's old text.

1. A grid of learning rates for every batch, by factors of two, with one seed. The linear and the square-root rule scale
   its best rate at the base batch, and the rates of the rules are run too.
   A run is given up after 1.5 times the samples of the best so far.
2. The best rates, with further seeds.
3. The gradient noise scale, in the runs of AdamW at the largest batch but one.
4. A growing batch compared with the full one, over the same samples.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import minidist.backend  # noqa: F401, isort: skip (first: it pins the BLAS to one thread before NumPy loads it)
from rich.console import Console
from rich.table import Table

from minidist.nn.data import Corpus, load_corpus
from minidist.nn.gpt import GPT
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.lamb import LAMB
from minidist.nn.optim.optimizers import AdamW, average_gradients
from minidist.plan.batches import BatchExperiment, Noise, Ramped, Run, linear_rate, square_root_rate
from minidist.show.figures.large_batches import draw
from minidist.train.config import TrainConfig
from minidist.train.measuring.evaluate import validation_loss
from minidist.train.measuring.noise_scale import NoiseScale, measure
from minidist.train.parallelize import forward_backward
from minidist.train.share import batch_of

SETTINGS = {"layers": 1, "heads": 2, "width": 32, "context": 32, "micro_batch": 8, "steps": 10**6}
TARGET = 2.7  # nats per byte
BATCHES, BASE = (8, 16, 32, 64, 128), 8
RATES = {"adamw": 4e-3, "lamb": 12e-3}  # the highest of the base's grid
FACTORS = (0.5, 0.25, 1.0)  # times the square-root rule's rate, in a batch's grid; the first is run first
RULES = {"linear": linear_rate, "square root": square_root_rate}
SEEDS = (0, 1, 2)
WARMUP = 10  # steps
HELD_OUT = 64  # samples
FIRST_LOOK = 32  # the step at which their loss is first taken
NOISE_BATCH, NOISE_EVERY = 64, 4  # steps
RAMP, RAMP_BATCH, RAMP_SAMPLES = "16,16,4000", 128, 10_000


@dataclass(frozen=True)
class Job:
    """One run to the target loss."""

    optimizer: str
    batch: int
    rate: float
    seed: int
    patience: float = field(default=inf, compare=False)  # samples after which to give up

    def config(self) -> TrainConfig:
        return TrainConfig(global_batch=self.batch, optimizer=self.optimizer, lr=self.rate, seed=self.seed, **SETTINGS)


def corpus_with_short_validation() -> Corpus:
    """Return the text with few held-out samples, because the loss is measured often."""
    corpus = load_corpus(None, SETTINGS["context"])
    return Corpus(corpus.training, corpus.validation[: HELD_OUT * SETTINGS["context"] + 1])


def training(config: TrainConfig, corpus: Corpus) -> Iterator[GPT]:
    """Yield the model before each step, then take the step. The rate is constant after warm-up."""
    model = GPT(config.model, seed=config.seed)
    parameters = list(model.parameters())
    optimizer = AdamW(parameters, config.lr)
    if config.optimizer == "lamb":
        optimizer = LAMB(parameters, config.lr, {parameter.name: parameter.data.size for parameter in parameters})
    for step in count():
        yield model
        model.zero_grad()
        micro_batches = range(config.batch_at(step) // config.micro_batch)
        for number in micro_batches:
            forward_backward(model, batch_of(corpus, config, step, number))
        average_gradients(parameters, len(micro_batches))
        clip_grad_norm(parameters, config.clip)
        optimizer.lr = config.lr * min(1.0, (step + 1) / WARMUP)
        optimizer.step()


def to_target(job: Job) -> Run:
    """Train until the loss on held-out text is below the target."""
    losses, _ = losses_of(job)
    return Run(job.optimizer, job.batch, job.rate, job.seed, crossing(losses, TARGET))


def noise_of(job: Job) -> list[Noise]:
    """Run a job, and return measurements of its gradient noise scale by quarters."""
    losses, noise = losses_of(job, noise_every=NOISE_EVERY)
    return by_quarter(noise, losses, job.seed)


def losses_of(job: Job, noise_every: int = 0) -> tuple[dict[int, float], dict[int, NoiseScale]]:
    """Return held-out losses until the target, or until patience ends, and measured noise; both by step."""
    config, corpus = job.config(), corpus_with_short_validation()
    losses: dict[int, float] = {}
    noise: dict[int, NoiseScale] = {}
    for step, model in enumerate(training(config, corpus)):
        if not losses or step >= max(FIRST_LOOK, 1.08 * max(losses)):
            losses[step] = validation_loss(model, corpus, config)
            if losses[step] < TARGET or step * job.batch > job.patience:
                break
        if noise_every and step % noise_every == 0:
            batch = partial(batch_of, corpus, config, step)
            noise[step] = measure(model, model.zero_grad, batch, range(config.micro_batches), config.micro_batch)
    return losses, noise


def crossing(losses: dict[int, float], target: float) -> float | None:
    """Return the step at which the loss first falls to the target, interpolated over log steps; None if never."""
    for (before, high), (after, low) in pairwise(losses.items()):
        if low < target:
            share = (high - target) / (high - low)
            return after if before == 0 else before * (after / before) ** share
    return None


def by_quarter(noise: dict[int, NoiseScale], losses: dict[int, float], seed: int) -> list[Noise]:
    """Return the sums of measurements over each quarter of a run, with the loss at its end."""
    measured, found = list(noise.items()), []
    for quarter in range(4):
        part = measured[quarter * len(measured) // 4 : (quarter + 1) * len(measured) // 4]
        total = sum((one for _, one in part[1:]), part[0][1])
        last = part[-1][0]
        loss = next(loss for step, loss in losses.items() if step >= last)
        found.append(Noise(seed, quarter, loss, total.samples))
    return found


def over_samples(ramp: str, rate: float, seed: int) -> Ramped:
    """Train over a fixed number of samples, with or without a ramp."""
    config = TrainConfig(global_batch=RAMP_BATCH, rampup_batch_size=ramp, lr=rate, seed=seed, **SETTINGS)
    corpus, consumed = corpus_with_short_validation(), 0
    for step, model in enumerate(training(config, corpus)):
        if consumed >= RAMP_SAMPLES:
            return Ramped(seed, ramp, step, validation_loss(model, corpus, config))
        consumed += config.batch_at(step)
    raise AssertionError("training does not end")


class Lab:
    """Runs jobs, two at a time, each once, and keeps the results."""

    def __init__(self, pool: ProcessPoolExecutor, console: Console) -> None:
        self.pool, self.console = pool, console
        self.runs: dict[Job, Run] = {}
        self.noise: list[Noise] = []
        self.ramps: list[Ramped] = []

    def run(self, jobs: list[Job]) -> None:
        """Run the jobs that have not run yet, the longest first."""
        new = sorted({job for job in jobs if job not in self.runs}, key=lambda job: (-job.batch, job.rate, job.seed))
        for job, run in zip(new, self.pool.map(to_target, new), strict=True):
            self.runs[job] = run
            came = "given up" if run.steps is None else f"{run.steps:.0f} steps, {run.samples:,.0f} samples"
            self.console.print(f"{job.optimizer}, batch {job.batch}, rate {job.rate:g}, seed {job.seed}: {came}")

    def measure_noise(self, jobs: list[Job]) -> None:
        for found in self.pool.map(noise_of, jobs):
            self.noise += found
            scales = ", ".join(f"{one.samples:.0f}" for one in found)
            self.console.print(f"gradient noise scale by quarters, seed {found[0].seed}: {scales} samples")

    def compare_ramps(self, rate: float) -> None:
        jobs = [(ramp, rate, seed) for seed in SEEDS for ramp in ("", RAMP)]
        for found in self.pool.map(over_samples, *zip(*jobs, strict=True)):
            self.ramps.append(found)
            self.console.print(
                f"{found.ramp or 'full batch'}, seed {found.seed}: {found.steps} steps, {found.loss:.4f}"
            )

    @property
    def found(self) -> BatchExperiment:
        runs = sorted(self.runs.values(), key=lambda run: (run.optimizer, run.batch, run.rate, run.seed))
        noise = sorted(self.noise, key=lambda one: (one.seed, one.quarter))
        return BatchExperiment(
            TARGET, BASE, SETTINGS["context"], RAMP_SAMPLES, RAMP_BATCH, tuple(runs), tuple(noise), tuple(self.ramps)
        )


def grid(factors: tuple[float, ...], found: BatchExperiment | None = None) -> list[Job]:
    """Return a job for every batch with each of some rates."""
    return [
        Job(optimizer, batch, square_root_rate(rate, BASE, batch) * factor, SEEDS[0], patience(found, optimizer, batch))
        for optimizer, rate in RATES.items()
        for batch in BATCHES
        for factor in factors
    ]


def by_rules(found: BatchExperiment) -> list[Job]:
    """Return jobs with the rates of the rules and the grid's seed."""
    return [
        Job(optimizer, batch, found.rate_by(rule, optimizer, batch), SEEDS[0], patience(found, optimizer, batch))
        for optimizer in found.optimizers
        for batch in BATCHES
        for rule in RULES.values()
    ]


def patience(found: BatchExperiment | None, optimizer: str, batch: int) -> float:
    """Return the samples after which to give up a run: 1.5 times those of the best rate so far."""
    if found is None or not found.reached(optimizer, batch):
        return 15_000 + 400 * batch
    return 1.5 * batch * found.first_steps(optimizer, batch, found.best_rate(optimizer, batch))


def with_seeds(found: BatchExperiment) -> list[Job]:
    """Return jobs with the best rate of every batch and every seed."""
    return [
        Job(optimizer, batch, found.best_rate(optimizer, batch), seed)
        for optimizer in found.optimizers
        for batch in BATCHES
        for seed in SEEDS
    ]


def batches_table(found: BatchExperiment) -> Table:
    """Tabulate steps and samples at the best rate, over the seeds; then, with one seed, steps by the rules and best."""
    table = Table(title=f"to a held-out loss of {found.target:g}: mean of {len(found.seeds)} seeds, and one seed")
    headings = ("optimizer", "batch", "best rate", "steps", "samples", "steps fitted", "one seed", *RULES)
    for heading in headings:
        table.add_column(heading, justify="right")
    for optimizer in found.optimizers:
        fitted = found.tradeoff(optimizer)
        for batch, steps in found.best_steps(optimizer).items():
            best = found.best_rate(optimizer, batch)
            cells = [f"{best:.2g}", f"{steps:.0f}", f"{batch * steps:,.0f}", f"{fitted.steps(batch):.0f}"]
            cells.append(steps_in_words(found.first_steps(optimizer, batch, best)))
            for rule in RULES.values():
                rate = found.rate_by(rule, optimizer, batch)
                cells.append(f"{steps_in_words(found.first_steps(optimizer, batch, rate))} ({rate:.2g})")
            table.add_row(optimizer, str(batch), *cells)
        table.add_section()
    return table


def steps_in_words(steps: float | None) -> str:
    return "given up" if steps is None else f"{steps:.0f}"


def critical_table(found: BatchExperiment) -> Table:
    """Tabulate the fits, of the seeds' means and of each seed by itself, next to the noise scale by quarters."""
    table = Table(title="in samples of a sequence each; in brackets the range over seeds")
    for heading in ("what", "value"):
        table.add_column(heading, justify="right")
    for optimizer in found.optimizers:
        fitted, each = found.tradeoff(optimizer), found.tradeoffs(optimizer)
        for name in ("least_steps", "least_samples", "critical_batch"):
            values = [getattr(one, name) for one in each]
            table.add_row(
                f"{optimizer}: {name}", f"{getattr(fitted, name):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
            )
    for quarter in range(4):
        values = found.noise_scale(quarter)
        table.add_row(
            f"noise scale, quarter {quarter + 1}", f"{fmean(values):.0f} ({min(values):.0f} to {max(values):.0f})"
        )
    for ramp in ("", RAMP):
        runs = found.ramped(ramp)
        losses = [run.loss for run in runs]
        name = f"ramp {ramp}" if ramp else f"batch {found.ramp_batch}"
        words = f"{runs[0].steps} steps: loss {fmean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"
        table.add_row(name, words)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the runs to this file")
    parser.add_argument("--png", metavar="PATH", help="draw them")
    options = parser.parse_args()
    console = Console(width=120, highlight=False)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        lab = Lab(pool, console)
        lab.run(grid(FACTORS[:1]))
        lab.run(grid(FACTORS[1:], lab.found))
        lab.run(by_rules(lab.found))
        lab.run(with_seeds(lab.found))
        rate = lab.found.best_rate("adamw", NOISE_BATCH)
        lab.measure_noise([Job("adamw", NOISE_BATCH, rate, seed) for seed in SEEDS])
        lab.compare_ramps(lab.found.best_rate("adamw", RAMP_BATCH))
    found = lab.found
    if options.json:
        found.write(options.json)
    console.print(batches_table(found))
    console.print(critical_table(found))
    if options.png:
        draw(found).savefig(options.png, dpi=110)


if __name__ == "__main__":
    main()
