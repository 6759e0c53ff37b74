"""``minidist data``: its numbers beside brute force, and a run on a folder that it has prepared."""

import json
from pathlib import Path

import numpy as np
import pytest

from minidist.cli.main import main as cli
from minidist.cli.output import bar
from minidist.data.order import sample_at
from minidist.data.packing import PACKINGS, PADDED
from minidist.data.samples import DocumentCorpus, open_corpus
from minidist.nn.documents import hidden_keys
from minidist.nn.loss import IGNORED
from minidist.parallel.context import KINDS, deal_chunks, parts_of, sequence_chunks_of
from minidist.train.config import TrainConfig

LINES = str(Path(__file__).parent / "verify" / "documents.jsonl")
T, B, SEED, CP, CHUNKS, COUNTED = 24, 3, 5, 2, 4, 32
FLAGS = f"--context {T} --micro-batch {B} --global-batch 6 --seed {SEED} --cp {CP} --sequence-chunks {CHUNKS}".split()


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("data") / "numbers.json"
    assert cli(["data", LINES, *FLAGS, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_documents_are_counted(measured):
    rows = [json.loads(line) for line in Path(LINES).read_text(encoding="utf-8").splitlines()]
    texts = [(row.get("prompt", "").encode(), row.get("answer", row.get("text")).encode()) for row in rows]
    lengths = sorted(len(prompt) + len(rest) for prompt, rest in texts)
    found = measured["documents"]
    assert found["documents"] == len(rows) and found["files"] == 1 and found["empty"] == 0
    assert found["tokens"] == sum(lengths) and found["bytes_per_token"] == 1
    assert found["prompt_tokens"] == sum(len(prompt) for prompt, _ in texts) > 0
    assert found["targets"] == sum(len(rest) - (not prompt) for prompt, rest in texts)
    assert found["longer"] == sum(length > T + 1 for length in lengths) > 0
    assert found["without_targets"] == sum(length == 1 for length in lengths) > 0
    shown = [found[name] for name in ("least", "median", "ninetieth", "most")]
    assert shown == [lengths[0], lengths[len(lengths) // 2], lengths[-(-len(lengths) * 9 // 10) - 1], lengths[-1]]
    rows = measured["histogram"]
    assert sum(row["documents"] for row in rows) == len(lengths) and rows[-1]["documents"] > 0
    for row in rows:
        assert row["documents"] == sum(row["from"] <= length <= row["to"] for length in lengths)


def cut_that_fit(corpus: DocumentCorpus) -> int:
    packing = corpus.training.packing
    seen = [piece.document for number in range(len(packing)) for piece in packing.sample(number)]
    lengths = packing.documents.lengths.tolist()
    return sum(seen.count(document) > 1 and length <= T + 1 for document, length in enumerate(lengths))


def test_lengths_at_the_edges_are_counted(tmp_path):
    lengths = [1, T + 2, 2, T + 1, 256, 3, 5, T + 2, T + 1, 7]  # of two in the middle the median is the lower one
    path, numbers = tmp_path / "text.jsonl", tmp_path / "numbers.json"
    path.write_text("\n".join(json.dumps({"text": "x" * length}) for length in lengths))
    assert cli(["data", str(path), f"--context={T}", "--packing=cut", "--json", str(numbers)]) == 0
    found = json.loads(numbers.read_text())
    shown = [found["documents"][name] for name in ("median", "ninetieth", "longer", "without_targets")]
    assert shown == [7, T + 2, 3, 1]
    counts = [(row["from"], row["to"], row["documents"]) for row in found["histogram"]]
    assert counts == [(1, 3, 3), (4, 15, 2), (16, 63, 4), (64, 255, 0), (256, 1023, 1)]
    assert found["packings"]["cut"]["cut_that_fit"] == cut_that_fit(open_corpus(str(path), T, "cut")) > 0


@pytest.mark.parametrize("kind", PACKINGS)
def test_a_packing_wastes_what_is_counted(kind, measured):
    corpus, found = open_corpus(LINES, T, kind, quantum=CHUNKS * TrainConfig.heads), measured["packings"][kind]
    count = len(corpus.training)
    assert found["samples"] == count and found["steps"] == count / 6
    filled = [sum(piece.places for piece in corpus.training.packing.sample(number)) for number in range(count)]
    if kind not in PADDED:
        assert found["padding"] == pytest.approx(1 - sum(filled) / count / T, abs=1e-12)
    assert found["cut_that_fit"] == cut_that_fit(corpus) and (found["cut_that_fit"] > 0) == (kind == "cut")

    computed = future = used = places = 0
    busiest, total = dict.fromkeys(KINDS, 0), 0
    for micro_batch in range(COUNTED):
        numbers = [sample_at(number, count, SEED)[1] for number in range(micro_batch * B, (micro_batch + 1) * B)]
        if kind == "sorted":
            group = sample_at(micro_batch, -(-count // B), SEED)[1]
            numbers = range(group * B, min((group + 1) * B, count))
        tokens, _, documents = corpus.training.batch(numbers, B)
        length, used, places = tokens.shape[1], used + sum(filled[number] for number in numbers), places + tokens.size
        pairs, tile = ~hidden_keys(documents.first, slice(0, length), slice(0, length)), length // CHUNKS
        tiles = pairs.reshape(B, CHUNKS, tile, CHUNKS, tile).any((0, 2, 4))  # of (B, keys, queries)
        computed += tiles.sum() * tile**2
        future += CHUNKS * (CHUNKS + 1) // 2 * (T // CHUNKS) ** 2
        work = tiles.sum(axis=0).tolist()
        total += sum(work)
        for kind_of_ranks in KINDS:
            if kind_of_ranks == "ulysses":
                busiest["ulysses"] += sum(work) / CP
                continue
            shares = [sequence_chunks_of(rank, CP, CHUNKS, kind_of_ranks) for rank in range(CP)]
            if kind_of_ranks == "balanced":
                shares = deal_chunks(work, CP)
            busiest[kind_of_ranks] += max(sum(work[chunk] for chunk in share) for share in shares)
    assert kind not in PADDED or found["padding"] == pytest.approx(1 - used / places, abs=1e-12)
    assert found["skipped_tiles"] == pytest.approx(1 - computed / future, abs=1e-12)
    assert found["busiest_over_mean"] == pytest.approx({name: CP * most / total for name, most in busiest.items()})
    assert found["busiest_over_mean"]["balanced"] < found["busiest_over_mean"]["ring"]


def test_what_is_printed_are_these_numbers(measured, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert cli(["data", LINES, *FLAGS, "--packing", "cut"]) == 0
    out = capsys.readouterr().out
    cells = [line.strip("│┃").replace("│", " ").split() for line in out.splitlines() if line[:1] in "│┃"]
    found = measured["packings"]["cut"]
    padding, skipped = (f"{found[name]:.1%}" for name in ("padding", "skipped_tiles"))
    counts = str(found["samples"]), f"{found['steps']:.1f}"
    assert ["cut", *counts, padding, str(found["cut_that_fit"]), skipped] in cells
    assert ["cut", *(f"{share:.2f}" for share in found["busiest_over_mean"].values())] in cells
    assert ["tokens", "of", "prompts", str(measured["documents"]["prompt_tokens"])] in cells
    assert ["bytes", "per", "token", "1.00"] in cells
    first, most = measured["histogram"][0], max(row["documents"] for row in measured["histogram"])
    row = [str(first["from"]), "to", str(first["to"]), str(first["documents"]), bar(first["documents"] / most)]
    assert row in cells
    assert "padding" not in [row[0] for row in cells if row]  # one packing only


def test_only_kinds_that_fit_are_shown_and_no_ranks_without_cp(tmp_path):
    path = tmp_path / "numbers.json"
    for flags, kinds in ((["--cp=2", "--sequence-chunks=2"], [k for k in KINDS if parts_of(2, k) == 2]), ([], [])):
        assert cli(["data", LINES, "--packing=padding", *flags, "--json", str(path)]) == 0
        assert [*json.loads(path.read_text())["packings"]["padding"]["busiest_over_mean"]] == kinds


@pytest.mark.parametrize("packing", ["cut", "best-fit"])
def test_a_run_on_a_prepared_folder_has_the_bits_of_one_on_its_text(packing, tmp_path, capsys):
    folder, path = tmp_path / "prepared", tmp_path / "out.json"
    assert cli(["data", LINES, "--out", str(folder)]) == 0
    told = f"{folder}: files: 1, documents: 121 (left out as empty: 0), tokens: 3,968, bytes per token: 1.00\n"
    assert capsys.readouterr() == (told, "")
    flags = "--layers=1 --heads=2 --width=8 --context=16 --global-batch=4 --micro-batch=2 --steps=3".split()  # noqa: SIM905
    found = []
    for text in (LINES, str(folder)):
        assert cli(["train", *flags, f"--packing={packing}", f"--text={text}", f"--json={path}"]) == 0
        found.append(json.loads(path.read_text()))
    assert found[0]["fingerprint"] == found[1]["fingerprint"] and found[0]["losses"] == found[1]["losses"]


def test_a_corpus_has_targets_to_ignore():
    """The other tests therefore compare something."""
    _, targets, documents = open_corpus(LINES, T, "first-fit").micro_batch(SEED, 0, 30)
    assert (targets == IGNORED).any() and (np.diff(documents.first, axis=1) > 1).any()
