"""``minidist demo --all``: every demonstration, as a gallery in a folder or as notes for the speaker."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from minidist.cli.output import errors_naming
from minidist.course.answers import course_folder
from minidist.files import replacing
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.gallery import files, key_pictures
from minidist.show.gallery.chapters import Picture
from minidist.show.stage.animation import Animation
from minidist.show.stage.lecture import notes


def show_all(options, console: Console) -> int:
    """Run every demonstration and write what the options ask for; return 1 if one of them failed, else 0."""
    if options.html is not None:
        with errors_naming("html", options.html):
            Path(options.html).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=options.html).close()  # fails now, not after a minute of runs
    made = {}
    for name, animation in _made(options.seed):
        made[name] = animation
        if options.notes and isinstance(animation, Animation):
            console.print(notes(animation) + "\n\n", soft_wrap=True)
    if options.html is not None:
        _write(made, Path(options.html), console)
    return int(any(isinstance(animation, str) for animation in made.values()))


def _made(seed: int) -> Iterator[tuple[str, Animation | str]]:
    """Yield each demonstration's name and its animation, or why it failed; report each on standard error."""
    progress = Console(stderr=True, highlight=False, markup=False)
    for number, (name, demonstration) in enumerate(DEMONSTRATIONS.items(), 1):
        start = time.monotonic()
        with progress.status(f"{name}: running real ranks"):
            try:
                animation = demonstration(seed=seed)
            except Exception as error:  # whatever it is, the others go on
                animation = f"it failed: {type(error).__name__}: {error}".splitlines()[0]
        outcome = animation if isinstance(animation, str) else f"{time.monotonic() - start:.1f} s"
        progress.print(f"{number:2} of {len(DEMONSTRATIONS)}  {name}: {outcome}", soft_wrap=True)
        yield name, animation


def _write(made: dict[str, Animation | str], folder: Path, console: Console) -> None:
    size = 0
    with Console(stderr=True).status("writing the pages"):
        for name, content in files(made, _pictures(console)):
            size += len(content)
            with errors_naming("html", str(folder / name)), replacing(folder / name) as new:
                new.write_bytes(content)
    console.print(f"gallery: {folder / 'index.html'} ({size / 1e6:.1f} MB; open it in a browser)", soft_wrap=True)


def _pictures(console: Console) -> list[Picture]:
    try:
        return key_pictures(course_folder("chapters"))
    except ValueError:
        console.print("the folder chapters/ is not here: the gallery has no pictures of the chapters")
        return []
