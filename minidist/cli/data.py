"""``minidist data``: measures a text's documents and what each packing makes of them, or prepares them for training.

Skipped tiles, the work of ranks, and padding to the longest document of a micro-batch depend on which documents meet in
one. So they are measured over the first micro-batches of a run, in its order.
"""

from dataclasses import asdict, replace
from math import gcd
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from minidist.cli.flags import HELP, integer
from minidist.cli.output import bar, check_outputs, console_of, json_output, terminal_console, titled, written_last
from minidist.data.documents import Documents, prepare
from minidist.data.packing import PACKINGS, PADDED, Packing
from minidist.data.samples import DocumentCorpus, targets_in
from minidist.nn.attention.tiled import TileMask, scores_in, tiles
from minidist.nn.tokenizer import open_tokenizer
from minidist.parallel.context import KINDS, chunks_of_ranks, parts_of, work_of_chunks
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.share import corpus_of

MICRO_BATCHES = 32  # at the start of a run, over which these are measured
CHUNKS = 4  # sequence chunks for each context-parallel rank, by default: enough for every cp_kind
BIN = 4  # each row of the histogram ends at this many times its beginning
WORDS = {  # number of all documents -> its description
    "files": "files", "documents": "documents", "empty": "empty documents, left out",
    "without_targets": "documents of one token, which has no target",
    "longer": "documents longer than the context, cut into pieces",
    "held_out": "documents held out for validation (of only one, its end)",
    "tokens": "tokens", "bytes_per_token": "bytes per token", "prompt_tokens": "tokens of prompts",
    "targets": "targets that count", "least": "tokens of the shortest document",
    "median": "tokens of the median document", "ninetieth": "tokens of a document, 90th percentile",
    "most": "tokens of the longest document",
}  # fmt: skip


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "data",
        help="documents: their lengths, what packing wastes, a prepared folder",
        description="Show the documents of a text, and what each packing makes of them: samples in an epoch, wasted "
        "places, tiles of attention that are skipped, the work of context-parallel ranks. With --out, write their "
        "tokens to a folder instead, for `minidist train --text FOLDER`.",
    )
    command.set_defaults(command=_data)
    command.add_argument("text", metavar="TEXT", help="file, folder of text files, JSON lines, or prepared folder")
    command.add_argument("--out", metavar="FOLDER", help="write the tokens to this new folder, and measure nothing")
    command.add_argument("--tokenizer", metavar="FILE", help=HELP["tokenizer"])
    command.add_argument("--packing", choices=PACKINGS, help="show this packing alone (default: all)")
    for name in ("context", "micro_batch", "global_batch", "seed"):
        usual = getattr(TrainConfig, name)
        flag, words = "--" + name.replace("_", "-"), f"{HELP[name]} (default: {usual})"
        command.add_argument(flag, type=integer, default=usual, metavar="N", help=words)
    command.add_argument("--cp", type=integer, default=1, metavar="N", help="show the work of N context-parallel ranks")
    words = f"parts of the context (default: {CHUNKS} for each of the --cp ranks, if they divide it)"
    command.add_argument("--sequence-chunks", type=integer, metavar="N", help=words)
    command.add_argument("--attention-tile", type=integer, metavar="N", help="tokens in a tile (default: a chunk)")
    command.add_argument("--json", metavar="PATH", help="write the numbers to this file; - for standard output")


def _data(options) -> int:
    check_outputs({"json": options.json}, options.text, options.tokenizer, out=options.out)
    console = console_of(options)
    if options.out is not None:
        columns = TextColumn("{task.completed:,} documents"), BarColumn(), TimeElapsedColumn()
        errors = terminal_console(stderr=True)
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
            manifest = prepare(options.text, open_tokenizer(options.tokenizer), Path(options.out), progress.track)
        told = f"{options.out}: files: {len(manifest.files):,}, documents: {manifest.documents:,} (left out as empty: "
        told += f"{manifest.empty:,}), tokens: {manifest.tokens:,}, bytes per token: {manifest.bytes_per_token:.2f}"
        content = asdict(manifest)
    else:
        content, told = _measured(options), ""
    with written_last(console, json_output(options.json, content)):
        if told:
            console.print(told, soft_wrap=True)
        else:
            _print(console, content, options)
    return 0


def _measured(options) -> dict:
    """Return all numbers: those of the documents, and those of each packing."""
    layout, chunks, tile = Layout(cp=options.cp), options.sequence_chunks, options.attention_tile
    if chunks is None:
        chunks = gcd(options.context, CHUNKS * layout.cp)
    config = TrainConfig(
        context=options.context, global_batch=options.global_batch, micro_batch=options.micro_batch, seed=options.seed,
        sequence_chunks=chunks, attention_tile=options.context if tile is None else tile,
    )  # fmt: skip
    if chunks % layout.cp:
        raise ValueError(
            f"--cp {layout.cp} does not divide the {chunks} sequence chunks of a context of {config.context}: choose "
            "another --sequence-chunks or --context"
        )
    settings = replace(config, text=options.text, tokenizer=options.tokenizer, packing=PACKINGS[0])
    corpus = corpus_of(settings)
    assert isinstance(corpus, DocumentCorpus)
    content = {"text": options.text, "context": config.context, "cp": layout.cp}
    content |= {"documents": _numbers(corpus, config.context), "histogram": _histogram(corpus.documents)}
    content["packings"] = {}
    for kind in [options.packing] if options.packing else PACKINGS:
        packing = replace(corpus.training.packing, kind=kind)
        samples = replace(corpus.training, packing=packing)
        found = _waste(packing) | {"steps": len(packing) / config.global_batch}
        content["packings"][kind] = found | _attention(replace(corpus, training=samples), config, layout.cp)
    return content


