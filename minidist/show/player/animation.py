"""What a demonstration returns: its scenes, the scene with the injected bug, and the formats to show them in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from minidist.show.player import page, slide, still
from minidist.show.player.scene import Scene


@dataclass(frozen=True, repr=False)
class Animation:
    """The scenes of a demonstration to choose from, and one with an injected bug. Jupyter displays it as a player.

    Args:
        name: name of the demonstration on the command line.
        title: what it shows.
        scenes: the correct run, or several to compare.
        broken: the run with the injected bug; the "break it" button shows it.
        also_broken: the same bug in other scenes, each named by its ``twin``.
        bug: what was injected, in one line, into all broken scenes that name no bug of their own.
        logs: what each rank traced in the run of the first scene, for Perfetto.
    """

    name: str
    title: str
    scenes: tuple[Scene, ...]
    broken: Scene
    bug: str
    logs: Sequence[list] = ()
    also_broken: tuple[Scene, ...] = ()

    def __repr__(self) -> str:
        return f"<animation {self.name}: {', '.join(scene.name for scene in self.scenes)}; and a broken run>"

    @property
    def all_scenes(self) -> tuple[Scene, ...]:
        """The scenes and, last, the broken ones."""
        return (*self.scenes, *self.all_broken)

    @property
    def all_broken(self) -> tuple[Scene, ...]:
        return (self.broken, *self.also_broken)

    def broken_twin(self, scene: Scene) -> Scene:
        """The broken run that a scene is to be compared with; if it has none, the first one."""
        return self.own_twin(scene) or self.broken

    def own_twin(self, scene: Scene) -> Scene | None:
        """The broken run that matches a scene moment by moment; None if the bug cannot be shown there."""
        named = next((one for one in self.all_broken if one.twin == scene.name), None)
        return named or next((one for one in self.all_broken if not one.twin), None)

    def breakable(self) -> tuple[str, ...]:
        """The names of the scenes in which the bug can be shown."""
        return tuple(scene.name for scene in self.scenes if self.own_twin(scene))

    def bug_of(self, scene: Scene) -> str:
        """What was injected into a scene; "" if it is a correct one."""
        return scene.bug or self.bug if self.is_broken(scene) else ""

    def is_broken(self, scene: Scene) -> bool:
        """Whether a scene has the injected bug."""
        return any(scene is one for one in self.all_broken)

    def only(self, *names: str) -> "Animation":
        """Return the animation with these scenes alone.

        Raises:
            ValueError: if no scene has one of these names.
        """
        known = {scene.name: scene for scene in self.scenes}
        for name in names:
            if name not in known:
                raise ValueError(f"{self.name} has no scene {name!r}: choose from {', '.join(map(repr, known))}")
        logs = self.logs if names[0] == self.scenes[0].name else ()  # the logs belong to the first scene
        also_broken = tuple(scene for scene in self.also_broken if scene.twin in names)
        return replace(self, scenes=tuple(known[name] for name in names), logs=logs, also_broken=also_broken)

    def figure(self):
        """A matplotlib Figure of the stills of all scenes."""
        return still.draw(self.all_scenes, self.bug, len(self.all_broken))

    def contact_sheet(self, scene: Scene):
        """A matplotlib Figure of every step of one scene."""
        return still.contact_sheet(scene, self.bug_of(scene))

    def slide(self, scene: Scene, step: int):
        """A matplotlib Figure of one step of a scene, as a slide of 16:9.

        Raises:
            ValueError: if the scene has no such step.
        """
        if not 0 <= step < len(scene.frames):
            last = len(scene.frames) - 1
            raise ValueError(f"scene {scene.name!r} of {self.name} has the steps 0 to {last}, and no step {step}")
        return slide.draw(scene, step, self.bug_of(scene))

    def html(self, first: Scene | None = None, links: Mapping[str, str] = page.NO_LINKS) -> str:
        """A self-contained page that needs no network.

        Args:
            first: the scene that it begins with.
            links: "previous", "next" and "gallery" -> the addresses of other pages.
        """
        number = next((i for i, scene in enumerate(self.all_scenes) if scene is first), 0)
        return page.whole(self.title, self.all_scenes, self.bug, len(self.all_broken), number, links)

    def _repr_html_(self) -> str:
        right = self.scenes[0]  # and the same step broken: pictures of all scenes would make a notebook too large
        picture = still.draw((right, self.broken_twin(right)), self.bug)
        return page.in_notebook(self.html(), self.title, picture, max(scene.height for scene in self.all_scenes))
