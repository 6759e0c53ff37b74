"""Documents of every kind of input, raw and prepared; what changes while it is used."""

import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minidist.data.documents import BOUNDS, MANIFEST, TOKENS, Documents, prepare, read_documents
from minidist.data.packing import PACKINGS
from minidist.data.samples import open_corpus
from minidist.nn.tokenizer import BYTES, TOKENIZER, open_tokenizer

VERIFY = Path(__file__).parents[1] / "verify"
LINES, FILE = VERIFY / "documents.jsonl", str(VERIFY / TOKENIZER)


def lines(*rows: dict, end: bytes = b"\n") -> bytes:
    return end.join(json.dumps(row).encode() for row in rows)


ROWS = ({"text": "one"}, {"prompt": "two", "answer": "é three"}, {"text": "", "source": "a page"}, {"text": "4"})
READ = [(b"", b"one"), (b"two", "é three".encode()), (b"", b"4")]
KINDS = {  # files by name; which one is read; of each document its prompt and what counts; the number of empty ones
    "a file": ({"a.txt": b"\xef\xbb\xbfone\r\n\r\ntwo\xff"}, "a.txt", [(b"", b"\xef\xbb\xbfone\r\n\r\ntwo\xff")], 0),
    "JSON lines": ({"a.jsonl": lines(*ROWS)}, "a.jsonl", READ, 1),
    "JSON lines that end with one": ({"a.jsonl": lines(*ROWS) + b"\n"}, "a.jsonl", READ, 1),
    "JSON lines of Windows": ({"a.jsonl": b"\xef\xbb\xbf" + lines(*ROWS, end=b"\r\n\r\n")}, "a.jsonl", READ, 1),
    "blank lines": ({"a.jsonl": b"\n \t\n" + lines(*ROWS, end=b"\n\r\n\n") + b"\n\n"}, "a.jsonl", READ, 1),
    "no prompt, no answer, neither": (
        {"a.jsonl": lines(*({"prompt": p, "answer": a} for p, a in (("", "one"), ("two", ""), ("", ""))))},
        "a.jsonl", [(b"", b"one"), (b"two", b"")], 1,
    ),
    "more keys": (
        {"a.jsonl": lines({"text": "one", "prompt": "2"}, {"answer": "", "prompt": "2", "n": [1]})},
        "a.jsonl", [(b"", b"one"), (b"2", b"")], 0,
    ),
    "a folder": (
        {"b/2.txt": b"second", "a.md": b"first", "b/1": b"1", "b/c/d/e.txt": b"\x00\xff", "b-c.txt": b"before b/",
         "z.jsonl": lines(*ROWS), "empty": b"", ".hidden": b"no", ".folder/x.txt": b"no", "b/.x/y/z.txt": b"no"},
        "", [(b"", b"first"), (b"", b"before b/"), (b"", b"1"), (b"", b"second"), (b"", b"\x00\xff"), *READ], 2,
    ),
    "a folder that is called .jsonl": ({"x.jsonl/a": b"{}"}, "x.jsonl", [(b"", b"{}")], 0),
    "a hidden folder": ({".x/a": b"a", ".x/b": b"b"}, ".x", [(b"", b"a"), (b"", b"b")], 0),
}  # fmt: skip
FOLDER = ["a.md", "b-c.txt", "b/1", "b/2.txt", "b/c/d/e.txt", "empty", "z.jsonl"]  # the files of "a folder", in order


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def parts_of(documents: Documents) -> list[tuple[list[int], list[int]]]:
    """Return for each document the tokens of its prompt, and the others."""
    found = []
    for number in range(len(documents)):
        begin, end = documents.span(number)
        place = begin + int(documents.bounds[number, 1])
        found.append((documents.tokens[begin:place].tolist(), documents.tokens[place:end].tolist()))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_has_its_documents_raw_and_prepared(kind, tmp_path):
    files, name, expected, empty = KINDS[kind]
    text, folder = written(tmp_path / "text", files) / name, tmp_path / "new" / "prepared"
    raw, manifest = read_documents(text), prepare(text, BYTES, folder)
    prepared = read_documents(folder)
    for documents in (raw, prepared):
        assert parts_of(documents) == [(list(prompt), list(rest)) for prompt, rest in expected]
        assert documents.tokens.dtype == np.uint8 and len(documents) == len(expected)
        assert documents.manifest.empty == empty and documents.manifest.tokens == len(documents.tokens)
        assert documents.manifest.text_bytes == sum(len(part) for parts in expected for part in parts)
        assert documents.lengths.tolist() == [len(prompt) + len(rest) for prompt, rest in expected]
    assert prepared.manifest == manifest and replace(manifest, sha256=()) == raw.manifest
    assert isinstance(prepared.tokens, np.memmap) and isinstance(prepared.bounds, np.memmap)
    if kind == "a folder":
        assert [file.name for file in manifest.files] == FOLDER


