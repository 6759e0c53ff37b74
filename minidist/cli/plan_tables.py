"""The output of ``minidist plan``: tables, and large numbers as people write them: 16M tokens, 15T tokens."""

from dataclasses import asdict, replace
from math import ceil, isfinite

from rich.console import Group
from rich.table import Table

from minidist.cli.output import bar, titled
from minidist.plan.memory import Memory, Numerics, memory_of
from minidist.plan.planned_run import Campaign, PlannedRun
from minidist.plan.published_runs import FAMILIES, Comparison, Figure, family_of, figures_of, spread_of, summarize
from minidist.plan.search import Found, why_slower
from minidist.plan.time import StepCosts
from minidist.plan.units import DAY, in_count, in_time
from minidist.train.notation import number

GB = 1e9
SEQUENCES = (0.25, 0.5, 1, 2, 4, 8)  # lengths whose memory is compared, in multiples of the model's own
PARTS = {  # of a step, in words
    "products": "matrix products",
    "attention": "attention",
    "elementwise": "elementwise kernels",
    "recompute": "recomputation",
    "tp": "tensor parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "pp": "pipeline sends",
    "dp": "gradients and parameters",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer",
}
KINDS = {  # of memory, in words
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "gathered": "layers gathered by ZeRO",
    "recomputed": "recomputed layer",
    "fragmentation": "fragmentation (assumed 5%)",
    "reserved": "CUDA, NCCL (assumed)",
}
NAMES = {"step_seconds": "step, s", "mfu": "MFU, %", "memory_bytes": "memory, GB"}
POWERS = {"K": 1, "M": 2, "B": 3, "G": 3, "T": 4}


def summary(costs: StepCosts, batch: int) -> str:
    """Say what is planned, in one line."""
    model, cluster = costs.model, costs.cluster
    active = f" ({in_count(model.active_parameters)} active)" if model.moe else ""
    step = f"{batch:,} sequence{'s' * (batch > 1)}, {in_count(batch * model.context)} tokens"
    context = f"{model.context:,} token{'s' * (model.context > 1)} of context"
    return (
        f"{model.name}: {in_count(model.parameters)} parameters{active}, {context}, on "
        f"{cluster.world_size:,} x {cluster.accelerator.name}; a step of {step}"
    )


def best_table(found: Found, wholes: list[Campaign]) -> Group:
    """Tabulate the quickest layouts, and say why each is slower than the first."""
    title = f"the fastest of {found.legal:,} legal layouts ({found.planned:,} planned in {in_time(found.seconds)}; the "
    title += "others cannot fit or cannot be faster)"
    table = titled(title, ("", "layout"), ("step, s", "MFU", "memory, GB", "whole run", "slower by"))
    best = found.best[0]
    for place, (run, whole) in enumerate(zip(found.best, wholes, strict=True), 1):
        slower = f"{max(0.0, run.step_seconds / best.step_seconds - 1):.1%}" if place > 1 else ""
        numbers = (
            f"{run.step_seconds:.3f}",
            f"{run.mfu:.1%}",
            _gb(run.memory.total),
            in_time(whole.days * DAY) if whole.goodput else "never ends",
            slower,
        )
        table.add_row(str(place), _short(run), *numbers)
    reasons: dict[str, list[str]] = {}
    for place, run in enumerate(found.best[1:], 2):
        reasons.setdefault(why_slower(run, best), []).append(str(place))
    return Group(table, *(f"{', '.join(places)} against 1: {reason}" for reason, places in reasons.items()))


def explanation(run: PlannedRun, whole: Campaign, ways: list[tuple[str, PlannedRun]]) -> list:
    """Explain one layout: its numbers, memory, time, and what it sends over which links."""
    return [f"\n{run.layout}", _numbers(run, whole), _memory(run), *_verdict(run, ways), _time(run), *_sent(run)]


