"""A demonstration: its name, what it shows, and the sizes that it can have."""

from collections.abc import Callable
from dataclasses import dataclass

from minidist.show.player.animation import Animation


@dataclass(frozen=True)
class Demonstration:
    """Call it to run it: ``show.ring(ranks=4)`` is an animation, which Jupyter displays.

    Args:
        name: as the command line has it.
        about: what is seen, in a line of the menu.
        make: (ranks, size, seed) -> the animation. It may raise ValueError for a size that it cannot have.
        ranks, size: what it takes unless told otherwise.
        size_is: what ``size`` counts.
        least_ranks, most_ranks: that make a picture.
        most: the largest size.
    """

    name: str
    about: str
    make: Callable[[int, int, int], Animation]
    ranks: int
    size: int
    size_is: str
    least_ranks: int = 2
    most_ranks: int = 8
    most: int = 10**6

    def __call__(self, ranks: int | None = None, size: int | None = None, seed: int = 0) -> Animation:
        """Run it.

        Raises:
            ValueError: for numbers that it cannot have, naming the argument and what it may be.
        """
        ranks = self.ranks if ranks is None else ranks
        size = self.size if size is None else size
        for argument, value in (("ranks", ranks), ("size", size), ("seed", seed)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{argument} must be a whole number, but is {value!r}")
        if not self.least_ranks <= ranks <= self.most_ranks:
            raise ValueError(
                f"the demonstration {self.name} shows {self.least_ranks} to {self.most_ranks} ranks, not {ranks}"
            )
        if not 1 <= size <= self.most:
            raise ValueError(f"size, {self.size_is}, must be from 1 to {self.most:,}, but is {size:,}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, but is {seed}")
        return self.make(ranks, size, seed)
