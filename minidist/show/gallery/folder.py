"""All files of the gallery: pages that lead to each other, small pictures, and the page of cards."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template

from minidist.show.demos import DEMONSTRATIONS
from minidist.show.gallery.chapters import Picture
from minidist.show.stage.animation import Animation

INDEX = "index.html"
TEMPLATE = Path(__file__).parent / INDEX


@dataclass(frozen=True)
class Card:
    """Card of one demonstration in the gallery.

    Args:
        page: file that a click opens; "" if there is none.
        picture: file of the small picture; "" if there is none.
        extra: the bug, or why there is no page.
    """

    name: str
    about: str
    group: str
    page: str
    picture: str
    extra: str

    def html(self) -> str:
        image = f'<img src="{escape(self.picture)}" alt="">' if self.picture else ""
        inside = f'<div class="picture">{image}</div><h3>{escape(self.name)}</h3><p>{escape(self.about)}</p>'
        if not self.page:
            return f'<div class="card failed">{inside}<p class="extra">{escape(self.extra)}</p></div>'
        extra = f'<p class="extra"><b>break it</b> {escape(self.extra)}</p>'
        return f'<a class="card" href="{escape(self.page)}">{inside}{extra}</a>'


def files(made: Mapping[str, Animation | str], pictures: Sequence[Picture]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file, the page of cards last.

    Args:
        made: name of each demonstration, in the order of the menu -> its animation, or why there is none.
        pictures: pictures of the chapters.
    """
    shown = [(name, animation) for name, animation in made.items() if isinstance(animation, Animation)]
    for number, (name, animation) in enumerate(shown):
        around = {"previous": shown[number - 1 : number], "next": shown[number + 1 : number + 2]}
        links = {where: f"{other}.html" for where, others in around.items() for other, _ in others} | {"gallery": INDEX}
        yield f"{name}.html", animation.html(links=links).encode()
        yield f"{name}.png", animation.small_picture()
    for picture in pictures:
        yield picture.file, picture.content
    yield INDEX, _index([_card(name, animation) for name, animation in made.items()], pictures).encode()


def _card(name: str, animation: Animation | str) -> Card:
    demonstration = DEMONSTRATIONS[name]
    if isinstance(animation, str):
        return Card(name, demonstration.about, demonstration.group, "", "", animation)
    return Card(name, demonstration.about, demonstration.group, f"{name}.html", f"{name}.png", animation.bug)


def _index(cards: Sequence[Card], pictures: Sequence[Picture]) -> str:
    sections = {group: [card.html() for card in those] for group, those in groupby(cards, lambda card: card.group)}
    if pictures:
        sections["from the chapters"] = [_figure(picture) for picture in pictures]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        COUNT=sum(bool(card.page) for card in cards),
        GROUPS="".join(f'<a href="#{_anchor(group)}">{escape(group)}</a>' for group in sections),
        SECTIONS="\n".join(_section(group, entries) for group, entries in sections.items()),
    )


def _section(group: str, entries: Sequence[str]) -> str:
    return "\n".join((f'<h2 id="{_anchor(group)}">{escape(group)}</h2>', '<div class="grid">', *entries, "</div>"))


def _figure(picture: Picture) -> str:
    return (
        f'<a class="card" href="{escape(picture.file)}"><div class="picture"><img src="{escape(picture.file)}" alt="">'
        f"</div><h3>{escape(picture.chapter)}</h3><p>{escape(picture.question)}</p></a>"
    )


def _anchor(group: str) -> str:
    return group.replace(" ", "-")