def test_raw_and_prepared_inputs_make_one_corpus_whatever_they_are_called(tmp_path):
    texts = [LINES, tmp_path / "copy.jsonl", tmp_path / "folder", tmp_path / "prepared"]
    written(tmp_path, {"copy.jsonl": LINES.read_bytes(), "folder/x.jsonl": LINES.read_bytes()})
    prepare(LINES, BYTES, texts[-1])
    for packing in PACKINGS:
        one, *others = (open_corpus(str(text), 16, packing) for text in texts)
        for other in others:
            assert other.sha256 == one.sha256 and len(other.training) == len(one.training)
            for mine, theirs in zip(one.micro_batch(1, 5, 9)[:2], other.micro_batch(1, 5, 9)[:2], strict=True):
                assert mine.dtype == theirs.dtype and (mine == theirs).all()
    written(tmp_path, {"copy.txt": LINES.read_bytes(), "copy.jsonl": LINES.read_bytes() + b"\n"})
    hashes = {open_corpus(str(text), 16, "cut").sha256 for text in (LINES, tmp_path / "copy.txt", texts[1])}
    assert len(hashes) == 3  # one document instead of many; another byte


def test_prompt_and_answer_are_made_tokens_apart(tmp_path):
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'minidist[tokenizers]'")
    by, folder = open_tokenizer(FILE), tmp_path / "prepared"
    prepare(LINES, by, folder)
    rows = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    texts = [(row.get("prompt", ""), row.get("answer", row.get("text"))) for row in rows]
    expected = [tuple(by.encode(part.encode()).tolist() for part in parts) for parts in texts]
    for documents in (read_documents(LINES, by), read_documents(folder, open_tokenizer(FILE))):
        assert parts_of(documents) == expected and documents.tokens.dtype == np.uint32
        text = sum(len(part.encode()) for parts in texts for part in parts)
        assert documents.manifest.bytes_per_token == text / len(documents.tokens) > 1
        assert documents.manifest.tokenizer == by.sha256
    one, other = (open_corpus(str(text), 16, "best-fit", FILE) for text in (LINES, folder))
    assert one.sha256 == other.sha256 and (one.micro_batch(0, 0, 9)[1] == other.micro_batch(0, 0, 9)[1]).all()


def test_a_tokenizer_refuses_what_is_not_utf8_and_names_it(tmp_path):
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'minidist[tokenizers]'")
    by = open_tokenizer(FILE)
    for name in ("a.txt", "folder/b.txt"):
        text = written(tmp_path, {name: b"caf\xe9"}) / name
        for path in {text, text.parent} - {tmp_path}:
            with pytest.raises(ValueError, match=rf"{text.name}: the text is not UTF-8, .*: 0xe9 at byte 3"):
                read_documents(path, by)
    prepare(LINES, BYTES, tmp_path / "bytes")
    with pytest.raises(ValueError, match=r"has the tokens of a tokenizer other than .*tokenizer.json: prepare"):
        open_corpus(str(tmp_path / "bytes"), 16, "cut", FILE)


