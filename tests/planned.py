"""A real run's config and layout as the planner knows them."""

from dataclasses import fields

from minidist.plan.layout import PlannedLayout, stages_of
from minidist.plan.models.shape import ModelShape
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

VOCAB = 256  # bytes


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
