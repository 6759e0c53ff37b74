"""The site: its links lead somewhere, its pages are small, and a browser shows them without a network."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from minidist.course.answers import chapter_names
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.gallery import files, key_pictures

DOCS = Path(__file__).parents[2] / "docs"
MOST = 1_000_000  # bytes of a page, with all that it loads at once
PLAYER = "<!doctype html><title>a player</title><header></header><p>frames"


class Page(HTMLParser):
    """Links of a page, what it loads at once, and what can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.loads, self.places = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.places |= {found[name] for name in ("id", "name") if found.get(name)}
        address = found.get("href") or found.get("src") or ""
        if tag == "a":
            self.links.append(address)
        elif tag in ("img", "script", "iframe", "link") and found.get("loading") != "lazy":
            self.loads += [address] if tag != "link" or found.get("rel") in ("stylesheet", "icon") else []


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for module in ("sphinx", "myst_nb", "furo", "sphinx_copybutton", "sphinxarg", "latex2mathml"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install -e '.[site]'")
    folder = tmp_path_factory.mktemp("site")
    (folder / "gallery").mkdir()
    for name in DEMONSTRATIONS:
        (folder / "gallery" / f"{name}.html").write_text(PLAYER)
    for name, content in files({}, key_pictures(DOCS.parent / "chapters")):
        (folder / "gallery" / name).write_bytes(content)
    sys.path.insert(0, str(DOCS))
    from build_site import build

    build(folder)
    return folder


@pytest.mark.long
def test_every_link_leads_somewhere_and_pages_are_small(site):
    pages = {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    assert {f"{name}.html" for name in ("index", *(file.stem for file in DOCS.glob("*.md")))} <= names(pages, "docs")
    chapters = [file.stem for file in (DOCS.parent / "chapters").glob("*.ipynb")]
    assert {f"{name}.html" for name in chapters} == names(pages, "chapters") and len(chapters) > len(chapter_names())
    wrong, large, first = [], {}, site / "docs" / "index.html"
    lost = {path for path in pages if path.stem not in DEMONSTRATIONS} - {site / "index.html", first}
    for path, page in pages.items():
        for address in page.links + page.loads:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = pages.get(target)
            lost -= {path} if target == first else set()
            if not target.is_file() or (parts.fragment and there and unquote(parts.fragment) not in there.places):
                wrong.append((str(path.relative_to(site)), address))
        local = {(path.parent / unquote(urlsplit(one).path)).resolve() for one in page.loads if ":" not in one}
        size = path.stat().st_size + sum(one.stat().st_size for one in local if one.is_file())
        large |= {str(path.relative_to(site)): size} if size > MOST else {}
        assert not [one for one in page.loads if one.startswith(("http:", "https:", "//"))], path
    assert not wrong
    assert not large
    assert not lost  # no page is a dead end
    for name, made in (("demonstrations", "gallery/index.html"), ("explorer", "explorer.html")):
        assert f"../{made}" in pages[site / "docs" / f"{name}.html"].links
    assert "&#x27;" not in (site / "searchindex.js").read_text(encoding="utf-8")


def names(pages, folder: str) -> set[str]:
    return {path.name for path in pages if path.parent.name == folder}


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it(site, open_page, width):
    page = open_page((site / "docs" / "index.html").as_uri(), width)
    assert "Three doors" in page.inner_text("article") and page.locator("iframe").count() == 1
    page = open_page((site / "chapters" / "03_collectives.html").as_uri(), width)
    player = page.locator("details.player")
    assert player.count() and not player.first.locator("iframe").is_visible()
    player.first.locator("summary").click()
    assert player.first.locator("iframe").is_visible()
    hidden = page.locator("details.hide")  # the outputs that JupyterLab hides
    assert hidden.count() > 3 and not hidden.first.locator("div").first.is_visible()
    page.emulate_media(media="print")
    assert hidden.first.locator("div").first.is_visible()
    page.emulate_media(media="screen")
    stored = page.wait_for_selector("[data-animation] iframe", state="attached")
    assert stored.evaluate("one => getComputedStyle(one).height") == "640px"  # whichever it was stored with
    for theme in ("dark", "light"):  # the page's switch, whatever the system says
        page.evaluate(f"document.body.dataset.theme = '{theme}'")
        assert stored.evaluate("one => one.contentDocument.documentElement.className") == theme.replace("light", "")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page = open_page((site / "chapters" / "01_a_transformer_in_numpy.html").as_uri(), width)
    assert page.locator("math").count() > 5
    page = open_page((site / "chapters" / "04_data_parallelism.html").as_uri(), width)
    assert page.locator("table").count() > 5 and "<p>| " not in page.inner_html("article")
    page = open_page((site / "gallery" / "index.html").as_uri(), width)
    page.locator("a.card", has_text="7. Pipeline parallelism").click()
    page.locator("#picture-0 img").click()  # its chapter folds it, and the address unfolds it
    assert page.url.endswith("gallery/07_pipeline_parallelism-0.png")
    page = open_page((site / "docs" / "reference.html").as_uri(), width)
    assert page.locator("[id='minidist.all_reduce']").count()
    page = open_page((site / "docs" / "flags.html").as_uri(), width)
    assert "--zero" in page.inner_text("article")


@pytest.mark.long
def test_a_first_visitor_needs_no_scrolling_and_knows_the_words(site, open_page):
    page = open_page((site / "docs" / "index.html").as_uri(), 1280, 800)
    hero = page.locator("iframe.hero").bounding_box()
    assert hero["y"] + hero["height"] <= 800  # its buttons are at its foot
    page.get_by_role("link", name="Install").first.click()
    assert page.url.endswith("#install")
    chapter = site / "chapters" / "07_pipeline_parallelism.html"
    page = open_page(chapter.as_uri(), 390, 844, is_mobile=True, has_touch=True)
    assert not page.locator("article .cell_input").first.locator("pre").is_visible()  # what the notebook imports
    rank = page.locator("abbr", has_text="rank")
    rank.tap()
    assert "one GPU" in rank.evaluate("one => getComputedStyle(one, '::after').content")
