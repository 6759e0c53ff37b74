"""``minidist checkpoint``: lists the checkpoints in a folder, verifies them, and exports one as a plain file."""

import re
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from minidist.cli.flags import given, reader
from minidist.cli.output import Output, check_outputs, console_of, errors_naming, json_output, written_last
from minidist.files import replacing
from minidist.nn.tokenizer import TOKENIZER
from minidist.plan.units import in_bytes
from minidist.train.checkpoint.commit import committed, latest, saves
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.hugging_face import write_folder
from minidist.train.checkpoint.manifest import BadCheckpoint, Manifest, config_in, layout_in
from minidist.train.checkpoint.restore import FullArrays, check_files, export, find_checkpoint
from minidist.train.checkpoint.shards import DTYPES, SHARD_SIZE

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "checkpoint",
        help="list, verify and export checkpoints",
        description="List the checkpoints that `minidist train --save DIR` wrote. Every file is compared with its "
        "SHA-256. Exit status: 0 if all checkpoints are whole, 1 if one is not.",
    )
    command.set_defaults(command=_checkpoint)
    command.add_argument("folder", metavar="DIR", help="folder of checkpoints, or one checkpoint in it")
    command.add_argument(
        "--export",
        nargs="+",
        metavar=("PATH", "FOLDER"),
        help="write the newest checkpoint, or the one that DIR names, to one safetensors file: full arrays, by name. "
        "--export hf FOLDER writes config.json, model.safetensors and the run's tokenizer.json there, for Hugging "
        "Face's transformers",
    )
    command.add_argument(
        "--dtype", choices=DTYPES, help="what to round weights to, with --export hf (default: float32, as they are)"
    )
    command.add_argument(
        "--shard-size",
        type=reader(byte_count),
        metavar="SIZE",
        help="largest file of weights, with --export hf; a larger model is split into model-00001-of-00002.safetensors "
        f"and so on (default: {SHARD_SIZE // UNITS['GB']}GB)",
    )
    command.add_argument(
        "--optimizer", action="store_true", help="export the optimizer's states too, and not the weights alone"
    )
    command.add_argument("--json", metavar="PATH", help="write the list to this file; - for standard output")


def byte_count(text: str) -> int:
    """Parse a number of bytes such as 5GB or 200MB, in powers of ten, as in transformers' max_shard_size."""
    found = re.fullmatch(r"([0-9]{1,6})([KMGT]B)", text.upper())
    if not found or not int(found[1]):
        raise ValueError(f"{text!r} is not a size: write it as in 5GB or 200MB")
    return int(found[1]) * UNITS[found[2]]


def _checkpoint(options) -> int:
    path, *folders = options.export or (None,)
    if len(folders) != (path == "hf"):
        raise ValueError(f"--export takes PATH or hf FOLDER, not {' '.join(options.export)}")
    if options.optimizer and (path is None or folders):
        raise ValueError("--optimizer needs --export PATH")
    named = given(dtype=options.dtype, shard_size=options.shard_size)
    if named and not folders:
        raise ValueError("--dtype and --shard-size apply to files for transformers: add --export hf FOLDER")
    hf = {"export hf": folders[0]} if folders else {}
    check_outputs({"json": options.json, "export": None if folders else path}, **hf)
    newest = find_checkpoint(options.folder)
    one = newest.resolve() == Path(options.folder).resolve()
    root, disk = newest.parent, Disk()
    names = [newest.name] if one else saves(disk, root)
    there, last = committed(disk, root), latest(disk, root)
    rows = [_row(root, name, name in there) for name in names]
    files = [json_output(options.json, {"latest": last, "checkpoints": rows})]
    problem = "" if path is None else next(row["problem"] for row in rows if row["name"] == newest.name)
    exported = f"{newest.name} exported: {' '.join(options.export or ())}"
    if folders and not problem:
        with errors_naming("export", folders[0]):
            _export_hf(newest, Path(folders[0]), named)
    elif path is not None and not problem:
        manifest = Manifest.read(disk, newest)
        files.append(Output("export", path, lambda to: export(newest, manifest, to, options.optimizer), exported))
    console = console_of(options)
    with written_last(console, *files):
        _print(console, rows, last)
        if problem:
            raise BadCheckpoint(problem)
        if folders:
            console.print(exported, soft_wrap=True)
    return 0 if all(row["whole"] for row in rows if row["committed"]) else 1


def _export_hf(checkpoint: Path, folder: Path, options: dict) -> None:
    """Write the checkpoint's model for Hugging Face's transformers, with its run's tokenizer if that has one.

    Args:
        options: keyword arguments of ``write_folder``.
    """
    disk = Disk()
    manifest = Manifest.read(disk, checkpoint)
    with FullArrays(checkpoint, manifest) as arrays:
        write_folder(folder, config_in(manifest).model, arrays, **options)  # pyright: ignore[reportArgumentType]  # it only looks up
    tokenizer = folder / TOKENIZER
    tokenizer.unlink(missing_ok=True)  # left by the model that was there before
    if TOKENIZER in manifest.files:
        with replacing(tokenizer) as new:
            new.write_bytes(disk.read(checkpoint / TOKENIZER))


def _row(root: Path, name: str, is_committed: bool) -> dict:
    """Describe one save, for the table and the JSON."""
    row = {"name": name, "committed": is_committed, "whole": False, "problem": ""}
    if not is_committed:
        return row | {"problem": "cut off before its manifest was written; the next run removes it"}
    try:
        manifest = Manifest.read(Disk(), root / name)
        row |= {
            "step": manifest.progress.step,
            "loss": manifest.progress.losses[-1],
            "layout": str(layout_in(manifest)),
            "precision": config_in(manifest).precision,
            "files": len(manifest.files),
            "bytes": sum(entry.bytes for entry in manifest.files.values()),
        }
        check_files(root / name, manifest)
    except BadCheckpoint as error:
        return row | {"problem": str(error)}
    return row | {"whole": True}


def _print(console: Console, rows: list[dict], newest: str | None) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("checkpoint", "layout", "precision"):
        table.add_column(column, no_wrap=column != "layout", overflow="fold")
    for column in ("steps", "loss", "files", "size"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("whole")
    for row in rows:
        name = row["name"] + ("*" if row["name"] == newest else "")
        whole = "yes" if row["whole"] else "NO" if row["committed"] else "not committed"
        if "step" not in row:
            table.add_row(name, *[""] * 6, whole)
            continue
        numbers = str(row["step"]), f"{row['loss']:.4f}", str(row["files"]), in_bytes(row["bytes"])
        table.add_row(name, row["layout"], row["precision"], *numbers, whole)
    console.print(table)
    if newest in [row["name"] for row in rows]:
        console.print("*: the latest")
    for row in rows:
        if row["problem"]:
            console.print(f"{row['name']}: {row['problem']}", soft_wrap=True)
