"""Documents from a folder of text files, JSON lines, or a file: their tokens, one document after another.

    folder        each file is a document, in the order of their names; files that end in .jsonl have many
    NAME.jsonl    each line is a document: {"text": ...}, or {"prompt": ..., "answer": ...}; only the answer counts
    other files   one document
    prepared      a folder that ``minidist data TEXT --out FOLDER`` has written: tokens, not text

A prepared folder is mapped into memory, as is a file whose tokens are its bytes, so a text may be larger than the
memory. All others are read once, and their tokens kept. When a run is resumed, its files must have the same sizes and
SHA-256, in the same order. A mapped file must not change while it is in use: this is checked before each micro-batch.

    tokens.bin       all tokens, little-endian, without gaps
    documents.bin    two int64 for each document: its end, and the number of tokens in its prompt
    documents.json   the manifest: files with sizes and hashes, the tokenizer's hash, numbers of tokens and documents,
                     and the hashes of these two files, which are checked when they are opened

(Megatron-LM's ``preprocess_data.py`` writes such a .bin and .idx.)
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from msgspec import ValidationError, convert

from minidist.files import check_outside, replacing, sha256_of
from minidist.nn.tokenizer import BYTES, ByteTokenizer

MANIFEST, TOKENS, BOUNDS = "documents.json", "tokens.bin", "documents.bin"
JSON_LINES = ".jsonl"
FORMAT = 1
Watch = Callable[[Iterator], Iterable]


@dataclass(frozen=True)
class SourceFile:
    """File that documents were read from."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Manifest of a prepared folder: its content, and the files that it was made from."""

    format: int
    dtype: str
    tokens: int
    documents: int
    text_bytes: int  # bytes of all documents, in UTF-8 or as they were
    tokenizer: str  # SHA-256 of its file; "" for bytes
    files: tuple[SourceFile, ...]
    empty: int  # number of documents that were left out because they have no tokens
    sha256: tuple[str, ...] = ()  # of tokens.bin and documents.bin; () if the folder is not prepared

    @property
    def bytes_per_token(self) -> float:
        """Mean number of bytes per token, over all documents."""
        return self.text_bytes / self.tokens


