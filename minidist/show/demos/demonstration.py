"""A demonstration: its name, what it shows, and the sizes that it accepts."""

from collections.abc import Callable
from dataclasses import dataclass

from minidist.show.stage.animation import Animation


@dataclass(frozen=True)
class Demonstration:
    """Call it to run it: ``show.ring(ranks=4)`` returns an animation, which Jupyter displays.

    Args:
        name: its name on the command line.
        about: what it shows, for the menu.
        scenes: the names of its scenes with the default sizes, known before a rank starts.
        make: (ranks, size, seed) -> the animation. It may raise ValueError for a size that it does not accept.
        ranks, size: the defaults.
        size_is: what ``size`` counts.
        least_ranks, most_ranks: the smallest and the largest number of ranks.
        most: the largest size.
        on_gpu: whether it computes on the backend in use, which may be a GPU.
        group: its group in the menu.
    """

    name: str
    about: str
    scenes: tuple[str, ...]
    make: Callable[[int, int, int], Animation]
    ranks: int
    size: int
    size_is: str
    least_ranks: int = 2
    most_ranks: int = 8
    most: int = 10**6
    on_gpu: bool = False
    group: str = ""

    @property
    def possible_ranks(self) -> str:
        """How many it shows, in words."""
        if self.least_ranks == self.most_ranks == 1:
            return "1 rank"
        return f"{self.least_ranks} to {self.most_ranks} ranks"

    def check_scene(self, name: str) -> None:
        """Check the name of a scene before anything runs.

        Raises:
            ValueError: naming the scenes that there are.
        """
        if name not in self.scenes:
            raise ValueError(f"{self.name} has no scene {name!r}: choose from {', '.join(map(repr, self.scenes))}")

    def __call__(self, ranks: int | None = None, size: int | None = None, seed: int = 0) -> Animation:
        """Run it.

        Raises:
            ValueError: if it does not accept an argument; the message says which values it accepts.
        """
        ranks = self.ranks if ranks is None else ranks
        size = self.size if size is None else size
        for argument, value in (("ranks", ranks), ("size", size), ("seed", seed)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{argument} must be an integer, got {value!r}")
        if not self.least_ranks <= ranks <= self.most_ranks:
            raise ValueError(f"the demonstration {self.name} shows {self.possible_ranks}, not {ranks}")
        if not 1 <= size <= self.most:
            raise ValueError(f"size, {self.size_is}, must be from 1 to {self.most:,}, got {size:,}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        return self.make(ranks, size, seed)
