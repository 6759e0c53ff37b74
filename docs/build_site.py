"""Builds the site, a folder that any host can serve: ``python docs/build_site.py FOLDER``."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def build(folder: Path) -> None:
    """Record the demonstrations, write the explorer, then the pages around them. What is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for page, command in (("gallery/index.html", ["demo", "--all"]), ("explorer.html", ["explore"])):
        if not (folder / page).exists():
            to = str(folder / page.removesuffix("/index.html"))
            subprocess.run([sys.executable, "-m", "minidist.cli", *command, "--html", to], check=True)
    docs = Path(__file__).parent
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-c", str(docs)]
    with TemporaryDirectory() as between:
        subprocess.run([*sphinx, "-d", between, str(docs.parent), str(folder)], check=True)
    start = '<!doctype html><title>minidist</title><meta http-equiv="refresh" content="0; url=docs/index.html">'
    (folder / "index.html").write_text(start, encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
