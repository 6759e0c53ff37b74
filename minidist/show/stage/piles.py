"""A pile of parts whose heights change, such as the memory of a rank by kind."""

from collections.abc import Mapping

from minidist.show.stage.marks import SMALLEST, Mark, box, text


class Pile:
    """Pile of parts whose heights change.

    Args:
        name: label below the pile.
        place: (x, y, width, height); y is that of its foot.
        most: amount that fills the height.
        colours: part -> colour, from the bottom up.
    """

    def __init__(self, name: str, place, most: float, colours: Mapping[str, str]) -> None:
        self.x, self.foot, self.width, self.height = place
        self.most = most
        self.parts = {
            part: box(self.x, self.foot, self.width, 0, fill, f"{name}: {part}", sign=part[0])
            for part, fill in colours.items()
        }
        self.name = text(self.x + self.width / 2, self.foot + SMALLEST * 0.75, name)

    def level(self, amount: float) -> float:
        """Return the y of an amount."""
        return self.foot - self.height * amount / self.most

    def set(self, at: float, amounts: Mapping[str, float], lasting: float = 0.4) -> None:
        """Change the parts evenly to these amounts; parts that are not named shrink to 0."""
        below = 0.0
        for part, mark in self.parts.items():
            amount = amounts.get(part, 0.0)
            y, h = self.level(below + amount), self.height * amount / self.most
            if not at:
                mark.begin(y=y, h=h)
            elif (mark.now["y"], mark.now["h"]) != (y, h):
                mark.to(at, lasting, y=y, h=h)
            below += amount

    def marks(self) -> list[Mark]:
        return [*self.parts.values(), self.name]
