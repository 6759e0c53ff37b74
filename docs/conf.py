"""The site: docs/ and chapters/ as static pages. ``python docs/build_site.py FOLDER`` builds it, with the players."""

import json
import re
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.addnodes import download_reference, pending_xref
from sphinx.util.osutil import relative_uri

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
import minidist  # noqa: E402

project, author, copyright, release = "minidist", "The minidist authors", "The minidist authors", minidist.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxarg.ext", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "chapters/*.ipynb"]
nb_execution_mode = "off"  # the outputs are those that are stored
nb_render_markdown_format = "myst"  # CommonMark has no tables
nb_code_prompt_show, nb_code_prompt_hide = "Show {type}", "Hide {type}"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = True
html_theme, html_title, html_show_sourcelink = "furo", "minidist", False
html_show_search_summary = False  # for an excerpt a search would load each page that it finds, 6 MB in all
html_static_path, html_css_files, html_favicon = ["site"], ["site.css"], "site/icon.svg"
html_js_files = [("site.js", {"defer": "defer"})]
autodoc_member_order, autodoc_typehints = "bysource", "signature"

DEMO = re.compile(r"minidist demo ([a-z][\w-]*)")
PAGES = {"minidist demo --all": "gallery/index.html", "minidist explore": "explorer.html"}  # that a command writes
EXPLAINED = (
    "rank",
    "layout",
    "fingerprint",
    "grain",
    "sequence chunk",
    "override",
    "ledger",
    "replay",
    "cluster's clock",
    "mutant",
)
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").replace("`", "")
MEANINGS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE))
GLOSSARY = {word: MEANINGS[word] for word in EXPLAINED}
WORDS = re.compile(rf"(?<![\w-])({'|'.join(EXPLAINED)})s?\b")


def prepare(app, name: str, source: list[str]) -> None:
    """Hide what a chapter imports and the outputs that JupyterLab hides; let it have one title; list the reference."""
    if name.startswith("chapters/"):
        notebook = json.loads(source[0])
        imports = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        imports["metadata"]["tags"] = [*imports["metadata"].get("tags", ()), "hide-input"]
        for number, cell in enumerate(notebook["cells"]):
            if number and cell["cell_type"] == "markdown":
                cell["source"] = [re.sub("^# ", "## ", line) for line in cell["source"]]
            if cell["metadata"].get("collapsed"):
                cell["metadata"]["tags"] = [*cell["metadata"].get("tags", ()), "hide-output"]
        source[0] = json.dumps(notebook)
    if name == "docs/reference":
        source[0] += "".join(
            f"\n```{{eval-rst}}\n.. auto{kind_of(one)}:: minidist.{one}\n```\n" for one in sorted(minidist.__all__)
        )


def kind_of(name: str) -> str:
    found = getattr(minidist, name)
    return "class" if isinstance(found, type) else "module" if hasattr(found, "__spec__") else "function"


def to_source(app, name: str, target: str, children: list) -> nodes.reference | None:
    """Return a link from a page to the page of a file or folder in the repository, or None if it has no page."""
    path = ROOT / "README.md" if is_readme(target) else (ROOT / Path(name).parent / target).resolve()
    if not path.exists() or not path.is_relative_to(ROOT):
        return None
    source = path.relative_to(ROOT).as_posix()
    app.env.sources = getattr(app.env, "sources", set()) | {source}
    address = "docs/index.html" if source == "README.md" else f"source/{source}.html"
    return nodes.reference("", "", *children, refuri=relative_uri(f"{name}.html", address), internal=True)


def to_files(app, tree) -> None:
    """Let links to code and to folders lead to pages, not to downloads or nowhere."""
    name = app.env.current_document.docname
    unknown = [link for link in tree.findall(pending_xref) if is_elsewhere(link["reftarget"])]
    for link in [*tree.findall(download_reference), *unknown]:
        if found := to_source(app, name, link["reftarget"], link.children):
            link.replace_self(found)


def is_elsewhere(target: str) -> bool:
    outside = target.startswith("../") and not target.endswith((".md", ".ipynb")) and "#" not in target
    return outside or is_readme(target)


def is_readme(target: str) -> bool:
    return target.strip("/") == "README"


def finish(app, tree, name: str) -> None:
    """Put what a command makes below it; link the gallery's pictures; explain words of the glossary."""
    seen = set()
    for literal in [one for kind in (nodes.literal_block, nodes.literal) for one in tree.findall(kind)]:
        block = literal
        while isinstance(block.parent, nodes.TextElement):
            block = block.parent
        for demo in DEMO.findall(literal.astext()):
            if demo not in seen and (Path(app.outdir) / "gallery" / f"{demo}.html").exists():
                seen.add(demo)
                address = relative_uri(f"{name}.html", f"gallery/{demo}.html")
                player = f'<details class="player"><summary>Play <code>{demo}</code> here</summary>'
                player += f'<iframe loading="lazy" title="{demo}" src="{address}"></iframe></details>'
                block.parent.insert(block.parent.index(block) + 1, nodes.raw("", player, format="html"))
        for command, page in PAGES.items():
            if isinstance(literal, nodes.literal_block) and command in literal.astext() and page not in seen:
                seen.add(page)
                link = f'<p><a href="{relative_uri(f"{name}.html", page)}">Open <code>{page}</code></a></p>'
                block.parent.insert(block.parent.index(block) + 1, nodes.raw("", link, format="html"))
    for picture in tree.findall(nodes.image):
        if "alt" not in picture and name.startswith("chapters/"):
            picture["alt"] = f"Figure: {section_of(picture)}"
    tagged = [cell for cell in tree.findall(nodes.container) if "tag_gallery" in cell["classes"]]
    for number, picture in enumerate([one for cell in tagged for one in cell.findall(nodes.image)]):
        file = relative_uri(f"{name}.html", f"gallery/{Path(name).name}-{number}.png")
        link = nodes.reference(refuri=file, ids=[f"picture-{number}"], internal=True)  # the gallery leads here
        picture.replace_self(link)
        link.append(picture)
    left = dict(GLOSSARY) if name != "docs/glossary" else {}
    for text in list(tree.findall(nodes.Text)):
        found = next((one for one in WORDS.finditer(text) if one[1] in left), None)
        if found and isinstance(text.parent, nodes.paragraph):
            term = nodes.abbreviation(found[0], found[0], explanation=left.pop(found[1]))
            parts = nodes.Text(text[: found.start()]), term, nodes.Text(text[found.end() :])
            text.parent.replace(text, [part for part in parts if part.astext()])


def section_of(node: nodes.Node) -> str:
    """Return the title of the section that a node is in."""
    while not isinstance(node, nodes.section):
        node = node.parent
    return node[0].astext()


def code_pages(app):
    """Make a page for each file that some page links to, and one that lists each folder."""
    for source in sorted(getattr(app.env, "sources", set()) - {"README.md"}):
        path = ROOT / source
        if path.is_dir():
            names = sorted(each.name for each in path.iterdir() if each.suffix in (".py", ".toml", ".md"))
            text, language = "\n".join(names), "text"
        else:
            text, language = path.read_text(encoding="utf-8"), language_of(source)
        body = app.builder.highlighter.highlight_block(text, language)
        yield f"source/{source}", {"title": source, "body": f"<h1>{source}</h1>{body}"}, "page.html"


def language_of(source: str) -> str:
    try:
        return get_lexer_for_filename(source).aliases[0]
    except ClassNotFound:
        return "text"


def commands_by_name(app, env) -> None:
    """Make a search show a command's name, not its whole --help."""
    found = env.get_domain("commands").data
    found["commands"] = [(command, command, *rest) for command, _, *rest in found["commands"]]


def mathml(translator, node) -> None:
    """Convert formulas to MathML, which browsers draw without a library."""
    translator.body.append(convert(node.astext(), display="block" if isinstance(node, nodes.math_block) else "inline"))
    raise nodes.SkipNode


def setup(app) -> None:
    app.connect("source-read", prepare)
    app.connect("doctree-read", to_files, priority=100)  # before Sphinx collects what is to be downloaded
    app.connect("env-updated", commands_by_name)
    app.connect("doctree-resolved", finish)
    app.connect("html-collect-pages", code_pages)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))


html_math_renderer = "mathml"
