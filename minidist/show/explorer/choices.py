"""The models of the explorer, and each model's positions of the sliders.

Every combination of positions is planned, so each slider has only as many as show its effect. Numbers of GPUs are
powers of two. dp has no slider: it takes the GPUs that the other axes leave. The page holds fixed: sequence parallelism
wherever tp > 1, zigzag context parallelism, as many interleaved stages as make the step shortest, gradients in float32.
"""

from dataclasses import dataclass, replace
from itertools import product

from minidist.nn.recompute import MODES
from minidist.plan.cluster.efficiency import efficiency_of
from minidist.plan.cluster.hardware import Accelerator
from minidist.plan.models import ModelShape, model_of

SLIDERS = {  # in the order of the table -> label of the slider
    "gpus": "GPUs",
    "tp": "tensor parallel",
    "cp": "context parallel",
    "pp": "pipeline stages",
    "ep": "expert parallel",
    "sequence": "sequence, tokens",
    "micro_batch": "micro-batch",
    "recompute": "recompute",
    "precision": "precision",
    "zero": "ZeRO",
}
NUMBERED = ("gpus", "tp", "cp", "pp", "ep", "sequence", "micro_batch")  # sliders that take other positions
PRECISIONS = ("bf16", "fp8")  # of matrix products; a page offers those that its chip has
LLAMA_1 = (  # the 7B of Touvron et al., 2023, table 2 (arXiv 2302.13971): MLPs of 11,008 units
    "layers=32,width=4096,heads=32,hidden=11008,vocab=32000,context=2048,"
    "gated=1,biases=0,tied=0,learned_positions=0,norm_vectors=1,dropout=0"
)
MILLION = 1 << 20  # tokens
EVEN = 768  # a step of the user's own model has a multiple of this many sequences: many numbers of ranks divide it


@dataclass(frozen=True)
class Choice:
    """Model of the explorer, with positions of its sliders.

    Attributes:
        model: description that ``model_of`` takes. name: name on the page; "" for the library's.
        batch_tokens: tokens of a step, at every position of the sliders. source: who trained with that number.
        positions: slider -> its positions, for those on which models differ.
    """

    key: str
    model: str
    batch_tokens: int
    source: str
    positions: dict[str, tuple[int, ...]]
    name: str = ""

    def shape(self, sequence: int) -> ModelShape:
        shape = model_of(self.model)
        return replace(shape, context=sequence, name=self.name or shape.name)

    def sliders(self, chip: Accelerator) -> dict[str, tuple]:
        """Return every slider and its positions, in the order of SLIDERS."""
        flash = efficiency_of(chip).attention == "flash"  # it leaves selective recomputation nothing to do
        shared = {
            "tp": (1, 2, 4, 8),
            "cp": (1,),
            "ep": (1,),
            "recompute": tuple(mode for mode in MODES if mode != "selective" or not flash),
            "precision": tuple(name for name in PRECISIONS if name in chip.flops),
            "zero": (0, 1, 2, 3),
        }
        chosen = shared | self.positions
        return {slider: chosen[slider] for slider in SLIDERS}