def _numbers(run: PlannedRun, whole: Campaign) -> Table:
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    peak = run.peak_flops / run.cluster.world_size / 1e12
    counted = "the causal half" if run.layout.attention == "flash" else "all pairs of tokens"
    spread = spread_of(family_of(run.layout.zero == 3))
    rows = [
        (
            "step",
            f"{run.step_seconds:.3f} s",
            f"micro-batches on each rank: {run.layout.micro_batches(run.batch):,}",
        ),
        (
            "typical",
            f"{run.step_seconds * spread.low:.3g} to {run.step_seconds * spread.high:.3g} s",
            f"8 in 10 of {spread.count} published runs of this kind took {spread.low:.2f} to {spread.high:.2f} times "
            f"their plan; a new source's runs fell into the range of the others in {spread.held:.0%} of cases",
        ),
        (
            "MFU",
            f"{run.mfu:.1%}",
            f"{run.mfu * peak:,.0f} of {peak:,.0f} TFLOP/s on each GPU; attention counts {counted}",
        ),
        ("HFU", f"{run.hfu:.1%}", "MFU with recomputation counted"),
        ("speed", f"{in_count(run.tokens_per_second)} tokens/s", ""),
        ("memory", f"{_gb(run.memory.total)} GB", f"of {_gb(run.cluster.accelerator.memory)} on the fullest GPU"),
    ]
    if whole.goodput:
        often = f"failures: {in_count(whole.failures)}; a save every {in_time(whole.save_interval)}"
        low, high = (in_time(whole.days * DAY * times) for times in (spread.low, spread.high))
        whole_run = f"typically {low} to {high}; {in_count(whole.tokens)} tokens, {in_count(whole.gpu_hours)} GPU hours"
        rows += [("goodput", f"{whole.goodput:.1%}", often), ("whole run", in_time(whole.days * DAY), whole_run)]
    else:
        rows.append(("whole run", "never ends", "failures come faster than a restart and one save take"))
    if whole.goodput and whole.cost is not None:
        rows.append(("cost", in_count(whole.cost), ""))
    for row in rows:
        table.add_row(*row)
    return table


def _memory(run: PlannedRun) -> Table:
    limit = run.cluster.accelerator.memory
    table = titled("memory of the fullest GPU", [""], ["GB"])
    table.add_column(f"of {_gb(limit)} GB")
    for name, nbytes in asdict(run.memory).items():
        if nbytes:
            table.add_row(KINDS[name], _gb(nbytes), bar(nbytes / limit))
    table.add_section()
    table.add_row("total", _gb(run.memory.total), f"{run.memory.total / limit:.1%}")
    return table


def memory_of_others(run: PlannedRun, numerics: Numerics) -> Table:
    """Tabulate the memory of every pipeline stage's ranks, and of the fullest rank with other sequence lengths."""
    limit, batch = run.cluster.accelerator.memory, run.batch
    table = titled("memory by stage and by sequence length", [""], ["GB"])
    table.add_column(f"of {_gb(limit)} GB")

    def add(name: str, memory: Memory) -> None:
        share = memory.total / limit
        table.add_row(name, _gb(memory.total), f"{bar(min(share, 1))} {share:.0%}", style="red" if share > 1 else None)

    for rank in range(run.layout.pp):
        add(f"stage {rank}", memory_of(run.model, run.layout, batch, numerics, rank))
    table.add_section()
    for times in SEQUENCES:
        context = int(run.model.context * times)
        if context and context % (2 * run.layout.cp * run.layout.tp) == 0:
            add(f"{context:,} tokens", memory_of(replace(run.model, context=context), run.layout, batch, numerics))
    return table


def _verdict(run: PlannedRun, ways: list[tuple[str, PlannedRun]]) -> list:
    """Say by how much a layout does not fit and what would help; [] if it fits."""
    over = run.memory.total - run.cluster.accelerator.memory
    if over <= 0:
        return []
    lines = [f"This does not fit: {_gb(over)} GB too much on each GPU."]
    lines += [
        f"  {name}: {_gb(other.memory.total)} GB"
        + (f", {other.step_seconds:.3f} s a step" if other.fits else ", still too much")
        for name, other in ways
    ]
    return ["\n".join(lines)]


def _time(run: PlannedRun) -> Table:
    table = titled("time of a step on the slowest rank", [""], ["s"])
    table.add_column("share")
    for name, seconds in asdict(run.time).items():
        if seconds:
            share = seconds / run.step_seconds
            table.add_row(PARTS[name], f"{seconds:.3f}", f"{bar(share)} {share:.1%}")
    return table


