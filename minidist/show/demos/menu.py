"""The menu: the demonstrations in groups, each with the names of its scenes, which are known before a rank starts."""

GROUPS = {  # group -> demonstration -> its scenes, as it makes them by default
    "collectives": {
        "broadcast": ("tree", "naive", "ring"),
        "ring": ("ring", "numbers", "naive", "halving-doubling"),
        "reduce-scatter": ("ring", "numbers"),
        "all-gather": ("ring",),
        "all-to-all": ("pairwise",),
    },
    "parallelism": {
        "dp": ("overlapped", "bucketed", "naive", "measured", "weights"),
        "zero": ("16 bytes", "two steps"),
        "tp": ("matrices", "heads", "as measured here", "as GPUs would"),
        "sp": ("tp + sp", "tp", "as measured here", "tp here", "as GPUs would"),
        "cp": ("ring", "zigzag", "backward", "Ulysses", "as GPUs would"),
        "ep": ("routes", "balance", "capacity"),
        "pp": ("naive", "GPipe", "1F1B", "interleaved", "ZB-H1", "all", "GPUs", "measured"),
    },
    "memory and precision": {
        "recompute": ("step",),
        "bf16": ("bf16", "fp16"),
        "flash": ("causal", "no mask", "standard"),
    },
    "loosened steps": {
        "async": ("synchronous", "asynchronous", "bounded", "evidence", "two servers"),
        "compress": ("top-k", "ledger", "1 bit", "low rank", "loss"),
    },
    "clusters and failures": {
        "deadlock": ("posted together", "odd recv first", "small messages"),
        "cluster": ("one node", "two nodes", "congested uplink"),
        "failure": ("die, go on", "save"),
    },
}
SCENES = {name: scenes for group in GROUPS.values() for name, scenes in group.items()}
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}
