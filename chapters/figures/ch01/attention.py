"""Attention weights of a model, read from what its graph has saved for backward."""

import numpy as np

from minidist.nn.tensor import Context


def weights_of(model, text: bytes) -> list[np.ndarray]:
    """Return each layer's attention weights on a text, (heads, queries, keys); each row sums to 1."""
    row = np.frombuffer(text, np.uint8)[None]  # (1, T)
    nodes, layers = [model(row, row).grad_fn], []
    for node in nodes:  # grows during the loop
        if node.name == "CausalAttention":
            exps, totals = node.saved_arrays[3], node.saved_arrays[-1]  # (H, B, keys, queries), (H, B, queries, 1)
            layers.insert(0, exps[:, 0].swapaxes(-1, -2) / totals[:, 0])  # the last layer is met first
        nodes += [source for source in node.sources if isinstance(source, Context) and source not in nodes]
    return layers


def draw(layers: list[np.ndarray], text: bytes):
    """Return a matplotlib Figure: a row of panels for each layer, a panel for each head, for the bytes of ``text``."""
    from matplotlib.figure import Figure

    letters, shown = [chr(byte) for byte in text], len(text)
    figure = Figure(figsize=(10.4, 5.8), layout="constrained")
    for (layer, head), axes in np.ndenumerate(figure.subplots(len(layers), len(layers[0]))):
        axes.imshow(layers[layer][head, :shown, :shown] ** 0.5, cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"layer {layer}, head {head}", fontsize=10)
        axes.set_xticks(range(shown), letters, fontsize=8, family="monospace")
        axes.set_yticks(range(shown), letters, fontsize=8, family="monospace")
        axes.tick_params(length=0, pad=1)
    return figure
