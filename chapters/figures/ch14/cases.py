"""The models that chapter 14 plans, plans of them from the text of a layout, and two ways to read a plan."""

from minidist.plan.cluster.hardware import ClusterSpec, load
from minidist.plan.layout import PlannedLayout
from minidist.plan.models import model_of
from minidist.plan.planned_run import PlannedRun, plan_run
from minidist.plan.published_runs import family_of, spread_of
from minidist.plan.time import StepCosts

HARDWARE = load()
H100 = HARDWARE.accelerators["h100"]
LLAMA_7B = model_of(
    "layers=32,width=4096,heads=32,hidden=11008,vocab=32000,context=2048,gated=1,biases=0,tied=0,learned_positions=0,"
    "norm_vectors=1,dropout=0"
)
LLAMA_70B, LLAMA_405B = model_of("llama3-70b"), model_of("llama3-405b")


def costs_of(model, cluster: str) -> StepCosts:
    """Return what kernels and collectives cost for a model on a cluster, in 16 bits.

    Args:
        cluster: such as "h100:256".
    """
    return StepCosts(model, ClusterSpec.parse(cluster), "bf16")


def plan(model, cluster: str, layout: str, batch: int) -> PlannedRun:
    """Plan a step of ``batch`` sequences; without dp, the layout fills the cluster."""
    costs = costs_of(model, cluster)
    return plan_run(costs, PlannedLayout.parse(layout, costs.cluster.world_size), batch)


def shares_of_step(run: PlannedRun) -> dict[str, float]:
    """Return the shares of a step's time: computing, computing again, waiting for messages, idle in the pipeline."""
    seconds = vars(run.time)
    waiting = sum(seconds[axis] for axis in ("tp", "cp", "ep", "pp", "dp"))
    again, idle = seconds["recompute"], seconds["bubble"]
    computing = run.step_seconds - waiting - again - idle
    parts = {"computing": computing, "again": again, "waiting": waiting, "idle": idle}
    return {name: part / run.step_seconds for name, part in parts.items()}


def likely_seconds(run: PlannedRun) -> tuple[float, float]:
    """Return the range of a step's seconds, if it differs from its plan as 8 in 10 published runs of its kind do."""
    spread = spread_of(family_of(run.layout.zero == 3))
    return spread.low * run.step_seconds, spread.high * run.step_seconds