def _sent(run: PlannedRun) -> list:
    if not run.sent:
        return []
    table = titled("what a rank sends in a step", ("axis", "collective"), ("ranks", "GB", "takes", "exposed"))
    table.add_column("over")
    for sent in run.sent:
        where = "between nodes" if sent.group.leaves_node else "inside a node"
        times = in_time(sent.seconds), in_time(sent.exposed)
        table.add_row(sent.axis, sent.collective, f"{sent.group.size:,}", f"{sent.nbytes / GB:,.2f}", *times, where)
    return [table]


def no_layout(costs: StepCosts, batch: int, found: Found) -> str:
    """Say why no layout fits and what would help: another batch, or the number of GPUs that could hold the model."""
    limit = costs.cluster.accelerator.memory
    if (run := found.smallest) is None:
        return (
            f"No layout is legal: {costs.cluster.world_size:,} GPUs cannot share {batch:,} sequences evenly. "
            "Choose a batch that has more divisors in common with the number of GPUs."
        )
    numerics, least = costs.numerics, run.memory
    state = costs.model.parameters * (numerics.parameter + numerics.gradient + numerics.optimizer)
    room = limit - least.reserved
    return (
        f"None of {found.legal:,} legal layouts fits {_gb(limit)} GB. The smallest needs {_gb(least.total)} GB:\n"
        f"  {run.layout}\n"
        f"Parameters, gradients and optimizer state alone are {_gb(state / run.cluster.world_size)} GB a GPU, spread "
        f"evenly: {f'{ceil(state / room):,} GPUs' if room > 0 else 'no number of GPUs'} could hold them."
    )


def validation_tables(compared: list[Comparison]) -> list:
    """Return a table for each family of systems, then one of the errors."""
    tables: list = []
    for family, words in FAMILIES.items():
        table = Table(title=f"{family}: {words}. Published → ours, error", title_justify="left")
        table.add_column("run", overflow="fold")
        for name in NAMES.values():
            table.add_column(name, justify="right", no_wrap=True)
        for one in compared:
            if one.family == family:
                figures = {figure.name: figure for figure in one.figures}
                table.add_row(one.run.name, *(_beside(figures.get(name)) for name in NAMES))
                if one.problem:
                    table.add_row(one.problem)
        tables.append(table)
    return [*tables, errors_table(compared)]


def _beside(figure: Figure | None) -> str:
    if figure is None:
        return ""
    scale = {"step_seconds": 1, "mfu": 100, "memory_bytes": 1 / GB}[figure.name]
    return f"{figure.published * scale:,.3g} → {figure.planned * scale:,.3g} {figure.error:+.0%}"


def errors_table(compared: list[Comparison]) -> Table:
    """Tabulate the mean error, the mean of its size, and the worst, by family and figure."""
    table = titled("errors", ("", "figure"), ("runs", "mean", "mean size", "worst"))
    for family in FAMILIES:
        for place, (name, figures) in enumerate(figures_of(compared, family).items()):
            found = summarize(figures)
            errors = (f"{found.bias:+.1%}", f"{found.mean:.1%}", f"{found.worst:+.1%}")
            table.add_row("" if place else family, NAMES[name], str(found.count), *errors)
    return table


def _short(run: PlannedRun) -> str:
    """Return the layout without the settings that all layouts share."""
    hidden = {"schedule=interleaved", f"attention={run.layout.attention}"}
    return ", ".join(part for part in str(run.layout).split(",") if part not in hidden)


def _gb(nbytes: float) -> str:
    return f"{nbytes / GB:,.1f}"


def read_count(text: str, base: int = 1000) -> float:
    """Parse a count such as 15T, which is 15e12 if ``base`` is 1000, or a plain number.

    Raises:
        ValueError: if it is not a number, or not above 0 and finite.
    """
    power = POWERS.get(text[-1:].upper(), 0)
    value = number(text[:-1] if power else text) * base**power
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{text} must be above 0 and finite")
    return value


def sequences_of(text: str, context: int) -> int:
    """Number of sequences in a count of tokens: 16M is 16 x 2^20 if sequences divide that, as in Llama 3, else 16e6.

    Raises:
        ValueError: if no whole number of sequences has that many tokens; the error names the nearest numbers.
    """
    for base in (1024, 1000):
        count = read_count(text, base) / context
        if count == round(count):
            return round(count)
    below = max(1, int(count))
    raise ValueError(
        f"--batch-tokens {text} is not a multiple of a sequence's {context:,} tokens: choose --batch {below} "
        f"({below * context:,} tokens) or --batch {below + 1} ({(below + 1) * context:,})"
    )
