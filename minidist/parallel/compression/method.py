"""The interface of a method of compression."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from minidist.comm.group import ProcessGroup
from minidist.parallel.compression.feedback import Residuals

Shape = tuple[int, ...]


class Method(ABC):
    """Method of compressing gradients.

    Attributes:
        name: the method as a layout writes it.
        feeds_back: whether it leaves something out that error feedback can send later.
        on_grid: whether its messages do not consist of elements, so that feedback.py rounds values to a grid first.
    """

    feeds_back, on_grid = True, False

    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, full_rank: int) -> None:  # noqa: B027  most fit any model
        """Raise ValueError if the method makes no sense for a model. full_rank: see ``why_it_differs``."""

    @abstractmethod
    def why_it_differs(self, full_rank: int) -> str:
        """Return why a run does not have the bits of one process, in one sentence; "" if it has them.

        Args:
            full_rank: rank at which PowerSGD sends every gradient of the model as it is.
        """

    @abstractmethod
    def bytes_sent(self, shapes: Sequence[Shape], ranks: int, itemsize: int) -> float:
        """Bytes of payload that one rank sends in a step for a bucket, on average over the ranks.

        Args:
            shapes: shapes of the bucket's parameters on this rank.
            ranks: number of ranks that sum their gradients.
            itemsize: bytes of an element of the bucket: 8 for float64.
        """

    @abstractmethod
    def sum_gradients(
        self, gradients: dict, residuals: Residuals | None, names: Sequence, group: ProcessGroup, algorithm: str
    ) -> None:
        """Overwrite this rank's gradients with the approximation of their sum over the ranks.

        Args:
            gradients: parameter name -> gradient, of any shape; all have one dtype.
            residuals: what this rank has left out so far; None without error feedback.
            names: the seed and the step, which with the parameter and the rank name the random numbers.
            group: the ranks, all of which call it with the same shapes in the same order.
            algorithm: algorithm of the all-reduce; an all-gather uses it if it has one of that name.
        """
