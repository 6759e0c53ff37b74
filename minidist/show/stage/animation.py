"""What a demonstration returns: its stories, right and broken, and the forms to show them in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from minidist.show.notebook import png
from minidist.show.stage import page, still
from minidist.show.stage.marks import HEIGHT, WIDTH
from minidist.show.stage.story import Story

LARGE = 40  # pixels of the stage: the size of type that a small picture still shows


@dataclass(frozen=True, repr=False)
class Animation:
    """The stories of a demonstration. Jupyter displays it as a player.

    Args:
        name: name of the demonstration on the command line.
        title: what it shows.
        scenes: the right runs, and the broken ones, each with the name of the right one that it belongs to; the first
            one opens.
        logs: what each rank traced in the run of the first scene, for Perfetto.
    """

    name: str
    title: str
    scenes: tuple[Story, ...]
    logs: Sequence[list] = ()

    def __repr__(self) -> str:
        return f"<animation {self.name}: {', '.join(story.name for story in self.right)}; and broken runs>"

    @property
    def right(self) -> tuple[Story, ...]:
        return tuple(story for story in self.scenes if not story.broken)

    def find(self, name: str | None = None, broken: bool = False) -> Story:
        """The story of this name, or the run that the bug spoils in its place; by default the one that opens.

        Raises:
            ValueError: if there is none, naming those that there are.
        """
        if name is None and not broken:
            return self.scenes[0]
        those = [story for story in self.scenes if bool(story.broken) == broken]
        for story in those:
            if name in (None, story.name):
                return story
        what = "broken scene" if broken else "scene"
        raise ValueError(
            f"{self.name} has no {what} {name!r}: choose from {', '.join(repr(one.name) for one in those)}"
        )

    def twin(self, story: Story) -> Story | None:
        """The broken run of a right one, the right run of a broken one; None if the bug cannot be shown there."""
        return next(
            (one for one in self.scenes if one.name == story.name and bool(one.broken) != bool(story.broken)), None
        )

    def only(self, *names: str) -> "Animation":
        """These stories alone, with their broken runs."""
        kept = [self.find(name).name for name in names]
        return replace(self, scenes=tuple(story for story in self.scenes if story.name in kept))

    def html(self, first: Story | None = None, links: Mapping[str, str] = page.NO_LINKS) -> str:
        """A page that needs no network and begins with a story, or the one that opens; links as in ``page.whole``."""
        return page.whole(self.title, self.scenes, self.scenes.index(first or self.find()), links)

    @property
    def bug(self) -> str:
        """The first injected bug."""
        return next(story.broken for story in self.scenes if story.broken)

    def figure(self):
        """A matplotlib Figure of some beats of every scene."""
        return still.sheet([story.at_start for story in self.scenes], 3)

    def small_picture(self) -> bytes:
        """A beat in the middle of the first scene, as a PNG file without words too small for it."""
        from matplotlib.figure import Figure

        story = self.find().at_start
        figure = Figure(figsize=(4.2, 4.2 * HEIGHT / WIDTH))
        moments = [(one.at + other.at) / 2 for one, other in pairwise(story.beats)] or [0.0]
        large = replace(
            story, marks=[mark for mark in story.marks if mark.kind != "text" or mark.still["size"] >= LARGE]
        )
        still.draw(figure.add_axes((0, 0, 1, 1)), large, moments[len(moments) // 2], 72 * 4.2 / WIDTH)
        return png(figure, 160)

    def _repr_html_(self) -> str:
        first = self.find()
        stills = [story.at_start for story in (first, self.twin(first)) if story]
        return page.in_notebook(self.html(), self.title, png(still.sheet(stills, 3), 56))