@dataclass(frozen=True)
class Documents:
    """Tokens of some consecutive documents.

    Attributes:
        tokens: unsigned integers, one document after another.
        bounds: int64 (documents, 2): each document's end in ``tokens``, and the number of tokens in its prompt.
        manifest: manifest of all documents of these files.
        mapped: files that are mapped into memory, each with its size and time of modification.
    """

    tokens: np.ndarray
    bounds: np.ndarray
    manifest: Manifest
    mapped: tuple[tuple[Path, int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.bounds)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens in each document, int64."""
        return np.diff(self.bounds[:, 0], prepend=0)

    def span(self, number: int) -> tuple[int, int]:
        """Return the begin and the end of a document in ``tokens``."""
        return int(self.bounds[number - 1, 0]) if number else 0, int(self.bounds[number, 0])

    def part(self, first: int, last: int) -> "Documents":
        """Return the documents from ``first`` to before ``last``."""
        begin = int(self.bounds[first - 1, 0]) if first else 0
        end = int(self.bounds[last - 1, 0]) if last else 0
        bounds = self.bounds[first:last] - np.array([begin, 0]) if begin else self.bounds[first:last]
        return Documents(self.tokens[begin:end], bounds, self.manifest, self.mapped)

    def check_unchanged(self) -> None:
        """Raise ValueError, naming the file, if a mapped file has changed since it was opened."""
        for path, *before in self.mapped:
            try:
                now = path.stat()
            except OSError as error:
                raise ValueError(f"{path} can no longer be read: {error.strerror}") from None
            if [now.st_size, now.st_mtime_ns] != before:
                raise ValueError(f"{path} has changed while it was read: the run would go on with different tokens")


def read_documents(path: str | Path, tokenizer: ByteTokenizer = BYTES) -> Documents:
    """Read the documents of a file or folder.

    Raises:
        ValueError: if it cannot be read, has no document with a token, or has a wrong format. The message names the
            file and, in JSON lines, the line.
    """
    path = Path(path)
    if is_prepared(path):
        return _open(path, tokenizer)
    if path.is_file() and path.suffix != JSON_LINES and tokenizer is BYTES:
        return _mapped(path)
    tokens, bounds = BytesIO(), BytesIO()
    manifest = _write(path, tokenizer, tokens, bounds)
    found = np.frombuffer(tokens.getbuffer(), manifest.dtype)
    return Documents(found, np.frombuffer(bounds.getbuffer(), "<i8").reshape(-1, 2), manifest)


def is_documents(path: str | None) -> bool:
    """Return whether a path may have several documents: a folder, or JSON lines."""
    return path is not None and (Path(path).is_dir() or Path(path).suffix == JSON_LINES)


def is_prepared(path: Path) -> bool:
    """Return whether a folder is a prepared one, even if its manifest is missing."""
    return any((path / name).is_file() for name in (MANIFEST, BOUNDS))


def prepare(path: str | Path, tokenizer: ByteTokenizer, folder: Path, watch: Watch = iter) -> Manifest:
    """Write a prepared folder, the manifest last, with one document in memory at a time.

    Args:
        watch: function that takes an iterator over the documents and returns one, to observe the progress.

    Raises:
        ValueError: see ``read_documents``; also if the folder is not empty or inside the text's folder, or the text is
            prepared.
    """
    path = Path(path)
    if is_prepared(path):
        raise ValueError(f"{path} is already prepared: name the text that it was made from")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} already exists and is not an empty folder: choose another one")
    check_outside(folder, path)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        replacing(folder / TOKENS) as tokens, tokens.open("wb") as one,
        replacing(folder / BOUNDS) as bounds, bounds.open("wb") as other,
    ):  # fmt: skip
        manifest = _write(path, tokenizer, one, other, watch)
    manifest = replace(manifest, sha256=_hashes(folder))
    with replacing(folder / MANIFEST) as written:
        written.write_text(json.dumps(asdict(manifest), indent=2) + "\n", "utf-8", newline="\n")
    return manifest


def _write(path: Path, tokenizer: ByteTokenizer, tokens: BinaryIO, bounds: BinaryIO, watch: Watch = iter) -> Manifest:
    """Write the tokens of all documents and their bounds, and return the manifest."""
    dtype = tokenizer.encode(b"x").dtype.newbyteorder("<")
    files: list[SourceFile] = []
    end = documents = empty = nbytes = 0
    for where, prompt, rest in watch(_documents_in(path, files)):
        try:
            parts = [tokenizer.encode(part) for part in (prompt, rest) if part]
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        count = sum(map(len, parts))
        nbytes += len(prompt) + len(rest)
        if not count:
            empty += 1
            continue
        for part in parts:
            tokens.write(part.astype(dtype, copy=False).tobytes())
        end, documents = end + count, documents + 1
        bounds.write(np.array([end, len(parts[0]) if prompt else 0], "<i8").tobytes())
    if not documents:
        raise ValueError(f"{path} has no document that contains a token")
    return Manifest(FORMAT, dtype.str, end, documents, nbytes, tokenizer.sha256, tuple(files), empty)


def _documents_in(path: Path, files: list[SourceFile]) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield each document's location, its prompt and the rest; append each file to ``files`` once it is read."""
    for file in _files(path):
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        sha, nbytes = hashlib.sha256(), 0
        try:
            with file.open("rb") as opened:
                parts = opened if file.suffix == JSON_LINES else [opened.read()]
                for number, part in enumerate(parts, 1):
                    sha.update(part)
                    nbytes += len(part)
                    if file.suffix != JSON_LINES:
                        yield str(file), b"", part
                    elif part.strip():
                        where = f"{file}, line {number}"
                        yield where, *_read_line(where, part)
        except OSError as error:
            raise ValueError(f"cannot read {file}: {error.strerror}") from None
        files.append(SourceFile(name, nbytes, sha.hexdigest()))


def _files(path: Path) -> list[Path]:
    """Return the file, or the files of a folder and its subfolders, by name, without hidden ones."""
    if not path.exists():
        raise ValueError(f"cannot read the text {path}: there is no such file or folder")
    if not path.is_dir():
        if not path.is_file():
            raise ValueError(f"the text {path} is not a file")  # a device that never ends
        return [path]
    found = []
    for folder, folders, names in os.walk(path, onerror=_stop):
        folders[:] = [name for name in folders if not name.startswith(".")]  # subfolders to visit
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    found = sorted(filter(Path.is_file, found), key=Path.as_posix)
    if not found:
        raise ValueError(f"the folder {path} has no files")
    return found


def _stop(error: OSError) -> None:
    raise ValueError(f"cannot read {error.filename}: {error.strerror}")  # os.walk would skip the folder


def _read_line(where: str, line: bytes) -> tuple[bytes, bytes]:
    """Return the prompt and the rest of a document in a line of JSON."""
    try:
        found = json.loads(line.decode("utf-8-sig"))  # json alone would also accept UTF-16, which has no lines of bytes
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is not JSON in UTF-8") from None
    keys = found.keys() if isinstance(found, dict) else set()
    if ("text" in keys) == ({"prompt", "answer"} <= keys):
        raise ValueError(f'{where} must have either a "text", or a "prompt" and an "answer"')
    parts = ["", found["text"]] if "text" in keys else [found["prompt"], found["answer"]]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{where} has a value that is not text")
    try:
        prompt, rest = (part.encode() for part in parts)
    except UnicodeEncodeError:
        raise ValueError(f"{where} has half a surrogate pair in it, which is not a character") from None
    return prompt, rest


def _mapped(path: Path) -> Documents:
    """Map a file into memory: one document, whose tokens are its bytes."""
    try:
        seen = _seen(path)
        if not (size := seen[0][1]):
            raise ValueError(f"the text {path} is empty")
        tokens = np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise ValueError(f"cannot read the text {path}: {error.strerror}") from None
    file = SourceFile(path.name, size, sha256_of(path))
    manifest = Manifest(FORMAT, "|u1", size, 1, size, "", (file,), 0)
    return Documents(tokens, np.array([[size, 0]]), manifest, seen)


def _seen(*paths: Path) -> tuple[tuple[Path, int, int], ...]:
    stats = [(path, path.stat()) for path in paths]
    return tuple((path, found.st_size, found.st_mtime_ns) for path, found in stats)


def _hashes(folder: Path) -> tuple[str, ...]:
    """Return the SHA-256 of a prepared folder's two binary files."""
    return sha256_of(folder / TOKENS), sha256_of(folder / BOUNDS)


def _open(folder: Path, tokenizer: ByteTokenizer) -> Documents:
    """Open a prepared folder, and compare its files with its manifest."""
    path = folder / MANIFEST
    try:
        manifest = convert(json.loads(path.read_bytes()), Manifest)
        dtype = np.dtype(manifest.dtype)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}. Prepare the text again") from None
    except (ValueError, TypeError, RecursionError, ValidationError) as error:
        raise ValueError(f"{path} was not written by minidist data: {error}") from None
    if manifest.format != FORMAT or dtype.kind != "u":
        raise ValueError(f"{path} was written by another version of minidist: prepare the text again")
    if manifest.tokenizer != tokenizer.sha256:
        raise ValueError(f"{folder} has the tokens of a tokenizer other than {tokenizer.name}: prepare the text again")
    sizes = {TOKENS: manifest.tokens * dtype.itemsize, BOUNDS: 16 * manifest.documents}
    for name, size in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else -1
        if found != size or not size:
            words = f"{folder / name} has {max(0, found):,} bytes, but {MANIFEST} says {size:,}"
            raise ValueError(f"{words}: prepare the text again")
    seen = _seen(folder / TOKENS, folder / BOUNDS)
    if _hashes(folder) != manifest.sha256:
        raise ValueError(f"{TOKENS} or {BOUNDS} in {folder} has changed since it was written: prepare the text again")
    tokens, bounds = np.memmap(folder / TOKENS, dtype, "r"), np.memmap(folder / BOUNDS, "<i8", "r").reshape(-1, 2)
    return Documents(tokens, bounds, manifest, seen)
