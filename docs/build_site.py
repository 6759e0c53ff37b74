"""Builds the site, a folder that any host can serve: ``pip install -e '.[site]' && python docs/build_site.py FOLDER``."""

import subprocess
import sys
from pathlib import Path


def build(folder: Path) -> None:
    """Record the demonstrations, write the explorer, then make pages of docs/ and chapters/ around them."""
    folder.mkdir(parents=True, exist_ok=True)
    minidist = [sys.executable, "-m", "minidist.cli"]
    if not (folder / "gallery" / "index.html").exists():
        subprocess.run([*minidist, "demo", "--all", "--html", str(folder / "gallery")], check=True)
    if not (folder / "explorer.html").exists():
        subprocess.run([*minidist, "explore", "--html", str(folder / "explorer.html")], check=True)
    docs = Path(__file__).parent
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-c", str(docs), str(docs.parent)]
    subprocess.run([*sphinx, str(folder)], check=True)
    start = '<!doctype html><title>minidist</title><meta http-equiv="refresh" content="0; url=docs/index.html">'
    (folder / "index.html").write_text(start, encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
