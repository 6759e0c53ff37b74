"""The gallery: a page of cards, a page for each demonstration, and pictures of the chapters."""

import base64
import io
import json
import re

import carts
import pytest
from PIL import Image

from minidist.course.answers import ROOT
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.gallery import files, key_pictures

NAMES = ("broadcast", "ring", "dp", "flash")
PICTURE = io.BytesIO()
Image.new("RGB", (40, 20), "#0072B2").save(PICTURE, "PNG")


def a_notebook(folder, name: str, tags: list[str]) -> None:
    beginning = {"cell_type": "markdown", "metadata": {}, "source": ["# 3. Carts\n", "\n", "**Why do\n", "carts go?**"]}
    data = {"image/png": base64.b64encode(PICTURE.getvalue()).decode()}
    cell = {"cell_type": "code", "metadata": {"tags": tags}, "source": [], "outputs": [{"data": data}]}
    (folder / name).write_text(json.dumps({"cells": [beginning, cell, cell | {"metadata": {}}]}), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of a gallery in which one demonstration failed."""
    chapters, written = tmp_path_factory.mktemp("chapters"), tmp_path_factory.mktemp("gallery")
    for name, tag in (("03_carts.ipynb", "gallery"), ("04_none.ipynb", "another"), ("draft.ipynb", "gallery")):
        a_notebook(chapters, name, [tag])
    shown = {name: carts.animation(name) for name in NAMES} | {"dp": "it failed: ValueError: <no wheel>"}
    made = dict(files(shown, key_pictures(chapters)))
    assert list(made)[-1] == "index.html"
    for name, content in made.items():
        (written / name).write_bytes(content)
    return written


def test_cards_say_what_they_show_and_the_bug_or_that_it_failed(folder):
    index = (folder / "index.html").read_text(encoding="utf-8")
    cards = re.findall(r'<(?:a|div) class="card.*?</(?:a|div)>(?=\n)', index)
    assert len(cards) == len(NAMES) + 1 and not (folder / "dp.html").exists()
    for name, card in zip(NAMES, cards, strict=False):
        assert f"<h3>{name}</h3>" in card and DEMONSTRATIONS[name].about.replace("'", "&#x27;") in card
        said = "it failed: ValueError: &lt;no wheel&gt;" if name == "dp" else "&lt;/script&gt; &amp; a wheel is off"
        assert said in card and (f'href="{name}.html"' in card) is (name != "dp")
    assert [path.name for path in folder.glob("0*")] == ["03_carts-0.png"]
    assert (folder / "03_carts-0.png").read_bytes() == PICTURE.getvalue()
    assert re.search(r"<h3>3\. Carts</h3><p>Why do carts go\?</p>", index)
    assert "chapters" not in dict(files({"ring": carts.animation("ring")}, []))["index.html"].decode()


def test_every_chapter_has_a_picture():
    pictures = key_pictures(ROOT / "chapters")
    assert [int(picture.chapter.split(".")[0]) for picture in pictures] == list(range(18))
    assert all(picture.question.endswith("?") and picture.content.startswith(b"\x89PNG") for picture in pictures)


def test_in_a_browser_all_pictures_load_and_keys_walk_from_page_to_page(open_page, folder):
    for size in ((1440, 900), (1024, 768), (390, 844)):
        one = open_page((folder / "index.html").as_uri(), *size)
        assert one.evaluate("[...document.images].every(image => image.complete && image.naturalWidth)")
        assert one.evaluate("document.documentElement.scrollWidth") <= size[0]
    one.click("h3 >> nth=0")
    assert one.url.split("#")[0].endswith("broadcast.html")
    for key, page in ((">", "ring.html"), (">", "flash.html"), ("<", "ring.html"), ("g", "index.html")):
        one.wait_for_selector("body[data-ready]")  # before that nobody listens to keys
        with one.expect_navigation():
            one.keyboard.press(key)
        assert one.url.split("#")[0].endswith(page)