def own_choice(shape: str) -> Choice:
    """Return the user's own model, described as ``model_of`` takes it, with positions that suit many models.

    Raises:
        ValueError: if ``shape`` describes no model.
    """
    context = model_of(shape).context
    positions = {
        "gpus": (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
        "cp": (1, 4),
        "pp": (1, 2, 4, 8, 16),
        "sequence": (context, 4 * context),
        "micro_batch": (1, 2, 4),
    }
    sequences = max(1, 4 * MILLION // context // EVEN) * EVEN
    return Choice("own", shape, sequences * context, "about 4M, as LLaMA 7B", positions, name="own model")


def with_positions(choice: Choice, text: str) -> Choice:
    """Return a model with other positions of sliders, read from ``SLIDER=VALUE,VALUE;SLIDER=...``.

    Raises:
        ValueError: if a part is not one of NUMBERED with positive whole numbers; the message names it.
    """
    own = {}
    for part in filter(None, text.split(";")):
        slider, _, values = part.partition("=")
        numbers = values.split(",")
        if slider not in NUMBERED or not all(number.isdecimal() and int(number) for number in numbers):
            raise ValueError(
                f"{part!r} is not a slider with its positions, such as gpus=24,48: choose from {', '.join(NUMBERED)}"
            )
        own[slider] = tuple(sorted({*map(int, numbers)}))
    return replace(choice, positions=choice.positions | own)


def positions_of(sliders: dict[str, tuple]):
    """Yield every combination of positions as a dict; the last slider changes fastest."""
    for values in product(*sliders.values()):
        yield dict(zip(sliders, values, strict=True))


CHOICES = {
    choice.key: choice
    for choice in (
        Choice(
            "7b",
            LLAMA_1,
            4 * MILLION,
            "LLaMA: batches of 4M tokens (arXiv 2302.13971, table 2)",
            {
                "gpus": (8, 16, 32, 64, 128, 256, 512),
                "cp": (1, 4),
                "pp": (1, 2, 4, 8),
                "sequence": (2048, 8192),
                "micro_batch": (1, 2, 4),
            },
            name="LLaMA 7B",
        ),
        Choice(
            "llama3-8b",
            "llama3-8b",
            4 * MILLION,
            "as LLaMA 7B",
            {
                "gpus": (8, 16, 32, 64, 128, 256, 512, 1024),
                "cp": (1, 4, 16),
                "pp": (1, 2, 4, 8),
                "sequence": (8192, 131072),
                "micro_batch": (1, 2),
            },
        ),
        Choice(
            "llama3-70b",
            "llama3-70b",
            16 * MILLION,
            "as Llama 3 405B",
            {
                "gpus": (8, 64, 128, 256, 512, 1024, 2048, 4096),
                "cp": (1, 4, 16),
                "pp": (1, 2, 4, 8, 16),
                "sequence": (8192, 131072),
                "micro_batch": (1, 2),
            },
        ),
        Choice(
            "llama3-405b",
            "llama3-405b",
            16 * MILLION,
            "Llama team, 2024, section 3.4.1 and table 4: 16M tokens",
            {
                "gpus": (8, 128, 512, 1024, 2048, 4096, 8192, 16384),
                "tp": (1, 2, 4, 8, 16),
                "cp": (1, 4, 16),
                "pp": (1, 2, 4, 8, 16),
                "sequence": (8192, 131072),
                "micro_batch": (1, 2),
            },
        ),
        Choice(
            "gpt3-175b",
            "gpt3-175b",
            3 * MILLION,
            "1,536 sequences of 2,048 tokens, as Narayanan et al., 2021",
            {
                "gpus": (8, 64, 128, 256, 512, 1024, 2048, 4096),
                "pp": (1, 2, 4, 8, 16),
                "sequence": (2048,),
                "micro_batch": (1, 2, 4),
            },
        ),
        Choice(
            "mixtral-8x7b",
            "mixtral-8x7b",
            4 * MILLION,
            "as LLaMA 7B; Mixtral's own is not published",
            {
                "gpus": (8, 32, 64, 128, 256, 512),
                "cp": (1, 4),
                "pp": (1, 2, 4, 8),
                "ep": (1, 2, 8),
                "sequence": (8192, 32768),
                "micro_batch": (1, 2),
            },
        ),
        Choice(
            "deepseek-v3",
            "deepseek-v3",
            60 * MILLION,
            "15,360 sequences of 4,096 tokens (DeepSeek-AI, 2024, section 4.2)",
            {
                "gpus": (8, 64, 128, 256, 512, 1024, 2048, 4096),
                "pp": (1, 2, 4, 8, 16),
                "ep": (1, 8, 16, 64),
                "sequence": (4096,),
                "micro_batch": (1, 2),
            },
        ),
    )
}
