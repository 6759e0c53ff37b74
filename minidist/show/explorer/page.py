"""The page of the explorer: the tables of all models as compressed JSON, and the scripts that show them.

No script in web/ knows a formula of the plan. The scripts look numbers up, add and compare them, and draw them to
scale.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from string import Template

import numpy as np

from minidist.plan.cluster.hardware import ClusterSpec, load
from minidist.plan.cluster.toml_tables import choose
from minidist.plan.memory import FRAGMENTATION, RESERVED
from minidist.plan.published_runs import family_of, spread_of
from minidist.show.explorer.choices import CHOICES, SLIDERS, Choice, own_choice, with_positions
from minidist.show.explorer.packing import corrections, packed_column, rounded
from minidist.show.explorer.presets import PRESETS
from minidist.show.explorer.table import AXES, DIGITS, FORETOLD, GIGA, MEMORY, TIME, TOKENS, Planner, Table, table_of
from minidist.show.explorer.zoom import NODES_IN_RACK, PODS, RACKS_IN_POD, levels_of
from minidist.show.notebook import png
from minidist.show.palette import AXES as AXIS_COLOURS
from minidist.show.palette import MEANINGS, PAPER, on_paper
from minidist.show.stage.page import in_notebook, packed

WEB = Path(__file__).parent / "web"
# in this order, one script
SCRIPTS = ("lookup", "words", "controls", "bars", "links", "places", "zoom", "map", "explorer")
FACTOR = 7  # digits of the factor between a column and the ones that foretell it
GPUS = ("h100", "h200", "a100")  # nodes of eight, with parts down to the tensor core in hardware.toml
TITLE = "What would training cost?"
COLOURS = {  # parts of memory and of time -> their meaning in the palette
    "memory": {
        "parameters": "parameters",
        "gradients": "gradients",
        "optimizer": "optimizer state",
        "activations": "activations",
        "gathered": "all-gather",
        "recomputed": "recomputed",
        "fragmentation": "lost",
        "reserved": "idle",
    },
    "time": {
        "products": "computing",
        "attention": "attention",
        "elementwise": "elementwise",
        "recompute": "recomputed",
        "bubble": "idle",
        "optimizer": "optimizer",
    }
    | dict.fromkeys(AXES, "communication"),
}
IN_BARS = {name: name for name in ("products", "bubble", "optimizer", *AXES)}  # short names


@dataclass(frozen=True, repr=False)
class Explorer:
    """Planned tables of models on one kind of GPU. Jupyter displays them as a page of sliders.

    Attributes:
        gpu: name of a node in hardware.toml. tables: key of a model -> its table. choices: key -> its Choice.
    """

    gpu: str
    tables: dict[str, Table]
    choices: dict[str, Choice]

    def __repr__(self) -> str:
        return f"<explorer of {', '.join(self.tables)} on {self.gpu}: {self.layouts:,} layouts>"

    @property
    def layouts(self) -> int:
        """Number of legal positions in all tables."""
        return sum(table.reasons.count(0) for table in self.tables.values())

    def html(self) -> str:
        """Return a self-contained page that needs no network."""
        return Template(_file("page.html")).substitute(
            TITLE=TITLE,
            STYLE=_file("style.css"),
            SCRIPT="\n".join(_file(f"{name}.js") for name in SCRIPTS),
            PLANNED=packed(json.dumps(self.as_dict(), separators=(",", ":"))),
        )

    def _repr_html_(self) -> str:
        return in_notebook(self.html(), TITLE, png(draw_memory(self.gpu, tuple(self.tables)), 56), "height:620px")

    def as_dict(self) -> dict:
        """Return the data of the page."""
        cluster = ClusterSpec.parse(f"{self.gpu}:8")
        chip, rack = cluster.accelerator, NODES_IN_RACK * cluster.node_size
        return {
            "gpu": {"key": self.gpu, "name": chip.name, "memory": chip.memory / GIGA, "tokens": TOKENS},
            "spreads": [asdict(spread_of(family_of(sharded))) for sharded in (False, True)],
            "assumed": {"reserved": RESERVED / GIGA, "fragmentation": FRAGMENTATION},
            "sliders": SLIDERS,
            "parts": {
                kind: [
                    [part, name, IN_BARS.get(part, name), MEANINGS[COLOURS[kind][part]]] for part, name in names.items()
                ]
                for kind, names in (("memory", MEMORY), ("time", TIME))
            },
            "axes": {axis: AXIS_COLOURS[axis] for axis in AXES},
            "models": {key: model_as_dict(self.choices[key], table) for key, table in self.tables.items()},
            "presets": [
                {
                    "name": preset.name,
                    "model": preset.model,
                    "note": preset.note,
                    "ran": preset.ran,
                    "position": position,
                }
                for preset in PRESETS
                if preset.model in self.tables
                and (position := preset.position(self.tables[preset.model].sliders)) is not None
            ],
            "places": {"node": cluster.node_size, "rack": rack, "pod": RACKS_IN_POD * rack, "source": PODS},
            "zoom": [level.__dict__ | {"share": level.share} for level in levels_of(cluster)],
        }


def explore(
    models: Sequence[str] = tuple(CHOICES),
    gpu: str = "h100",
    advance: Callable[[str, int], object] = lambda name, total: None,
    positions: str = "",
) -> Explorer:
    """Plan every position of the sliders.

    Args:
        models: names in CHOICES, or descriptions that ``model_of`` takes; each takes some seconds.
        gpu: one of GPUS.
        advance: called with (model, number of calls in all) whenever the layouts on one number of GPUs are planned.
        positions: other positions for sliders, such as ``gpus=24,48;tp=1,3``.

    Raises:
        ValueError: if a model or the GPU is unknown, naming the known ones, or if there is no model.
    """
    if gpu not in GPUS:
        raise ValueError(f"the explorer has no GPU {gpu!r}: {choose(gpu, GPUS)}")
    if not models:
        raise ValueError(f"the explorer needs at least one model: choose from {', '.join(CHOICES)}")
    for model in models:
        if model not in CHOICES and "=" not in model:
            raise ValueError(f"the explorer has no model {model!r}: {choose(model, CHOICES)}")
    chip = load().accelerators[gpu]
    chosen = [
        with_positions(CHOICES[model] if model in CHOICES else own_choice(model), positions)
        for model in dict.fromkeys(models)
    ]
    total = sum(len(one.positions["gpus"]) for one in chosen)
    tables = {
        one.key: table_of(one, gpu, one.sliders(chip), lambda name=one.key: advance(name, total)) for one in chosen
    }
    return Explorer(gpu, tables, {one.key: one for one in chosen})


def draw_memory(gpu: str, models: tuple[str, ...]):
    """Return a matplotlib Figure of memory: a stacked bar for each preset of these models, and a line at the limit.

    Notebooks that run no scripts show it.
    """
    from matplotlib.figure import Figure

    chip = load().accelerators[gpu]
    limit, widest = chip.memory / GIGA, 2 * chip.memory / GIGA
    found = [(preset, CHOICES[preset.model]) for preset in PRESETS if preset.model in models]
    presets = [(one, choice, at) for one, choice in found if (at := one.position(choice.sliders(chip))) is not None]
    figure = Figure(figsize=(10, 1.4 + 0.5 * len(presets)), layout="constrained")
    axes = figure.add_subplot()
    for row, (_, choice, position) in enumerate(presets):
        run, left = Planner(choice, gpu)(position), 0.0
        for part, nbytes in vars(run.memory).items():
            colour, label = on_paper(COLOURS["memory"][part]), "" if row else MEMORY[part]
            axes.barh(row, nbytes / GIGA, left=left, color=colour, label=label)
            left += nbytes / GIGA
        beyond = left > widest
        words = axes.text(min(left, widest), row, f" {left:.0f} GB{' →' if beyond else ''} ", va="center")
        words.set(ha="right" if beyond else "left", backgroundcolor=PAPER["paper"] if beyond else "none")
    axes.axvline(limit, color=PAPER["wrong"], linewidth=2)
    axes.set_yticks(range(len(presets)), [preset.name for preset, *_ in presets])
    axes.invert_yaxis()
    axes.set_xlim(0, widest)
    axes.set_xlabel(f"GB on the fullest GPU; the line is what one {chip.name} has")
    figure.legend(ncols=4, loc="outside upper center")
    return figure


def model_as_dict(choice: Choice, table: Table) -> dict:
    """Return the page's data of one model: its sliders, and each distinct column once."""
    sizes = tuple(map(len, table.sliders.values()))
    shape = choice.shape(table.sliders["sequence"][0])
    exact = {name: np.array(values, np.float64) for name, values in table.columns.items()}
    shown = {name: rounded(values, DIGITS[name]) for name, values in exact.items()}
    written = dict(shown)
    for name, (others, power) in FORETOLD.items():
        factor = rounded(exact[name] / sum(exact[other] for other in others) ** power, FACTOR)
        foretold = factor * sum(shown[other] for other in others) ** power
        written[name], written[f"{name} factor"] = corrections(shown[name], foretold, DIGITS[name]), factor
    numbers: dict[str, int] = {}
    columns = {}
    for name, values in written.items():
        text = json.dumps(packed_column(values, sizes))
        columns[name] = numbers.setdefault(text, len(numbers))
    return {
        "name": shape.name,
        "parameters": shape.parameters / 1e9,
        "batch": choice.batch_tokens,
        "source": choice.source,
        "sliders": table.sliders,
        "columns": columns,
        "foretold": {name: (*how, DIGITS[name]) for name, how in FORETOLD.items()},
        "numbers": [json.loads(text) for text in numbers],
        "reasons": packed_column(np.array(table.reasons, np.float64), sizes),
        "texts": table.texts,
    }


@cache
def _file(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")
