"""The flags that describe a run. Layout's and TrainConfig's fields are flags: a new field needs a line of HELP here."""

import argparse
from collections.abc import Callable
from dataclasses import fields

from minidist import backend
from minidist.comm.algorithms import ALL_REDUCE
from minidist.nn.data import load_corpus
from minidist.nn.memory.recompute import MODES
from minidist.nn.precision.policy import POLICIES
from minidist.parallel.tools.schedules import SCHEDULES
from minidist.train.config import TrainConfig
from minidist.train.layout import SYNCS, Layout
from minidist.train.numerals import number, whole_number

HELP = {
    # of Layout
    "dp": "data-parallel ranks",
    "algorithm": "of the gradients' all-reduce, or of ZeRO's collectives; tensor parallelism chooses for itself",
    "sync": "when gradients are summed",
    "bucket_mb": "MiB of gradients in one message",
    "zero": "the stage of ZeRO; 0 for plain data parallelism",
    "shard": "ranks that share one copy, with --zero; 0 for all",
    "prefetch": "gather the next block early, with --zero 3",
    "reshard_after_forward": "give a block's parameters up between forward and backward, with --zero 3",
    "tp": "tensor-parallel ranks; they divide the heads",
    "sp": "split the sequence over them too, where tensor parallelism does not",
    "pp": "pipeline-parallel ranks",
    "schedule": "of the pipeline",
    "virtual": "stages on each of its ranks; more than 1 makes the schedule interleaved",
    "stages": "how many layers each stage has, as in 2+3+3; default: spread evenly",
    "recompute": "activations to compute again in backward: of attention what grows with context squared, or all",
    # of TrainConfig
    "layers": "transformer blocks",
    "heads": "attention heads; they divide the width",
    "width": "of the residual stream",
    "context": "tokens that the model sees at once",
    "global_batch": "samples in a step, over all ranks",
    "micro_batch": "samples in one forward and backward pass",
    "steps": "optimizer steps",
    "lr": "peak learning rate",
    "warmup": "steps of linear warm-up, before the cosine",
    "clip": "greatest global gradient norm",
    "weight_decay": "AdamW's decoupled decay",
    "dropout": "share of activations dropped",
    "seed": "of weights, data and dropout",
    "precision": "of parameters and activations in the model; the optimizer's weights stay float32",
    "loss_scale": "a fixed scale of the loss, with --precision fp16; 0 to have it found, 1 for none",
    "reduce_dtype": "in which sums cross micro-batches and ranks; float32 shows the drift that others live with",
    "text": "train on this file (default: Python's own documentation)",
    "backend": "what computes; cupy needs an NVIDIA GPU",
}
CHOICES = {
    "algorithm": ("auto", *ALL_REDUCE),
    "sync": SYNCS,
    "zero": (0, 1, 2, 3),
    "prefetch": (0, 1),
    "reshard_after_forward": (0, 1),
    "sp": (0, 1),
    "schedule": tuple(SCHEDULES),
    "recompute": MODES,
    "precision": tuple(POLICIES),
    "reduce_dtype": ("float64", "float32"),
    "backend": ("numpy", "cupy"),
}


def reader(read: Callable[[str], int | float]) -> Callable[[str], int | float]:
    """What argparse calls to read a flag's value, and whose error it shows as it is."""

    def told(text: str) -> int | float:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return told


integer, real = reader(whole_number), reader(number)
READERS = {int: integer, float: real, str: str}


def add_layout(parser: argparse.ArgumentParser) -> None:
    _add_fields(parser.add_argument_group("layout: how the run is split"), Layout)


def add_config(parser: argparse.ArgumentParser, **defaults) -> None:
    """Add the flags that say what is trained. ``defaults`` take the place of TrainConfig's; None is found out later."""
    parser.add_argument(
        "--impl", metavar="FOLDER", help="train on your own functions: exercises, solutions or a folder of chNN_*.py"
    )
    _add_fields(parser.add_argument_group("the run: what is trained"), TrainConfig, **defaults)


def _add_fields(group, settings: type, **defaults) -> None:
    """Add a flag for each field of a dataclass."""
    for field in fields(settings):
        default = defaults.get(field.name, field.default)
        kind = field.type if isinstance(field.type, type) else str
        flag = "--" + field.name.replace("_", "-")
        usual = field.default if default is None else default
        more = ", or more if a layout needs them" if default is None and usual is not None else ""
        text = HELP[field.name] + ("" if usual is None else f" (default: {usual}{more})")
        metavar = None if field.name in CHOICES else {int: "N", float: "X", str: "FILE"}[kind]
        group.add_argument(
            flag, type=READERS[kind], default=default, choices=CHOICES.get(field.name), metavar=metavar, help=text
        )


def layout_of(options: argparse.Namespace) -> Layout:
    return Layout(**{field.name: getattr(options, field.name) for field in fields(Layout)})


def config_of(options: argparse.Namespace) -> TrainConfig:
    """The run that the options describe, with everything checked that can be before a rank starts."""
    config = TrainConfig(**{field.name: getattr(options, field.name) for field in fields(TrainConfig)})
    load_corpus(config.text, config.context)
    backend.find(config.backend)
    return config
