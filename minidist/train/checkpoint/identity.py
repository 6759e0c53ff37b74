"""Which run a checkpoint belongs to: it goes on with the settings and the text that it began with, and no others."""

import hashlib
from dataclasses import asdict, fields
from math import inf

from msgspec import convert

from minidist.backend import versions
from minidist.nn.data import Corpus
from minidist.train.checkpoint.manifest import BadCheckpoint, Manifest, Progress
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

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
    """Return the settings of the run that wrote a checkpoint.

    Raises:
        BadCheckpoint: if this version of minidist has others, or no run can have these.
    """
    known = {field.name for field in fields(TrainConfig)}
    if strange := sorted(manifest.config.keys() ^ known):
        raise BadCheckpoint(
            f"the checkpoint is from another version of minidist, with other settings: {', '.join(strange)}. Resume it "
            "with the version that wrote it"
        )
    reals = {field.name for field in fields(TrainConfig) if field.type in (float, float | None)}
    settings = {name: inf if name in reals and value == "inf" else value for name, value in manifest.config.items()}
    try:
        return convert(settings, TrainConfig)
    except ValueError as error:
        raise BadCheckpoint(f"the checkpoint has settings that no run can have: {error}") from None


def layout_in(manifest: Manifest) -> Layout:
    """Return the layout of the run that wrote a checkpoint.

    Raises:
        BadCheckpoint: if this version of minidist has no such layout.
    """
    try:
        return Layout.parse(manifest.layout)
    except ValueError as error:
        raise BadCheckpoint(f"the checkpoint was written in a layout that cannot be: {error}") from None


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
