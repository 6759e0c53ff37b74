"""A real run's config and layout as the planner knows them, one's own files, and the tables that commands print."""

from dataclasses import fields

from minidist.plan.layout import PlannedLayout, stages_of
from minidist.plan.models.shape import ModelShape
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

VOCAB = 256  # bytes
HARDWARE = """
[accelerator.mine]
name = 'My GPU'
memory = 16e9
memory_bandwidth = 500e9
flops = { fp32 = 10e12, bf16 = 40e12 }

[link.cable]
name = 'a cable'
bandwidth = 1e9
latency = 5e-5

[node.lab]
name = 'lab machine'
accelerator = 'mine'
size = 4
inside = 'pcie4'
between = 'cable'
nics = 2
"""
NETWORK = """
ranks = ["a", "b", "c", "d"]
nodes = [0, 0, 1, 1]
link = [
  { between = ["a", "b"], bandwidth = 10e9 },
  { between = ["b", "c"], bandwidth = 1e9, latency = 2e-6 },
  { between = ["c", "d"], bandwidth = 10e9 },
  { between = ["d", "a"], bandwidth = 1e9, one_way = true },
]
"""


def shape_of(config: TrainConfig) -> ModelShape:
    """The model of a run. Its vocabulary is rounded up to a multiple of the heads."""
    vocab = -(-VOCAB // config.heads) * config.heads
    return ModelShape(
        "test", config.layers, config.width, config.heads, vocab, config.context, dropout=config.dropout > 0
    )


def planned_of(layout: Layout, config: TrainConfig) -> PlannedLayout:
    """The layout of a run. Attention by sequence chunks is a flash attention: it keeps no scores."""
    shared = {field.name for field in fields(PlannedLayout)} & {field.name for field in fields(Layout)}
    attention = "standard" if config.sequence_chunks == 1 and config.attention == "plain" else "flash"
    settings = {name: getattr(layout, name) for name in shared}
    return PlannedLayout(**settings, micro_batch=config.micro_batch, attention=attention)


def real_layout(text: str, config: TrainConfig) -> Layout:
    """A layout with the stages of a pipeline as a plan cuts them."""
    layout = Layout.parse(text)
    if layout.pp == 1:
        return layout
    return Layout.parse(f"{text},stages={'+'.join(map(str, stages_of(config.layers, layout.stage_count)))}")


def rows(text: str) -> dict[str, list[str]]:
    """First cell -> the other cells of its line, of all tables in what a command prints."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {first: rest for first, *rest in lines if first}
