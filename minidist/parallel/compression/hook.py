"""A method of compression in the place of a bucket's all-reduce."""

from collections import Counter

from minidist.comm.group import ProcessGroup
from minidist.comm.work import Work
from minidist.parallel.compression.feedback import Residuals
from minidist.parallel.compression.methods import read_method


def compressing(text: str, error_feedback: bool, seed: int) -> "Compressor":
    """What ``DataParallel(hook=...)`` calls for each bucket that is complete.

    Args:
        text: the method, as ``read_method`` takes it.
        error_feedback: whether what a message leaves out is added to the next step's gradient. Methods that are right
            in the mean leave nothing out.
        seed: of roundings by chance and of PowerSGD's first directions.

    Raises:
        ValueError: what ``read_method`` raises.
    """
    return Compressor(text, error_feedback, seed)


class Compressor:
    """Sums buckets over the ranks by compressed messages: one rank's, with all that it keeps between steps.

    Compressing, sending and decoding are one program in the background of the bucket's group, so with sync=overlapped
    backward goes on meanwhile, and buckets are sent one after another in their order. (In torch a hook returns a Future
    and chains what follows a message with ``then``.)

    Attributes:
        residuals: what this rank has left out; None without error feedback.
    """

    def __init__(self, text: str, error_feedback: bool, seed: int) -> None:
        self.method, self.seed = read_method(text), seed
        self.residuals = Residuals(self.method.on_grid) if error_feedback and self.method.feeds_back else None
        self.steps: Counter[str] = Counter()  # in which each parameter has been sent
        self.inside: ProcessGroup | None = None  # the same ranks, for the calls of the program

    def __call__(self, bucket, group: ProcessGroup, algorithm: str) -> Work:
        """Begin to sum a bucket (parallel/data.py). When the work is done, its buffer holds what stands for the sum."""
        if self.inside is None:
            self.inside = group.duplicate()
        gradients = {parameter.name: view for parameter, view in zip(bucket.parameters, bucket.views, strict=True)}
        self.steps.update(gradients.keys())
        names = self.seed, self.steps[bucket.parameters[0].name]  # they are all sent in each step

        def program() -> None:
            self.method.sum_gradients(gradients, self.residuals, names, self.inside, algorithm)

        return group.start(f"compressed sum ({self.method.name}) of {len(gradients)} gradients", program)
