"""Plans of every position of one model's sliders; the page only looks them up."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.layout import PlannedLayout, with_attention
from minidist.plan.planned_run import PlannedRun, plan_run
from minidist.plan.time import StepCosts
from minidist.show.explorer.choices import Choice, positions_of

TOKENS = 15e12  # the page shows the days for these: Llama 3 was trained on as many
DAY = 86400
GIGA = 1e9
MEMORY = {  # parts of plan.memory.Memory -> their labels
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "gathered": "gathered by ZeRO",
    "recomputed": "recomputed layer",
    "fragmentation": "fragmentation",
    "reserved": "reserved",
}
TIME = {  # parts of plan.time.StepTime -> their labels
    "products": "matrix products",
    "attention": "attention",
    "elementwise": "elementwise",
    "recompute": "recomputation",
    "tp": "tp communication",
    "cp": "cp communication",
    "ep": "ep communication",
    "pp": "pp communication",
    "dp": "dp communication",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer",
}
AXES = ("tp", "cp", "ep", "dp", "pp")
COUNTED = 9  # digits of counts
DIGITS = defaultdict(lambda: 3, {"memory": 4, "step": 4})  # significant digits of a column
DIGITS |= dict.fromkeys(("dp", "virtual", "micro_batches", *(f"group.{axis}" for axis in AXES)), COUNTED)
FORETOLD = {  # column -> (others, power): except for rounding, it is proportional to that power of their sum
    "memory.fragmentation": (("memory.activations", "memory.gathered", "memory.recomputed"), 1),
    "memory": (tuple(f"memory.{part}" for part in MEMORY), 1),
    "step": (tuple(f"time.{part}" for part in TIME), 1),
    "mfu": (("step",), -1),
    "tokens_per_second": (("step",), -1),
    "days": (("step",), 1),
}


@dataclass(frozen=True)
class Table:
    """Columns of numbers with one cell for each position of the sliders; the last slider changes fastest.

    Attributes:
        columns: name -> cells; None where the position is illegal. reasons: index in ``texts`` of why a position is
            illegal; 0 where it is legal.
    """

    sliders: dict[str, tuple]
    columns: dict[str, list[float | None]]
    reasons: list[int]
    texts: list[str]


class Planner:
    """Planner of runs at the positions of one model's sliders, on one kind of GPU."""

    def __init__(self, choice: Choice, gpu: str) -> None:
        self.choice, self.gpu = choice, gpu
        self.costs: dict[tuple, StepCosts] = {}
        self.virtual: dict[tuple[StepCosts, PlannedLayout], int] = {}

    def __call__(self, position: dict) -> PlannedRun:
        """Plan the run at a position of the sliders.

        Raises:
            ValueError: if the position is illegal; the message says why.
        """
        gpus, sequence, precision = position["gpus"], position["sequence"], position["precision"]
        key = gpus, sequence, precision
        if key not in self.costs:
            spec = ClusterSpec.parse(f"{self.gpu}:{gpus}")
            self.costs[key] = StepCosts(self.choice.shape(sequence), spec, precision)
        costs = self.costs[key]
        axes = {axis: position[axis] for axis in ("tp", "cp", "pp")}
        if gpus % prod(axes.values()):
            PlannedLayout.parse(",".join(f"{axis}={size}" for axis, size in axes.items()), gpus)  # says what is nearest
        layout = PlannedLayout(
            dp=gpus // prod(axes.values()),
            **axes,
            sp=int(axes["tp"] > 1),
            ep=position["ep"],
            zero=position["zero"],
            recompute=position["recompute"],
            micro_batch=position["micro_batch"],
        )
        layout = with_attention(layout, costs.efficiency.attention)
        batch = self.choice.batch_tokens // sequence
        if reason := layout.problem(costs.model, batch):
            raise ValueError(reason)
        return plan_run(costs, replace(layout, virtual=self._virtual(costs, layout, batch)), batch)

    def _virtual(self, costs: StepCosts, layout: PlannedLayout, batch: int) -> int:
        """Return the number of stages per rank that makes the step shortest, without ZeRO, which hardly affects it."""
        plain = replace(layout, zero=0)
        if (costs, plain) not in self.virtual:
            layers, pp = costs.model.layers, plain.pp
            fitting = [v for v in range(2, (layers + 2) // pp + 1) if layers % (pp * v) == 0 or pp * v == layers + 2]
            others = [replace(plain, virtual=v) for v in fitting] if pp > 1 else []
            legal = [plain] + [other for other in others if not other.problem(costs.model, batch)]
            best = min(legal, key=lambda one: costs.step(one, batch)[0].total)
            self.virtual[costs, plain] = best.virtual
        return self.virtual[costs, plain]


def cells(run: PlannedRun) -> dict[str, float]:
    """Return column -> number for one run: GB, seconds, and what the page derives from them."""
    step, speed = run.step_seconds, run.tokens_per_second
    found = {f"memory.{part}": nbytes / GIGA for part, nbytes in vars(run.memory).items()}
    found |= {f"time.{part}": seconds for part, seconds in vars(run.time).items()}
    found |= {"memory": run.memory.total / GIGA, "fits": float(run.fits), "step": step, "mfu": run.mfu}
    found |= {"tokens_per_second": speed, "days": TOKENS / speed / DAY}
    layout = run.layout
    found |= {"dp": layout.dp, "virtual": layout.virtual, "micro_batches": layout.micro_batches(run.batch)}
    for axis in AXES:
        sent = [one for one in run.sent if one.axis == axis]
        found[f"sent.{axis}"] = sum(one.nbytes for one in sent) / GIGA
        found[f"seconds.{axis}"] = sum(one.seconds for one in sent)
        found[f"exposed.{axis}"] = sum(one.exposed for one in sent)
        group = sent[0].group if sent else None
        found[f"group.{axis}"] = group.size if group else 1
        found[f"leaves.{axis}"] = float(bool(group) and group.leaves_node)
    return found


def table_of(choice: Choice, gpu: str, sliders: dict[str, tuple], advance: Callable[[], object]) -> Table:
    """Plan every position of a model's sliders.

    Args:
        advance: called once for each number of GPUs, when its positions are planned.

    Raises:
        ValueError: if no position is legal, with the reason at the first one.
    """
    planner = Planner(choice, gpu)
    rows, reasons, texts = [], [], {"": 0}
    each = prod(map(len, sliders.values())) // len(sliders["gpus"])
    for number, position in enumerate(positions_of(sliders), 1):
        try:
            rows.append(cells(planner(position)))
            reasons.append(0)
        except ValueError as error:
            rows.append(None)
            reasons.append(texts.setdefault(str(error), len(texts)))
        if number % each == 0:
            advance()
    names = next(filter(None, rows), None)
    if names is None:
        raise ValueError(f"{choice.key} has no legal layout at any position of the sliders: {[*texts][1]}")
    columns = {name: [row and row[name] for row in rows] for name in names}
    return Table(sliders, columns, reasons, list(texts))
