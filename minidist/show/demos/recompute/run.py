"""The model and the layouts that the demonstration of recomputation trains, and what they cost by formula."""

from minidist.nn.recompute import MODES
from minidist.show.demos.shared.widths import check_width, heads_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    check_width(size, 4, 256)
    return TrainConfig(
        layers=4,
        heads=heads_of(size),
        width=size,
        context=64,
        global_batch=4 * ranks,
        micro_batch=4,
        steps=2,
        dropout=0.1,
        precision="bf16",
        seed=seed,
    )


def layouts_of(ranks: int) -> list[Layout]:
    return [Layout(dp=ranks, recompute=mode) for mode in MODES]


def recomputed_share(config: TrainConfig, mode: str) -> float:
    """The FLOPs that a mode adds, as a share of those of a step's forward and backward."""
    tokens, h = config.micro_batch * config.context, config.width
    core = 4 * tokens * config.context * h
    block = 24 * tokens * h * h + core
    head = 2 * tokens * h * config.model.vocab
    return {"none": 0, "selective": core, "full": block}[mode] * config.layers / (3 * (config.layers * block + head))
