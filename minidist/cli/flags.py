"""The flags that describe a run: one for each field of Layout and TrainConfig. A new field needs a line in HELP."""

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from inspect import get_annotations

from minidist import backend
from minidist.data.documents import is_documents
from minidist.data.packing import PACKINGS
from minidist.nn.attention.tiled import SOFTMAXES
from minidist.nn.config import ARCHITECTURES, ATTENTION, GATES, SCOPES
from minidist.train.config import RUN_CHOICES, TrainConfig
from minidist.train.layout import Layout
from minidist.train.notation import number, whole_number
from minidist.train.rules import LAYOUT_CHOICES
from minidist.train.share import corpus_of

HELP = {
    # of Layout
    "dp": "data-parallel ranks",
    "algorithm": "all-reduce algorithm for gradients, or collectives of ZeRO; tensor parallelism chooses its own",
    "sync": "when to sum gradients: one by one after backward (naive), in buckets after it (bucketed) or during it "
    "(overlapped). Looser: one step late (delayed), on parameter servers in step (server) or as they come (async), or "
    "not at all for some steps (local)",
    "bucket_mb": "size of a gradient bucket, MiB",
    "zero": "ZeRO stage; 0 is plain data parallelism",
    "shard": "ranks that share one copy of the sharded state, with --zero; 0 is all dp x cp of them",
    "prefetch": "1 gathers the next block's parameters early, with --zero 3",
    "reshard_after_forward": "1 frees a block's full parameters between forward and backward, with --zero 3",
    "grad_sync": "when to sum gradients over the ranks, with --zero 2 or 3: after each micro-batch, keeping shards, or "
    "once a step, keeping full gradients until then",
    "tp": "tensor-parallel ranks; must divide the number of heads",
    "sp": "1 adds sequence parallelism: the tensor-parallel ranks split what they would otherwise replicate",
    "ep": "expert-parallel ranks, among the data-parallel ones, which share the --experts; must divide --dp",
    "cp": "context-parallel ranks, each with some of the --sequence-chunks",
    "cp_kind": "how each context-parallel rank's queries reach all keys: the keys go round a ring (zigzag: equal "
    "work; balanced: equal work for packed documents too), or are gathered, or heads are split instead of tokens "
    "(ulysses)",
    "pp": "pipeline-parallel ranks",
    "schedule": "pipeline schedule",
    "virtual": "pipeline stages per rank; more than 1 makes the schedule interleaved",
    "stages": "layers of each pipeline stage, such as 2+3+3 (default: split evenly)",
    "recompute": "activations to recompute in backward: none, those of attention that grow with the square of the "
    "context (selective), or all (full)",
    "node_size": "ranks per node; must divide the number of ranks. Bytes between nodes are then counted, and "
    "collectives send fewer of them; 0 is all ranks",
    "servers": "ranks in addition to --dp that hold the parameters, with --sync server or async; 0 makes it 1",
    "staleness": "most steps by which a worker may be ahead of the slowest, with --sync server; 0 is synchronous",
    "arrivals": "order in which a server applies gradients, with --sync async or a --staleness: live, as they "
    "arrive; seeded, a repeatable order; 1+1+4, one in which the third worker takes four times as long for a step",
    "local_steps": "steps that a worker takes alone before the workers average, with --sync local",
    "outer_lr": "learning rate of the outer step that follows, with --sync local",
    "outer_momentum": "Nesterov momentum of the outer step, with --sync local; 0 for none",
    "fragments": "parts of the model that take turns in the outer step, with --sync local, so that fewer bytes are "
    "sent at once",
    "compress": "what to send instead of a bucket's gradients: bf16, int8, onebit, topk:SHARE or powersgd:RANK "
    "(default: the gradients themselves)",
    "error_feedback": "1 adds what --compress leaves out to the next step's gradients; 0 drops it",
    # of TrainConfig
    "layers": "transformer blocks",
    "heads": "attention heads; must divide the width",
    "width": "width of the residual stream",
    "context": "context length, tokens",
    "vocab": "size of the vocabulary; with --tokenizer, at least the tokenizer's",
    "global_batch": "samples per step, over all ranks",
    "rampup_batch_size": "begin with START samples per step, and grow in steps of INCREMENT to "
    "the global batch over the first SAMPLES samples (default: no ramp)",
    "micro_batch": "samples per forward and backward pass",
    "steps": "optimizer steps",
    "optimizer": "AdamW; LAMB, which scales each matrix's update by the matrix's norm (for large batches); or SGD "
    "without momentum, which keeps no state",
    "lr": "peak learning rate",
    "warmup": "steps of linear warm-up",
    "lr_schedule": "learning rate after the warm-up: half a cosine down to a tenth; constant; or constant until the "
    "last --lr-decay-steps, then linear down to a tenth (wsd)",
    "lr_decay_steps": "length of the decay, steps, with --lr-schedule wsd",
    "clip": "maximum global gradient norm",
    "weight_decay": "weight decay: decoupled in AdamW and SGD, part of the update in LAMB",
    "arch": "architecture: gpt2, or llama with RMSNorm, rotary positions, SwiGLU and no biases",
    "hidden": "hidden units of an MLP; 0 for 4 times the width, or 8/3 times with llama",
    "kv_heads": "llama: heads of keys and values; must divide the number of heads; 0 for one per head",
    "rope_base": "llama: base of the rotary angles",
    "tied": "llama: 1 shares the embedding's weight with the output",
    "dropout": "dropout probability",
    "attention": "plain holds the scores of all pairs of tokens; tiled holds one tile of them at a time, as "
    "FlashAttention does",
    "attention_tile": "queries, and keys, per tile, with --attention tiled",
    "softmax": "exact merges tiles with the same bits in any order; online32 is the usual float32 online softmax",
    "sequence_chunks": "parts of the context that are computed separately; a multiple of --cp",
    "experts": "number of experts that replace each MLP; 0 for a dense model",
    "top_k": "experts that each token uses, with --experts",
    "expert_hidden": "hidden units of one expert; 0 for as many as a dense MLP has",
    "shared_expert": "hidden units of an expert that every token uses; 0 for none",
    "moe_every": "every N-th layer has experts",
    "gate": "how the router turns logits into scores",
    "capacity": "an expert takes at most X times its even share of the tokens of a micro-batch, and drops the others "
    "(default: none is dropped)",
    "aux_loss": "coefficient of the loss that balances the experts' load; 0 for none",
    "aux_scope": "batch over which --aux-loss balances the load",
    "z_loss": "coefficient of the loss that keeps the router's logits small; 0 for none",
    "bias_rate": "step of the routers' biases, which balance the load without a loss; 0 for no biases",
    "expert_nodes": "nodes that the experts are spread over evenly",
    "route_nodes": "most nodes whose experts a token may use; 0 for all",
    "seed": "seed of weights, data and dropout",
    "precision": "precision of the model's parameters and activations; the optimizer keeps float32 weights",
    "products": "exact gives the same bits on every machine, and takes two to three times as long",
    "loss_scale": "fixed loss scale, with --precision fp16; 0 adjusts it automatically, 1 turns it off",
    "reduce_dtype": "dtype of sums across micro-batches and ranks; float32 shows the drift that other systems accept",
    "text": "train on this file, folder of text files, or JSON lines (default: the course's own prose)",
    "packing": "random: samples from random places of one text. All others use each document once an epoch: join "
    "them and cut every --context tokens, pad each, or fit several into a sample (default for folders and JSON lines: "
    "cut)",
    "document_mask": "0 lets the documents in a sample see each other",
    "restart_positions": "0 counts positions from the start of the sample, not of each document",
    "tokenizer": "a Hugging Face tokenizer.json; needs the package tokenizers (default: bytes)",
    "backend": "array library; cupy needs an NVIDIA GPU",
}
CHOICES = LAYOUT_CHOICES | RUN_CHOICES | {
    "arch": ARCHITECTURES, "tied": (0, 1), "attention": ATTENTION, "softmax": tuple(SOFTMAXES), "gate": GATES,
    "aux_scope": SCOPES,
}  # fmt: skip
METAVARS = {
    "rampup_batch_size": "START,INCREMENT,SAMPLES", "stages": "N+N", "text": "FILE", "tokenizer": "FILE",
    "arrivals": "live|seeded|X+X", "compress": "METHOD",
}  # fmt: skip


