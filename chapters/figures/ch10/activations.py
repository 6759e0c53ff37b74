"""Activations per token against the context: plain attention grows with it, tiled attention does not."""

from collections.abc import Mapping

from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, of_rank


def draw(held: Mapping[tuple[str, int], float]):
    """Return a matplotlib Figure with a line for each kind of attention.

    Args:
        held: (kind, context in tokens) -> bytes of activations per token.
    """
    kinds, contexts = (list(dict.fromkeys(keys)) for keys in zip(*held, strict=True))
    figure, axes = subplot(11, 2.7)
    colours = (MEANINGS["reduce-scatter"], MEANINGS["communication"], MEANINGS["computing"], of_rank(3))
    labels = []
    for kind, colour in zip(kinds, colours, strict=False):
        values = [held[kind, context] / 1e3 for context in contexts]
        axes.plot(contexts, values, "o-", color=colour)
        labels.append([values[-1], f"{kind}: {values[-1]:.1f}", colour])
    height, lowest = 1.15 * max(label[0] for label in labels), 0.0
    for label in sorted(labels):  # lines that end close together keep their labels apart
        lowest = max(lowest + height / 9, label[0])
        axes.text(1.02 * contexts[-1], lowest, label[1], va="center", color=label[2])
    axes.set(xlim=(0.86 * contexts[0], 1.3 * contexts[-1]), ylim=(0, height))
    axes.set(xlabel="context, tokens", ylabel="activations, kB per token")
    axes.set_xticks(contexts)
    return figure
