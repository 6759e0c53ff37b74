"""Build the site, a folder that any host can serve: ``python docs/build_site.py FOLDER``."""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def build(folder: Path) -> None:
    """Record the demonstrations, write the explorer, then build the pages around them. Existing files are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for page, command in (("gallery/index.html", ["demo", "--all"]), ("explorer.html", ["explore"])):
        if not (folder / page).exists():
            to = str(folder / page.removesuffix("/index.html"))
            subprocess.run([sys.executable, "-m", "minidist.cli", *command, "--html", to], check=True)
        lead_back(folder / page, "../" * page.count("/"))
    docs = Path(__file__).parent
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-c", str(docs)]
    with TemporaryDirectory() as between:
        subprocess.run([*sphinx, "-d", between, str(docs.parent), str(folder)], check=True)
    start = '<!doctype html><title>minidist</title><link rel="icon" href="data:,">'
    start += '<meta http-equiv="refresh" content="0; url=docs/index.html">'
    (folder / "index.html").write_text(start, encoding="utf-8")


def lead_back(path: Path, up: str) -> None:
    """Let a page that stands alone elsewhere lead to the site's first page, and chapters' pictures to their places."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r'href="(\d\d_\w+)-(\d+)\.png"', rf'href="{up}chapters/\1.html#picture-\2"', text)
    home = f'<header><a href="{up}docs/index.html" style="color: inherit">← minidist</a> '
    path.write_text(text if home in text else text.replace("<header>", home, 1), encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
