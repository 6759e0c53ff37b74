"""Runs on other tokens than bytes: one fingerprint in all layouts; checkpoints and Hugging Face's folders know them."""

import json
import shutil
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from choosing import long

from minidist.cli.main import main as cli
from minidist.nn.data import load_corpus
from minidist.nn.tokenizer import TOKENIZER, open_tokenizer, train_tokenizer
from minidist.plan.memory_check import parameter_count
from minidist.train.checkpoint.commit import name_of
from minidist.train.checkpoint.disk import BadCheckpoint, Disk
from minidist.train.checkpoint.manifest import Manifest, check_same_run
from minidist.train.checkpoint.restore import check_files
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'minidist[tokenizers]'")

ROOT = Path(__file__).parents[2]
TEXT, FILE = str(ROOT / "LICENSE"), str(ROOT / "tests" / "verify" / TOKENIZER)
CONFIG = TrainConfig(
    layers=2, heads=6, width=24, context=16, global_batch=4, micro_batch=1, steps=2, warmup=1, sequence_chunks=4,
    text=TEXT, tokenizer=FILE, vocab=263,
)  # fmt: skip
LAYOUTS = ("tp=2,sp=1", "tp=3", "pp=2", "cp=2,cp_kind=zigzag", "dp=2,zero=3", "tp=2,pp=2,dp=1", "tp=6")
OTHER = {
    "llama": {"arch": "llama", "kv_heads": 1},
    "exact products": {"products": "exact"},
    "in bfloat16": {"precision": "bf16"},
    "padded": {"vocab": 277},
}
FLAGS = "--layers=1 --heads=3 --width=12 --context=8 --global-batch=4".split()  # noqa: SIM905


@pytest.mark.parametrize("other", [{}, *map(long, OTHER.values())], ids=["gpt2", *OTHER])
def test_every_layout_has_the_bits_of_one_process_with_a_vocabulary_that_no_heads_divide(other, ranks):
    config, options = replace(CONFIG, **other), RunOptions(validate=True, sample=3)
    one = run(ranks(1), config, Layout(), options).ranks[0]
    for text in LAYOUTS:
        layout = Layout.parse(text)
        found = run(ranks(layout.world_size), config, layout, options).ranks
        assert {rank.fingerprint for rank in found} == {one.fingerprint}, text
        same = ("losses", "validation_loss", "bits_per_byte", "sample")
        assert [getattr(found[0], name) for name in same] == [getattr(one, name) for name in same], text
    corpus = load_corpus(TEXT, 16, FILE)
    held_out = len(corpus.tokenizer.decode(corpus.validation.tolist()))
    total = one.validation_loss * len(corpus.validation)
    assert one.bits_per_byte == pytest.approx(total / log(2) / held_out, rel=1e-12)
    bytes_alone = run(ranks(1), replace(config, tokenizer=None), Layout(), options).ranks[0]
    assert bytes_alone.bits_per_byte == pytest.approx(bytes_alone.validation_loss / log(2), rel=1e-15)
    assert bytes_alone.fingerprint != one.fingerprint


def test_parameters_and_vocabulary_follow_from_the_tokenizer(tmp_path, capsys):
    path = tmp_path / "found.json"
    assert cli(["train", *FLAGS, "--steps=1", f"--tokenizer={FILE}", "--sample=4", f"--json={path}"]) == 0
    shown, found = capsys.readouterr().out, json.loads(path.read_text())
    assert found["config"]["vocab"] == 263 and found["config"]["tokenizer"] == FILE
    assert f"{found['validation_loss']:.4f} nats per token, {found['bits_per_byte']:.4f} bits per byte" in shown
    assert "text from the model:\nThe" in shown
    bytes_alone, more = (TrainConfig(heads=3, width=12, vocab=vocab).model for vocab in (256, 263))
    assert parameter_count(more) - parameter_count(bytes_alone) == (264 - 258) * 12  # rounded up to multiples of 3
    assert cli(["verify", *FLAGS, "--steps=1", f"--tokenizer={FILE}", "tp=3"]) == 0
    assert f"263 tokens of {FILE}" in capsys.readouterr().out
    copy = shutil.copy(FILE, tmp_path)
    assert cli(["train", f"--tokenizer={copy}", f"--json={copy}"]) == 2
    assert "--json and the tokenizer must be different files" in capsys.readouterr().err
    assert cli(["train", f"--tokenizer={FILE}", "--vocab=260"]) == 2
    assert f"vocab 260 is too small: {FILE} has 263 tokens" in capsys.readouterr().err