def _numbers(corpus: DocumentCorpus, context: int) -> dict[str, float]:
    """Return the numbers that WORDS describes."""
    documents, manifest = corpus.documents, corpus.documents.manifest
    lengths = documents.lengths
    median, ninetieth = np.percentile(lengths, (50, 90), method="inverted_cdf").tolist()
    return {
        "files": len(manifest.files), "documents": len(documents), "empty": manifest.empty,
        "without_targets": int((lengths == 1).sum()), "longer": int((lengths - 1 > context).sum()),
        "held_out": len(corpus.validation.packing.documents), "tokens": len(documents.tokens),
        "bytes_per_token": corpus.bytes_per_token, "prompt_tokens": int(documents.bounds[:, 1].sum()),
        "targets": targets_in(documents), "least": int(lengths.min()), "median": median, "ninetieth": ninetieth,
        "most": int(lengths.max()),
    }  # fmt: skip


def _histogram(documents: Documents) -> list[dict[str, int]]:
    """Count the documents by length, from the shortest to the longest."""
    lengths, rows, low = documents.lengths, [], 1
    while low <= lengths.max():
        count = int(((low <= lengths) & (lengths < BIN * low)).sum())
        if rows or count:
            rows.append({"from": low, "to": BIN * low - 1, "documents": count})
        low *= BIN
    return rows


def _waste(packing: Packing) -> dict[str, float]:
    """Measure an epoch of a packing: samples, the share of places that are padding, and documents cut needlessly."""
    cut, context = 0, packing.context
    if packing.kind == "cut":
        places = packing.documents.lengths - 1
        ends = np.cumsum(places)
        cut = int(((places <= context) & ((ends - places) // context < (ends - 1) // context)).sum())
    return {"samples": len(packing), "padding": 1 - packing.places / (len(packing) * context), "cut_that_fit": cut}


def _attention(corpus: DocumentCorpus, config: TrainConfig, cp: int) -> dict:
    """Measure which share of the scores of a run's first micro-batches documents save, tiles in the future left out.

    Scores past the end of a shorter micro-batch count as saved, and its padding is measured here.

    With several context-parallel ranks, also return for each cp_kind that the chunks allow the work of the busiest rank
    of each micro-batch, for which the others wait, over that of the mean.
    """
    packing, cut = corpus.training.packing, (config.attention_tile, config.sequence_chunks)
    kinds = [kind for kind in KINDS if cp > 1 and config.sequence_chunks % parts_of(cp, kind) == 0]
    busiest, total, computed, places, used = dict.fromkeys(kinds, 0.0), 0, 0, 0, 0
    for number in range(MICRO_BATCHES):
        which = config.seed, number * config.micro_batch, config.micro_batch
        tokens, _, documents = corpus.micro_batch(*which)
        places += tokens.size
        used += sum(piece.places for sample in corpus.numbers(*which) for piece in packing.sample(sample))
        mask = TileMask(tiles(tokens.shape[1], *cut), documents)
        computed += scores_in(mask.pairs())
        work = work_of_chunks(config.sequence_chunks, documents)
        total += sum(work)
        for kind in kinds:
            shares = chunks_of_ranks(cp, len(work), kind, documents)
            most = max(sum(work[chunk] for chunk in share) for share in shares)
            busiest[kind] += sum(work) / cp if kind == "ulysses" else most  # its ranks split heads: equal work
    of_one_document = MICRO_BATCHES * scores_in(TileMask(tiles(config.context, *cut)).pairs())
    return {
        **({"padding": 1 - used / places} if packing.kind in PADDED else {}),
        "skipped_tiles": 1 - computed / of_one_document,
        "busiest_over_mean": {kind: cp * work / total for kind, work in busiest.items()},
    }


def _print(console: Console, content: dict, options) -> None:
    numbers, histogram, packings = (content[name] for name in ("documents", "histogram", "packings"))
    table = titled(content["text"], [""], ["number"])
    for name, words in WORDS.items():
        table.add_row(words, f"{numbers[name]:,.2f}" if name == "bytes_per_token" else f"{numbers[name]:,}")
    console.print(table)
    table = titled("lengths of documents", ["tokens"], ["documents"])
    table.add_column("")
    for row in histogram:
        share = row["documents"] / max(each["documents"] for each in histogram)
        table.add_row(f"{row['from']:,} to {row['to']:,}", f"{row['documents']:,}", bar(share))
    console.print(table)
    headings = "samples", "steps", "padding", "fit, but cut", "tiles skipped"
    measured = f"tiles, and padding to the longest, over the first {MICRO_BATCHES} micro-batches"
    table = titled(f"an epoch in samples of {content['context']:,} places; {measured}", [""], headings)
    for kind, found in packings.items():
        shares = [f"{found[name]:.1%}" for name in ("padding", "skipped_tiles")]
        counts = f"{found['samples']:,}", f"{found['steps']:,.1f}"
        table.add_row(kind, *counts, shares[0], f"{found['cut_that_fit']:,}", shares[1])
    console.print(table)
    if content["cp"] > 1:
        kinds = [*next(iter(packings.values()))["busiest_over_mean"]]
        table = titled(f"cp={content['cp']}: work of the busiest rank over the mean, by cp_kind", [""], kinds)
        for kind, found in packings.items():
            table.add_row(kind, *(f"{work:.2f}" for work in found["busiest_over_mean"].values()))
        console.print(table)
