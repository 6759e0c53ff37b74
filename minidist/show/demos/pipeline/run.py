"""The model that the demonstration of pipelines trains."""

from minidist.train.config import TrainConfig

MOST_MICRO_BATCHES = 16  # with more, cells would be narrower than a character


def config_of(ranks: int, micro_batches: int, seed: int) -> TrainConfig:
    """A model with two layers for each rank; on few ranks, so large that computing takes longer than sending."""
    few = ranks <= 4
    micro_batch = 2 if ranks == 2 else 1
    return TrainConfig(
        layers=2 * ranks,
        width=64 if few else 32,
        context=64 if few else 32,
        micro_batch=micro_batch,
        global_batch=micro_batches * micro_batch,
        steps=2 if few else 1,
        seed=seed,
    )
