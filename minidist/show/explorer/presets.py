"""Well-known cases: positions to start from, and what to look for."""

from dataclasses import dataclass

START = {
    "gpus": 8,
    "tp": 1,
    "cp": 1,
    "pp": 1,
    "ep": 1,
    "micro_batch": 1,
    "recompute": "none",
    "precision": "bf16",
    "zero": 0,
}


@dataclass(frozen=True)
class Preset:
    """Positions of one model's sliders. A slider that is not in ``set`` is at START; the sequence is the shortest.

    Attributes:
        note: what the case shows, in one sentence. It names no result: the page takes results from the plan.
        ran: how a real run fitted although the plan says that it does not; "" if there was none.
    """

    name: str
    model: str
    set: dict[str, int | str]
    note: str
    ran: str = ""

    def position(self, sliders: dict[str, tuple]) -> dict | None:
        """Return the value of each slider, or None if a slider lacks its value."""
        start = START | {"sequence": sliders["sequence"][0]} | self.set
        found = {slider: start[slider] for slider in sliders}
        return found if all(value in sliders[slider] for slider, value in found.items()) else None


EARLY = "arrays were freed early, which is not planned"  # Llama team, 2024, section 3.3.2
PRESETS = (
    Preset("7B on 8", "7b", {}, "Plain data parallelism: each GPU holds all parameters, gradients and optimizer state"),
    Preset("405B on 8", "llama3-405b", {"tp": 8}, "One node, split eight ways by tensor parallelism"),
    Preset(
        "405B on 128",
        "llama3-405b",
        {"gpus": 128, "tp": 8, "pp": 16, "recompute": "full"},
        "One copy of the model: 8 tensor-parallel ranks in each of 16 stages, and nothing left for data parallelism",
    ),
    Preset(
        "175B on 512",
        "gpt3-175b",
        {"gpus": 512, "tp": 8, "pp": 8, "zero": 1},
        "GPT-3 as Megatron-LM splits it: tensor parallelism in the node, 8 stages, 8 replicas",
    ),
    Preset(
        "Llama 3 on 8,192",
        "llama3-405b",
        {"gpus": 8192, "tp": 8, "pp": 16, "zero": 1},
        "Llama 3's recipe, without recomputation",
        EARLY,
    ),
    Preset(
        "Llama 3 on 16,384",
        "llama3-405b",
        {"gpus": 16384, "tp": 8, "pp": 16, "zero": 1},
        "The same with 128 replicas: half as many micro-batches for each, so the bubble grows",
        EARLY,
    ),
    Preset(
        "Llama 3, long",
        "llama3-405b",
        {"gpus": 16384, "tp": 8, "cp": 16, "pp": 16, "sequence": 131072, "zero": 1},
        "Llama 3's last phase: sequences of 131,072 tokens, each on 16 context-parallel ranks",
        EARLY,
    ),
)
