"""Imports and helpers of every chapter: NumPy and plots, tables, ranks that stay warm, and training runs on them."""

from contextlib import nullcontext
from dataclasses import replace
from pkgutil import resolve_name
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

import minidist as md
from minidist import show
from minidist.show.notebook import compact_figures

__all__ = [
    "Markdown", "clean", "clusters", "md", "np", "patch", "plt", "replace", "short", "show", "table", "train", "warm",
    "with_patch",
]  # fmt: skip
compact_figures(80)


class _Clusters(dict):
    """Clusters by their number of ranks: started at first use, then kept warm; new ones after the last cell."""

    def __getitem__(self, ranks: int) -> md.Cluster:
        if ranks not in self or not self.get(ranks).is_warm:
            self[ranks] = md.Cluster(ranks)
        return self.get(ranks)


clusters = _Clusters()


def warm(ranks: int):
    """Return a context manager that lends the warm ranks, for ``md.first_difference``."""
    return nullcontext(clusters[ranks])


def train(config, layout="dp=1", rank_function=None, on_event=lambda rank, event: None, **options):
    """Train on real ranks; return the ``Run``.

    Args:
        config: md.TrainConfig.
        layout: md.Layout, or its text, such as "dp=2,tp=2".
        rank_function: function that every rank runs in place of ``md.train_rank``, such as one with a bug.
        on_event: called with what ranks report on their way.
        options: fields of md.RunOptions.
    """
    layout = md.Layout.parse(layout) if isinstance(layout, str) else layout
    return md.run(
        clusters[layout.world_size],
        config,
        layout,
        md.RunOptions(**options),
        rank_function=rank_function,
        on_event=on_event,
    )


def with_patch(name: str, replacement, rank_function=None):
    """Return a rank function that trains with one function of the library replaced: an injected bug, for example.

    Args:
        name: function or method, such as "minidist.nn.gpt.Head.mean_loss".
        replacement: called in its place, with the world, the library's own function, and the arguments of the call.
        rank_function: function that runs with the replacement; by default ``md.train_rank``.
    """

    def train_patched(world, config, layout, options):
        own = resolve_name(name)
        with patch(name, lambda *arguments, **named: replacement(world, own, *arguments, **named)):
            return (rank_function or md.train_rank)(world, config, layout, options)

    return train_patched


def table(*rows) -> Markdown:
    """Return a Markdown table; the first row is its heading."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return Markdown("\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]))


def clean(axes, **settings) -> None:
    """Remove the frame of a plot, and set its labels and limits."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(**settings)


def short(fingerprint: str) -> str:
    """Return the first twelve digits of a fingerprint, as code."""
    return f"`{fingerprint[:12]}`"
