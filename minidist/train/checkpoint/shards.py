"""Tensors in safetensors files: in one file, or in several shards with an index that says which has which tensor.

    8 bytes       length of the header, little-endian
    the header    JSON: {"norm.weight": {"dtype": "BF16", "shape": [4096], "data_offsets": [0, 8192]}, ...}
    the data      each tensor's numbers, little-endian, in C order; offsets count from the end of the header

So a reader knows where each number of a tensor is, and reads no others. The index, model.safetensors.index.json, has
{"weight_map": {"norm.weight": "model-00001-of-00002.safetensors", ...}}. If there is a model.safetensors too, it is the
model, as for transformers.

safetensors' own functions for NumPy have no bfloat16, and need all tensors of a file in memory to write it. Here files
are written tensor by tensor. Anybody may have written the files that are read, so a header is checked against the
file's size before it is used.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta, ValidationError, convert

from minidist.files import replacing
from minidist.nn.precision.formats import FORMATS
from minidist.overrides import overridable
from minidist.train.checkpoint.disk import BadCheckpoint
from minidist.train.checkpoint.manifest import Count

TENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}  # by their names in config.json
STORED = {"F32": np.dtype("<f4"), "BF16": np.dtype("<u2"), "F16": np.dtype("<f2")}  # BF16: the bits
SHARD_SIZE = 5 * 10**9  # bytes, as is usual for Hugging Face's files
JSON_BYTES = 1 << 24  # at most: an index of 100,000 tensors. Parsed, the worst JSON takes some 30 times as much memory


@dataclass(frozen=True)
class Entry:
    """A tensor's entry in a header."""

    dtype: str
    shape: Annotated[tuple[Count, ...], Meta(max_length=8)]
    data_offsets: tuple[Count, Count]


@dataclass(frozen=True)
class Stored:
    """The place of a tensor in a file."""

    path: Path
    dtype: str  # safetensors' name
    shape: tuple[int, ...]
    start: int  # offset in the file, in bytes


@overridable
def read_slice(folder: Path, tensor: str, rows: range, columns: range) -> np.ndarray:
    """Read some rows and columns of a tensor, (rows, columns) float32, and no others except as the system reads ahead.

    Args:
        tensor: name of a tensor of F32, F16 or BF16, in model.safetensors or in the shard that
            model.safetensors.index.json names.
        rows: along its first axis.
        columns: along all its other axes laid flat: one column if there are none.

    Raises:
        BadCheckpoint: if there is no such tensor, if it has other rows or columns, or if a file contradicts itself.
    """
    shards = {tensor: TENSORS} if (folder / TENSORS).is_file() else shard_of_each(folder)
    if tensor not in shards:
        raise BadCheckpoint(f"{folder / INDEX} names no file that has {tensor}")
    path = folder / shards[tensor]
    found = header_of(path).get(tensor)
    if found is None:
        raise BadCheckpoint(f"{path} has no tensor {tensor}")
    shape = prod(found.shape[:1]), prod(found.shape[1:])  # a number without axes is one row
    inside = all(0 <= part.start <= part.stop <= size for part, size in zip((rows, columns), shape, strict=True))
    if found.dtype not in STORED or not inside:
        raise BadCheckpoint(f"{path}: {tensor} is {found.dtype} {found.shape}: {rows} and {columns} cannot be read")
    if not rows or not columns:
        return np.zeros((len(rows), len(columns)), np.float32)
    mapped = np.memmap(path, STORED[found.dtype], "r", found.start, shape)
    values = np.array(mapped[rows.start : rows.stop, columns.start : columns.stop])
    if found.dtype == "BF16":  # the upper half of a float32
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def tensors_in(folder: Path) -> dict[str, Stored]:
    """Return where each tensor of a model is, by name.

    Raises:
        BadCheckpoint: if a file is missing or contradicts itself, or if files and index contradict each other.
    """
    if (folder / TENSORS).is_file():
        return header_of(folder / TENSORS)
    shards, found = shard_of_each(folder), {}
    for shard in sorted(set(shards.values())):
        for name, tensor in header_of(folder / shard).items():
            if name in found:
                raise BadCheckpoint(f"{folder} has {name} twice: in {found[name].path.name} and in {shard}")
            found[name] = tensor
    for name in sorted(shards | found):
        one, other = shards.get(name, "no file"), found[name].path.name if name in found else "no file"
        if one != other:
            raise BadCheckpoint(f"{folder / INDEX}: {name} is in {one} according to the index, but in fact in {other}")
    return found


def shard_of_each(folder: Path) -> dict[str, str]:
    """Return the name of the file that has each tensor, by the folder's index. The files may contradict it.

    Raises:
        BadCheckpoint: if there is no index, if it is invalid, or if a file that it names is not there.
    """
    path = folder / INDEX
    if not path.is_file():
        raise BadCheckpoint(f"{folder} has neither {TENSORS} nor {INDEX}: save the model as safetensors")
    try:
        shards = convert(json_in(path).get("weight_map"), dict[str, str])
    except ValidationError as error:
        raise BadCheckpoint(f"{path}: weight_map: {error}") from None
    for shard in sorted(set(shards.values())):
        if Path(shard).name != shard:
            raise BadCheckpoint(f"{path} names {shard!r}, but shards must be in its own folder")
        if not (folder / shard).is_file():
            raise BadCheckpoint(f"{path} names {shard!r}, but there is no such file")
    return shards