def test_a_checkpoint_goes_on_with_its_own_tokenizer_only(tmp_path, capsys):
    mine, saved = tmp_path / "mine.json", tmp_path / "saved"
    shutil.copy(FILE, mine)
    train = ["train", *FLAGS, f"--text={TEXT}"]
    assert cli([*train, "--steps=4", f"--tokenizer={mine}", f"--save={saved}", "--save-every=2", "--keep=0"]) == 0
    right = capsys.readouterr().out.split("fingerprint: ")[1]
    half = saved / name_of(2)
    manifest, resume = Manifest.read(Disk(), half), ["train", f"--resume={half}"]
    assert (half / TOKENIZER).read_bytes() == mine.read_bytes()
    assert manifest.files[TOKENIZER].sha256 == open_tokenizer(FILE).sha256
    check_same_run(manifest, replace(TrainConfig(**manifest.config), tokenizer=FILE), load_corpus(TEXT, 8, FILE))
    assert cli([*resume, f"--tokenizer={FILE}", "--tp=3"]) == 0  # a copy will do
    assert capsys.readouterr().out.split("fingerprint: ")[1] == right

    other = tmp_path / "other.json"
    for vocab in (263, 300):
        other.write_bytes(train_tokenizer(Path(TEXT).read_bytes(), vocab))  # of 263 the same merges, written otherwise
        assert cli([*resume, f"--tokenizer={other}"]) == 2
        assert f"another tokenizer than {other}: pass the same one with --tokenizer" in capsys.readouterr().err
    mine.write_bytes(other.read_bytes())
    assert cli(resume) == 2 and f"another tokenizer than {mine}:" in capsys.readouterr().err
    mine.unlink()
    assert cli(resume) == 2 and f"{half / TOKENIZER} is a copy: copy it to" in capsys.readouterr().err
    assert cli(["checkpoint", str(saved)]) == 0  # nothing else needs the file
    assert cli([*train, "--steps=1", f"--save={tmp_path / 'of bytes'}"]) == 0
    assert cli(["train", f"--resume={tmp_path / 'of bytes'}", f"--tokenizer={FILE}"]) == 2
    assert "a run on bytes, without a tokenizer: leave out --tokenizer" in capsys.readouterr().err

    with pytest.raises(BadCheckpoint, match="another tokenizer than the byte tokenizer"):
        check_same_run(manifest, TrainConfig(**manifest.config), load_corpus(TEXT, 8))
    (half / TOKENIZER).write_bytes(other.read_bytes())
    with pytest.raises(BadCheckpoint, match=rf"{TOKENIZER} has [\d,]+ bytes, but had"):
        check_files(half, manifest)
    for name in ("tokenizer", TOKENIZER):  # one without the other
        config, files = ({k: v for k, v in table.items() if k != name} for table in (manifest.config, manifest.files))
        path = tmp_path / "changed" / name_of(2) / "manifest.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(replace(manifest, config=config, files=files).encoded())
        with pytest.raises(BadCheckpoint, match="without the setting, or the setting tokenizer without the file"):
            Manifest.read(Disk(), path.parent)


@pytest.mark.parametrize("arch", ["gpt2", long("llama")])
def test_a_folder_of_hugging_face_has_the_tokenizer_and_transformers_finds_the_same_bits_per_byte(
    arch, tmp_path, capsys
):
    """The loss of transformers on our held-out text, in float32, is within 1e-5, as in test_hugging_face.py."""
    saved, folder, path = (tmp_path / name for name in ("saved", "hf", "found.json"))
    train = ["train", *FLAGS[:1], "--heads=3", "--width=12", "--context=8", "--global-batch=4", f"--text={TEXT}"]
    flags = [f"--arch={arch}", "--steps=3", f"--tokenizer={FILE}", f"--save={saved}", f"--json={path}"]
    assert cli([*train, *flags]) == 0
    assert cli(["checkpoint", str(saved), "--export", "hf", str(folder)]) == 0
    assert (folder / TOKENIZER).read_bytes() == Path(FILE).read_bytes()
    capsys.readouterr()
    begin = ["train", f"--init-from={folder}", f"--text={TEXT}", "--global-batch=4", "--steps=2"]
    assert cli(begin) == 0
    begun = capsys.readouterr().out.split("fingerprint: ")[1]
    check_with_transformers(folder, json.loads(path.read_text())["bits_per_byte"])

    (folder / TOKENIZER).unlink()
    assert cli(begin) == 2
    assert "vocab_size is 263 in" in (told := capsys.readouterr().err) and "byte tokenizer has 256 tokens" in told
    for flag in (f"--tokenizer={FILE}", f"--config={folder / 'flags.toml'}"):
        (folder / "flags.toml").write_text(f'tokenizer = "{FILE}"\n')
        assert cli([*begin, flag, "--tp=3"]) == 0 and capsys.readouterr().out.split("fingerprint: ")[1] == begun
    shutil.copy(FILE, folder / TOKENIZER)
    small = tmp_path / "small.json"
    small.write_bytes(train_tokenizer(Path(TEXT).read_bytes(), 260))
    assert cli([*begin, f"--tokenizer={small}"]) == 2 and "has 260 tokens" in capsys.readouterr().err
    assert cli([*begin, f"--tokenizer={small}", "--vocab=263"]) == 0  # with rows that no token looks up


def check_with_transformers(folder: Path, bits_per_byte: float) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'minidist[hf]'")
    model, theirs = transformers.AutoModelForCausalLM.from_pretrained(folder), tokenizers.Tokenizer.from_file(FILE)
    text = Path(TEXT).read_text(encoding="utf-8")
    held_out = text[-(len(text) // 20) :]
    tokens = torch.tensor(theirs.encode(held_out).ids)
    rows = (len(tokens) - 1) // 8
    inputs, targets = (tokens[start : start + 8 * rows].reshape(rows, 8) for start in (0, 1))
    with torch.no_grad():
        nats = torch.nn.functional.cross_entropy(model.eval()(inputs).logits.flatten(0, 1), targets.flatten()).item()
    assert bits_per_byte == pytest.approx(nats * len(tokens) / log(2) / len(held_out), rel=1e-5)
