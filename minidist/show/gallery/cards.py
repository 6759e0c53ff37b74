"""A card of the gallery: a small picture, a name, what it shows, and the bug to switch on."""

from dataclasses import dataclass
from html import escape

from minidist.show.notebook import png
from minidist.show.player.animation import Animation
from minidist.show.player.scene import WIDTH
from minidist.show.player.still import LINE, draw_frame, type_size

INCHES, DPI = 4.2, 160  # of a picture that is 420 pixels wide on the page, sharp on a screen of high density
TALLEST = 0.75  # of a picture's width


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


def small_picture(animation: Animation) -> bytes:
    """The middle one of the first scene's stills as a PNG file, without words around it."""
    from matplotlib.figure import Figure

    scene = animation.scenes[0]
    frame = scene.frames[scene.stills[len(scene.stills) // 2]]
    height = min(TALLEST * INCHES, INCHES * (LINE * scene.height + 1) / (WIDTH + 2))
    figure = Figure(figsize=(INCHES, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    draw_frame(axes, frame, scene.height, type_size(INCHES / (WIDTH + 2)))
    return png(figure, DPI)
