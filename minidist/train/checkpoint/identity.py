"""Which run a checkpoint belongs to: it goes on with the settings and the text that it began with, and no others."""

import hashlib
import re
from dataclasses import asdict, fields
from pathlib import Path

from minidist.backend import versions
from minidist.nn.data import Corpus
from minidist.train.checkpoint.commit import committed, saves
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import BadCheckpoint, Manifest, Progress
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

OURS = re.compile(r"(\.new-)?(rank-\d+\.safetensors|manifest\.json)")  # what is in a checkpoint's folder
FREE = ("text", "backend")  # may differ: a text is compared by its bytes, and a backend is where the run goes on


def manifest_of(config: TrainConfig, layout: Layout, corpus: Corpus, progress: Progress) -> Manifest:
    """The manifest of a run, without arrays and files."""
    return Manifest(str(layout), asdict(config), corpus_sha(corpus), versions(config.backend), progress)


def corpus_sha(corpus: Corpus) -> str:
    """The SHA-256 of a text."""
    sha = hashlib.sha256(corpus.training)
    sha.update(corpus.validation)
    return sha.hexdigest()


def config_in(manifest: Manifest) -> TrainConfig:
    """The settings of the run that wrote a checkpoint.

    Raises:
        BadCheckpoint: if this version of minidist has others.
    """
    known = {field.name for field in fields(TrainConfig)}
    if strange := sorted(manifest.config.keys() ^ known):
        raise BadCheckpoint(
            f"the checkpoint is from another version of minidist, with other settings: {', '.join(strange)}. Resume it "
            "with the version that wrote it"
        )
    return TrainConfig(**manifest.config)


def check_same_run(manifest: Manifest, config: TrainConfig, corpus: Corpus) -> None:
    """Raises BadCheckpoint where a run with these settings and this text is not the one that wrote the checkpoint."""
    there, here = asdict(config_in(manifest)), asdict(config)
    other = [name for name in here if name not in FREE and there[name] != here[name]]
    if other:
        differences = ", ".join(f"{name} {there[name]} there and {here[name]} here" for name in other)
        raise BadCheckpoint(
            f"the checkpoint belongs to a run with other settings: {differences}. Leave these settings out to go on "
            "with those of the checkpoint"
        )
    if corpus_sha(corpus) != manifest.corpus:
        name = manifest.config["text"] or "Python {python}'s documentation".format(**manifest.versions)
        raise BadCheckpoint(
            f"the checkpoint belongs to a run on another text ({name}): pass the same one with --text FILE"
        )


def other_versions(manifest: Manifest, backend: str) -> str:
    """What is another than when the checkpoint was written, and may change bits, in words; "" if nothing is.

    Args:
        backend: on which the run goes on.
    """
    there = {"backend": manifest.config["backend"]} | manifest.versions
    here = {"backend": backend} | versions(backend)
    changed = [
        f"{name} {there[name]}, now {here[name]}" for name in there if here.get(name, there[name]) != there[name]
    ]
    return f"the checkpoint was written with {' and '.join(changed)}: the bits may be others" if changed else ""


def strangers(disk: Disk, root: Path) -> Path | None:
    """Something that bears the name of a checkpoint, or is in a folder of that name, and that no run has saved.

    The rests of saves that were cut off are removed; nothing else may be.
    """
    for folder in (root / name for name in saves(disk, root)):
        if not folder.is_dir():
            return folder
        for name in disk.names(folder):
            if not OURS.fullmatch(name) or not (folder / name).is_file():
                return folder / name
    return None


def check_folder(folder: str, resume: Path | None) -> None:
    """Check that checkpoints can be saved in a folder, before training rather than after an hour of it.

    Raises:
        ValueError: if it has checkpoints that this run does not go on from, or cannot be written.
    """
    root, disk = Path(folder), Disk()
    try:
        disk.make_folder(root)
        probe = root / ".new-probe"
        disk.write(probe, b"minidist")
        disk.flush(probe)
        disk.remove(probe)
        there, strange = committed(disk, root), strangers(disk, root)
    except OSError as error:
        raise ValueError(f"--save: cannot write in {folder!r}: {error.strerror}") from None
    if strange:
        raise ValueError(
            f"--save: {strange} is where a checkpoint may go, and no run has saved it: move it, or choose another "
            "folder"
        )
    if there and (resume is None or resume.resolve().parent != root.resolve()):
        which = there[0] + (f" to {there[-1]}" if there[1:] else "")
        raise ValueError(
            f"--save: {folder} has checkpoints already ({which}), which this run would mix with its own: add "
            f"--resume {folder} to go on from them, or choose another folder"
        )