def reader(read: Callable[[str], int | float]) -> Callable[[str], int | float]:
    """Return a reader of flag values for argparse that shows the error message of ``read``."""

    def checked(text: str) -> int | float:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


integer, real = reader(whole_number), reader(number)
READERS = {int: integer, float: real, float | None: real, str: str, str | None: str}
LETTERS = {int: "N", float: "X", float | None: "X"}


def add_config(parser: argparse.ArgumentParser, **decided_later) -> None:
    """Add the flags of TrainConfig, and --impl; see ``add_fields`` for ``decided_later``."""
    parser.add_argument(
        "--impl",
        metavar="FOLDER",
        help="train on your own code and compare with the library: exercises, solutions or a folder of chNN_*.py files",
    )
    add_fields(parser, TrainConfig, **decided_later)


def add_fields(parser: argparse.ArgumentParser, settings: type, **decided_later) -> None:
    """Add a flag for each field of a dataclass, and a group of flags for each of the records that make it up.

    Args:
        decided_later: field -> its default, or words for it. Such a flag's value is None unless the user gives one.
    """
    groups = {}
    for record in reversed(settings.__mro__):
        if own := get_annotations(record):
            groups |= dict.fromkeys(own, parser.add_argument_group((record.__doc__ or "").partition(".")[0]))
    for field in fields(settings):
        usual = decided_later.get(field.name, field.default)
        groups[field.name].add_argument(
            "--" + field.name.replace("_", "-"),
            type=READERS[field.type],
            default=None if field.name in decided_later else field.default,
            choices=CHOICES.get(field.name),
            metavar=None if field.name in CHOICES else METAVARS.get(field.name, LETTERS.get(field.type)),
            help=HELP[field.name] + ("" if usual in (None, "") else f" (default: {usual})"),
        )


