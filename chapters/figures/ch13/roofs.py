"""Rooflines of one chip: kernels by their size, on the roof and as measured, and inference."""

import json
from pathlib import Path

from minidist.nn.config import GPTConfig
from minidist.plan.cluster.hardware import Accelerator
from minidist.show.figures import roofline
from minidist.show.figures.roofline import Dot


def draw_kernels(chip: Accelerator, kernels: dict[str, dict[str, float]]):
    """Return a matplotlib Figure: kernels on the roof of bf16, series -> label -> FLOPs per byte."""
    series = {name: [Dot(label, value) for label, value in dots.items()] for name, dots in kernels.items()}
    title = f"Kernels on an {chip.name.split()[0]}"
    return roofline.draw(chip.flops["bf16"], chip.memory_bandwidth, series, title, "bf16")


def measured_on_an_h200() -> dict:
    """Return what a real H200 took: products (n, n) x (n, n), additions of n bf16 numbers, training steps."""
    return json.loads((Path(__file__).parent / "h200.json").read_text(encoding="utf-8"))


def draw_measured(chip: Accelerator, kernels: dict[str, dict[str, tuple[float, float]]]):
    """Return a matplotlib Figure: measured kernels under the roof of bf16, series -> label -> intensity, FLOP/s."""
    series = {name: [Dot(label, *place) for label, place in dots.items()] for name, dots in kernels.items()}
    title = f"Kernels on an {chip.name.split()[0]}, measured"
    return roofline.draw(chip.flops["bf16"], chip.memory_bandwidth, series, title, "bf16")


def draw_inference(chip: Accelerator, config: GPTConfig):
    """Return a matplotlib Figure: decode by batch, its attention, and prefill by tokens, on the roof of bf16."""
    title = f"A GPT of width {config.width:,} and {config.layers} layers on an {chip.name.split()[0]}"
    works = roofline.ends_of_the_roofline(config)
    return roofline.draw(chip.flops["bf16"], chip.memory_bandwidth, works, title, "bf16")
