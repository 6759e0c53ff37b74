"""The animation that a demonstration returns: its stories, right and broken, and the formats that show them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from minidist.show.notebook import png
from minidist.show.stage import page, still
from minidist.show.stage.marks import HEIGHT, WIDTH
from minidist.show.stage.story import Story

LARGE = 40  # pixels of the stage: the smallest type that a small picture shows


@dataclass(frozen=True, repr=False)
class Animation:
    """Stories of a demonstration. Jupyter displays them as a player.

    Args:
        name: name of the demonstration on the command line.
        title: one line that says what the demonstration shows.
        scenes: right and broken runs; a broken one has the name of its right one. The player opens with the first.
        logs: trace of each rank in the run of the first scene, for Perfetto.
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
        """Return the right or the broken story of this name.

        Without a name, return the story that the player opens with, or the first broken one.

        Raises:
            ValueError: if there is no such story; the message names the valid choices.
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
        """Return the broken run of a right one, or the right run of a broken one; None if there is none."""
        return next(
            (one for one in self.scenes if one.name == story.name and bool(one.broken) != bool(story.broken)), None
        )

    def only(self, *names: str) -> "Animation":
        """Return an animation of these stories alone, with their broken runs."""
        kept = [self.find(name).name for name in names]
        return replace(self, scenes=tuple(story for story in self.scenes if story.name in kept))

    def html(self, first: Story | None = None, links: Mapping[str, str] = page.NO_LINKS) -> str:
        """Return an offline page that opens with ``first``, or the first scene. links: see ``page.whole``."""
        return page.whole(self.title, self.scenes, self.scenes.index(first or self.find()), links)

    @property
    def bug(self) -> str:
        """The first injected bug."""
        return next(story.broken for story in self.scenes if story.broken)

    def figure(self):
        """Return a matplotlib Figure of up to three beats of every scene."""
        return still.sheet([story.at_start for story in self.scenes], 3)

    def small_picture(self) -> bytes:
        """Return a PNG file of the middle of the first scene, without text that would be too small to read."""
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
