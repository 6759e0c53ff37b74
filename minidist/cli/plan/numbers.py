"""What ``minidist plan --json`` writes."""

from dataclasses import asdict

from minidist.plan.planned_run import Campaign, PlannedRun
from minidist.plan.published_runs import FAMILIES, Comparison, figures_of, summarize
from minidist.plan.time import StepCosts


def layout_numbers(costs: StepCosts, run: PlannedRun, whole: Campaign) -> dict:
    """One layout: times in seconds, memory in bytes of one GPU."""
    return {
        "layout": str(run.layout),
        "fits": run.fits,
        "step_seconds": run.step_seconds,
        "mfu": run.mfu,
        "hfu": run.hfu,
        "mfu_all_pairs": run.mfu_all_pairs,
        "mfu_causal": run.mfu_causal,
        "memory_bytes": run.memory.total,
        "tokens_per_second": run.tokens_per_second,
        "tflops_per_gpu": run.mfu * run.peak_flops / run.cluster.world_size / 1e12,
        "micro_batches": run.layout.micro_batches(run.batch),
        "step_seconds_parts": asdict(run.time),
        "compute_seconds_by_phase": costs.phases(run.layout, run.batch),
        "memory_bytes_parts": asdict(run.memory),
        "sent": [
            {
                "axis": sent.axis,
                "collective": sent.collective,
                "ranks": sent.group.size,
                "leaves_node": sent.group.leaves_node,
                "bytes": sent.nbytes,
                "seconds": sent.seconds,
                "exposed_seconds": sent.exposed,
            }
            for sent in run.sent
        ],
        "whole_run": asdict(whole),
    }


def validation_numbers(compared: list[Comparison]) -> dict:
    """Every published figure beside the planned one, and the errors by kind of system and figure."""
    runs = [
        {
            "name": one.run.name,
            "source": one.run.source,
            "note": one.run.note,
            "layout": one.run.layout,
            "cluster": one.run.cluster,
            "family": one.family,
            "problem": one.problem,
            "figures": {
                figure.name: {"published": figure.published, "planned": figure.planned, "error": figure.error}
                for figure in one.figures
            },
        }
        for one in compared
    ]
    return {
        "runs": runs,
        "errors": {
            family: {name: asdict(summarize(figures)) for name, figures in figures_of(compared, family).items()}
            for family in FAMILIES
        },
    }
