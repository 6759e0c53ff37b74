"""Table of the collectives of a run with four axes, and what each is for."""

from collections.abc import Mapping

PURPOSES = {
    ("shard", "all_gather_into_tensor"): "ZeRO-3: each unit's parameters, once a step",
    ("shard", "reduce_scatter_tensor"): "ZeRO-3: gradients over dp × cp = 4 ranks, once per micro-batch and block",
    ("shard", "all_reduce"): "the norm",
    ("cp", "all_gather_into_tensor"): "keys and values, forward and backward",
    ("cp", "all_to_all_single"): "gradients of keys and values, to their owners, as two float64",
    ("tp", "all_gather_into_tensor"): "`sp=1`: tokens before each tensor-parallel region",
    ("tp", "reduce_scatter_tensor"): "`sp=1`: partial sums after it",
    ("tp", "all_reduce"): "LayerNorm's and row biases' gradients; the embedding; the norm",
    ("pp", "send"): "activations to the next stage",
    ("pp", "all_reduce"): "the norm; the loss, which the last stage knows",
    ("embedding", "all_reduce"): "the tied weight's gradient, first and last stage",
    ("dp_cp", "all_reduce"): "the mean loss",
}


def rows(merged: Mapping[tuple[str, str], tuple[int, int]]) -> list[tuple]:
    """Return the rows of a table: axis by axis, the collectives with the most bytes first.

    Args:
        merged: (axis, collective) -> calls and bytes sent, from ``minidist.analysis.traffic.by_kind``.

    Raises:
        KeyError: for a collective that is not in PURPOSES.
    """
    axes = list(dict.fromkeys(axis for axis, _ in PURPOSES))
    order = sorted(merged, key=lambda key: (axes.index(key[0]), -merged[key][1]))
    return [(*key, merged[key][0], f"{merged[key][1]:,}", PURPOSES[key]) for key in order]