class HelpByGroup(argparse.Action):
    """Action of ``-h`` for a command with many flags: shows the usual ones and the names of the groups.

    ``-h WORD`` shows the flags with the word in their name, or in that of their group; ``-h all`` shows all flags.

    Args:
        usual: flags that ``-h`` alone shows, besides the positional arguments.
    """

    def __init__(self, option_strings: list[str], dest: str, usual: tuple[str, ...]) -> None:
        super().__init__(option_strings, dest, nargs="?", metavar="WORD", help="these; those with this word; all")
        self.usual = {*usual, "-h"}

    def __call__(self, parser: argparse.ArgumentParser, namespace, word, option_string=None) -> None:
        groups = {group.title or "": group._group_actions for group in parser._action_groups if group._group_actions}
        asked = "" if word in (None, "all") else word.lower().replace("_", "-")
        found = False
        for title, flags in groups.items():
            for flag in flags:
                usual = not flag.option_strings or self.usual & {*flag.option_strings}
                named = asked in title.lower() or any(asked in name for name in flag.option_strings)
                if not (named if word else usual):
                    flag.help = argparse.SUPPRESS
                found = found or named
        if not found:
            why = f"no flag and no group of flags has {word!r} in its name"
            parser.exit(2, f"{parser.prog}: {why}: -h lists the groups, -h all the flags\n")
        parser.print_help()
        if word is None:
            print(f"\nmore: {parser.prog} -h WORD, with a word of a flag's or a group's name, or -h all")
            print(*(f"  {title}" for title in groups), sep="\n")
        parser.exit()


def defaults(settings: type) -> dict:
    """Return the default of each field, to pass as ``decided_later``: flags that are not given are then None."""
    return {field.name: field.default for field in fields(settings)}


def layout_of(options: argparse.Namespace) -> Layout | None:
    """Return the layout that the options describe; None if they name no setting of it."""
    named = _given(options, Layout)
    return Layout(**named) if named else None


def config_of(options: argparse.Namespace, others: TrainConfig | None = None) -> TrainConfig:
    """Return the run that the options describe; ``others`` has the settings that they do not name.

    Whatever can be checked before a rank starts is checked here.
    """
    named = _given(options, TrainConfig)
    if others is None and "packing" not in named and is_documents(named.get("text")):
        named["packing"] = PACKINGS[0]
    config = replace(others or TrainConfig(), **named)
    tokenizer = corpus_of(config).tokenizer
    if others is None and "vocab" not in named:
        config = replace(config, vocab=tokenizer.vocab)
    if config.vocab < tokenizer.vocab:
        raise ValueError(f"vocab {config.vocab} is too small: {tokenizer.name} has {tokenizer.vocab} tokens")
    backend.find(config.backend)
    return config


def _given(options: argparse.Namespace, settings: type) -> dict:
    """Return the settings that the options name."""
    return given(**{field.name: getattr(options, field.name) for field in fields(settings)})


def given(**values) -> dict:
    """Return the values that flags gave: those that are not None."""
    return {name: value for name, value in values.items() if value is not None}