def test_a_folder_is_prepared_with_one_document_in_memory(tmp_path):
    row, count = lines({"text": "x" * 1000}), 5000
    with (tmp_path / "long.jsonl").open("wb") as file:
        file.writelines(row + b"\n" for _ in range(count))
    prepare(LINES, BYTES, tmp_path / "first")  # imports, caches
    tracemalloc.start()
    try:
        manifest = prepare(tmp_path / "long.jsonl", BYTES, tmp_path / "prepared")
        documents = read_documents(tmp_path / "prepared")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert manifest.documents == count and len(documents.tokens) == 1000 * count and peak < 600_000


def changed(file: Path, content: bytes | None, seconds: int) -> None:
    """Replace a file's content, and say that this happened some seconds later."""
    later = file.stat().st_mtime_ns + seconds * 10**9
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
        os.utime(file, ns=(later, later))


@pytest.mark.parametrize("name", ["text.txt", TOKENS, BOUNDS])
def test_a_mapped_file_that_changes_stops_the_run_before_it_is_read(name, tmp_path):
    folder, text = tmp_path / "prepared", tmp_path / "text.txt"
    text.write_bytes(b"some words, again and again, " * 20)
    prepare(text, BYTES, folder)
    path = text if name == text.name else folder / name
    original = path.read_bytes()
    changes = {"has changed": [(original, 1), (original[:-1], 0), (original + b"x", 0)], "no longer": [(None, 0)]}
    for words, ways in changes.items():
        for content, seconds in ways:
            corpus = open_corpus(str(path if name == text.name else folder), 8, "cut")
            corpus.micro_batch(0, 0, 2)
            batches = corpus.validation_batches(1)
            next(batches)
            changed(path, content, seconds)
            for read in (lambda corpus=corpus: corpus.micro_batch(0, 2, 2), lambda batches=batches: next(batches)):
                with pytest.raises(ValueError, match=words) as error:
                    read()
                assert str(path) in str(error.value)
            changed(path, original, 2) if path.exists() else path.write_bytes(original)


def test_a_prepared_folder_is_compared_with_its_manifest(tmp_path):
    """One byte, one bit: in each of its files."""
    folder = tmp_path / "prepared"
    prepare(LINES, BYTES, folder)
    for name in (TOKENS, BOUNDS):
        path, original = folder / name, (folder / name).read_bytes()
        path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
        with pytest.raises(ValueError, match=f"{TOKENS} or {BOUNDS} in .* has changed since it was written"):
            read_documents(folder)
        path.write_bytes(original)
    manifest = json.loads((folder / MANIFEST).read_text())
    for key in set(manifest) - {"text_bytes", "empty", "files"}:
        other = manifest[key] + 1 if isinstance(manifest[key], int) else "" if key != "sha256" else manifest[key][:1]
        other = "1" * 64 if key == "tokenizer" else other
        (folder / MANIFEST).write_text(json.dumps(manifest | {key: other}))
        with pytest.raises(ValueError, match=r"prepare the text again|not written by minidist data"):
            read_documents(folder)


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path, monkeypatch):
    text, scandir = written(tmp_path, {"a": b"a", "closed/b": b"b"}), os.scandir

    def refusing(folder):
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(ValueError, match=r"cannot read .*closed: Permission denied"):
        read_documents(text)


def test_a_link_to_a_file_is_a_document_and_one_to_nothing_is_none(tmp_path):
    written(tmp_path, {"text/a": b"a", "elsewhere": b"b"})
    for name, target in (("b", tmp_path / "elsewhere"), ("c", tmp_path / "nothing")):
        try:
            (tmp_path / "text" / name).symlink_to(target)
        except OSError:
            pytest.skip("links need a privilege here")
    assert parts_of(read_documents(tmp_path / "text")) == [([], [97]), ([], [98])]


def test_what_cannot_be_prepared_leaves_nothing_that_is_read(tmp_path):
    written(tmp_path, {"a.jsonl": lines(*ROWS) + b"\n{", "b.jsonl": lines(*ROWS)})
    with pytest.raises(ValueError, match="line 5 is not JSON"):
        prepare(tmp_path / "a.jsonl", BYTES, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
    prepare(tmp_path / "b.jsonl", BYTES, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [BOUNDS, MANIFEST, TOKENS]
