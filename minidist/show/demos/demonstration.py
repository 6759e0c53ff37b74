"""A demonstration: its name, what it shows, and the sizes that it accepts."""

from collections.abc import Callable
from dataclasses import dataclass

from minidist.show.stage.animation import Animation


@dataclass(frozen=True)
class Demonstration:
    """Demonstration of a mechanism. Call it to run it: ``show.ring(ranks=4)`` returns an animation, shown by Jupyter.

    Args:
        name: name on the command line.
        about: what the demonstration shows, for the menu.
        scenes: names of the scenes with the default sizes, known before a rank starts.
        make: (ranks, size, seed) -> the animation. It may raise ValueError for a size that it does not accept.
        ranks, size: defaults of these arguments.
        size_is: what ``size`` counts.
        least_ranks, most_ranks: the smallest and the largest number of ranks.
        most: the largest size.
        on_gpu: whether it computes on the backend in use, which may be a GPU.
        group: group in the menu.
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
        """Numbers of ranks that the demonstration can show, in words."""
        if self.least_ranks == self.most_ranks == 1:
            return "1 rank"
        return f"{self.least_ranks} to {self.most_ranks} ranks"

    def check_scene(self, name: str) -> None:
        """Check the name of a scene before anything runs.

        Raises:
            ValueError: if there is no such scene; the message names the valid ones.
        """
        if name not in self.scenes:
            raise ValueError(f"{self.name} has no scene {name!r}: choose from {', '.join(map(repr, self.scenes))}")

    def __call__(self, ranks: int | None = None, size: int | None = None, seed: int = 0) -> Animation:
        """Run the demonstration and return its animation.

        Raises:
            ValueError: if an argument is not accepted; the message says which values are.
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
