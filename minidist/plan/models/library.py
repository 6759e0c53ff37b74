"""The published models by name, and a model by hand: ``llama3-405b``, or ``layers=96,width=12288,heads=96,...``."""

from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path

from minidist.plan.cluster.toml_tables import choose, from_table, read_toml
from minidist.plan.models.shape import ModelShape
from minidist.train.notation import shortened, whole_number

DATA = Path(__file__).with_name("models.toml")
LARGEST_SIZE = 10**9  # a thousand times those of the largest models
BY_HAND = {field.name: field for field in fields(ModelShape) if field.type in (int, bool)}


@cache
def published() -> dict[str, ModelShape]:
    """The models of models.toml, by name."""
    return {name: from_table(ModelShape, table, f"{DATA}: [{name}]") for name, table in read_toml(DATA).items()}


def model_of(text: str) -> ModelShape:
    """A published model by its name, or one by hand as ``key=value,key=value``.

    By hand, layers, width, heads, vocab and context are needed; the rest is GPT's unless given: kv_heads, hidden,
    norm_vectors, and as 0 or 1 gated, biases, tied, learned_positions and dropout.

    Raises:
        ValueError: for an unknown name or key, with the nearest known one, and for a value that no model can have.
    """
    if "=" not in text:
        if text not in published():
            raise ValueError(f"unknown model {text!r}: {choose(text, published())}")
        return published()[text]
    given: dict[str, int | bool] = {}
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in BY_HAND:
            raise ValueError(f"model {text}: unknown key {key!r}: {choose(key, BY_HAND)}")
        if key in given:
            raise ValueError(f"model {text}: {key} is given twice")
        try:
            number = whole_number(value)
        except ValueError as error:
            raise ValueError(f"model {shortened(text)}: {key}={error}") from None
        if not 0 <= number <= LARGEST_SIZE:
            raise ValueError(f"model {shortened(text)}: {key}={number} must be from 0 to {LARGEST_SIZE:,}")
        if BY_HAND[key].type is bool and value not in "01":
            raise ValueError(f"model {text}: {key}={value} must be 0 or 1")
        given[key] = bool(number) if BY_HAND[key].type is bool else number
    missing = [name for name, field in BY_HAND.items() if field.default is MISSING and name not in given]
    if missing:
        raise ValueError(f"model {text}: {', '.join(missing)} missing: a model by hand needs at least these")
    try:
        return ModelShape(name=text, **given)
    except ValueError as error:
        raise ValueError(f"model {text}: {error}") from None