def header_of(path: Path) -> dict[str, Stored]:
    """Return where each tensor of one file is, by name.

    Raises:
        BadCheckpoint: if the file is not a safetensors file, or does not have the size that its header says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    end, found = 8 + length, {}
    if end > size:
        raise BadCheckpoint(
            f"{path} is not a safetensors file: it has {size:,} bytes, and its header ends at byte {end:,}"
        )
    header = json_in(path, 8, length)
    header.pop("__metadata__", None)
    try:
        for name, entry in header.items():
            header[name] = convert(entry, Entry)
    except ValidationError as error:
        raise BadCheckpoint(f"{path}: {name}: {error}") from None
    for name, entry in sorted(header.items(), key=lambda item: item[1].data_offsets):
        first, last = (8 + length + offset for offset in entry.data_offsets)
        if first != end:
            raise BadCheckpoint(f"{path}: {name} begins at byte {first:,}, but what is before it ends at byte {end:,}")
        if entry.dtype in STORED and prod(entry.shape) * STORED[entry.dtype].itemsize != last - first:
            raise BadCheckpoint(f"{path}: {name} is {entry.dtype} {entry.shape}, but has {last - first:,} bytes")
        found[name], end = Stored(path, entry.dtype, entry.shape, first), last
    if end != size:
        raise BadCheckpoint(f"{path} has {size:,} bytes, but its header says {end:,}: copy it again")
    return found


def json_in(path: Path, start: int = 0, length: int = JSON_BYTES + 1) -> dict:
    """Return the JSON object that a file has from byte ``start`` on.

    Raises:
        BadCheckpoint: if there is none, if it is too long, or if it has a name twice.
    """

    def once(pairs: list[tuple[str, object]]) -> dict:
        if len(found := dict(pairs)) < len(pairs):
            ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise BadCheckpoint(f"{path} has {name!r} twice")
        return found

    with path.open("rb") as file:
        file.seek(start)
        text = file.read(min(length, JSON_BYTES + 1))
    if len(text) > JSON_BYTES:
        raise BadCheckpoint(f"{path} has more than {JSON_BYTES:,} bytes of JSON, which minidist does not read")
    try:
        found = json.loads(text, object_pairs_hook=once)
    except BadCheckpoint:
        raise
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadCheckpoint(f"{path}: expected a JSON object" + f" from byte {start} on" * bool(start))
    return found


def write_model(
    folder: Path,
    config: dict[str, str],
    shapes: dict[str, tuple[int, ...]],
    tensors: Iterator[np.ndarray],
    dtype: str,
    shard_size: int,
) -> None:
    """Write a model into a folder: one file of tensors, or shards with an index if they have more than ``shard_size``.

    Nothing in the folder changes until all is written. Then it replaces the model that was there before. Whenever that
    is cut off, the folder has the old model, the new one, or no config.

    Args:
        config: name and content of the file without which the folder has no model.
        shapes: shape of each tensor, by name.
        tensors: the tensors in that order, float32 and C-contiguous; each is written before the next is asked for.
        dtype: dtype to round to: float32, bfloat16 or float16.
        shard_size: the most bytes of tensors in a file; a larger tensor gets a file of its own.

    Raises:
        ValueError: if a number is too large for the dtype, naming the tensor.
    """
    itemsize = STORED[DTYPES[dtype]].itemsize
    sizes = {name: prod(shape) * itemsize for name, shape in shapes.items()}
    shards, room = [], 0
    for name, size in sizes.items():
        if not shards or size > room:
            shards.append({})
            room = shard_size
        shards[-1][name] = size
        room -= size
    count = len(shards)
    files, texts = [TENSORS], dict(config)
    if count > 1:
        files = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
        weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        texts[INDEX] = json.dumps(index, indent=2) + "\n"
    with ExitStack() as written:  # as it ends, files take their places: the config last, because it comes first here
        for name, text in texts.items():
            written.enter_context(replacing(folder / name)).write_text(text, encoding="utf-8")
        for name, shard in zip(files, shards, strict=True):
            with written.enter_context(replacing(folder / name)).open("wb") as file:
                file.write(_header(shard, shapes, DTYPES[dtype]))
                for tensor in shard:
                    values = _rounded(tensor, next(tensors), dtype)
                    file.write(values.astype(values.dtype.newbyteorder("<"), copy=False).data)
        for name in config:
            (folder / name).resolve().unlink(missing_ok=True)
        for path in folder.iterdir():
            stale = path.name in (TENSORS, INDEX) or SHARD.fullmatch(path.name)
            if stale and path.name not in (*files, *texts):
                path.unlink()


def _header(sizes: dict[str, int], shapes: dict[str, tuple[int, ...]], dtype: str) -> bytes:
    """Return the header of a file with tensors of these sizes, in bytes."""
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}  # without it transformers 4 refuses the file
    place = 0
    for name, size in sizes.items():
        header[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": (place, place + size)}
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that numbers are aligned
    return len(text).to_bytes(8, "little") + text


def _rounded(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    """Return a tensor as it is stored: float32, or the bits of the nearest numbers of its dtype, ties to even."""
    if dtype == "float32":
        return values
    target = FORMATS[dtype]
    codes = target.encode(values)
    beyond = np.isfinite(values) & (codes & 0x7FFF == target.overflow)
    if beyond.any():
        largest = f"{dtype}, whose largest number is {target.largest:g}"
        raise ValueError(f"{name} has {values[beyond][0]:g}, too large for {largest}: choose another dtype")
    return codes
