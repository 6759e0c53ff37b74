"""A card of the gallery: a small picture, a name, what it shows, and the bug to switch on."""

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Card:
    """What the gallery says of one demonstration.

    Args:
        page: the file that a click opens; "" if there is none.
        picture: the file of the small picture; "" if there is none.
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
