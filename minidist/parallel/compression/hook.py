"""The methods of compression by name, and the hook that replaces a bucket's all-reduce by one of them."""

from collections import Counter
from fractions import Fraction

from minidist.comm.group import ProcessGroup
from minidist.comm.work import Work
from minidist.parallel.compression.feedback import Residuals
from minidist.parallel.compression.gathered import Gathered, Int8, OneBit, StochasticBFloat16, TopK
from minidist.parallel.compression.method import Method
from minidist.parallel.compression.power_sgd import PowerSGD

PLAIN = {"bf16": StochasticBFloat16, "int8": Int8, "onebit": OneBit}  # methods that take no number
LONGEST = 18  # digits of a rank
CHOICES = "bf16, int8, onebit, topk:SHARE or powersgd:RANK"


def read_method(text: str) -> Method:
    """Parse a method such as ``int8``, ``topk:0.01`` or ``powersgd:4``, and return it in its initial state.

    Raises:
        ValueError: if there is no such method, or its number is invalid.
    """
    name, colon, number = text.partition(":")
    if name in PLAIN:
        if colon:
            raise ValueError(f"compress={text}: {name} takes no number; write compress={name}")
        return PLAIN[name](text)
    if name == "topk":
        return TopK(text, _share(text, number))
    if name == "powersgd":
        if not (number.isascii() and number.isdecimal() and len(number) <= LONGEST and int(number)):
            raise ValueError(f"compress={text}: the rank must be a whole number of 1 or more, as in powersgd:4")
        return PowerSGD(text, int(number))
    raise ValueError(f"compress={text}: choose {CHOICES}")


def sends_bytes(text: str) -> bool:
    """Return whether the messages of the method named ``text`` are bytes; other methods send floats."""
    return isinstance(read_method(text), Gathered)


def _share(text: str, number: str) -> Fraction:
    try:
        if number.isascii() and "_" not in number and float(number) > 0:  # a float first: 1e-999999999 has no room
            share = Fraction(number)  # 0.07 of 100 elements are 7; a float has 7.000000000000001 of them, and so 8
            if share <= 1:
                return share
    except ValueError:
        pass  # raised below, with the same message
    raise ValueError(f"compress={text}: the share to send must be above 0 and at most 1, as in topk:0.01")


class Compressor:
    """Hook that sums buckets over the ranks by compressed messages; it keeps this rank's state between steps.

    Compressing, sending and decoding are one program in the background of the bucket's group, so with sync=overlapped
    backward goes on meanwhile, and buckets are sent one after another in their order. (In torch a hook returns a Future
    and chains further work with ``then``.)

    Args:
        text: the method, as ``read_method`` takes it.
        error_feedback: add what a message leaves out to the next step's gradient. Methods whose rounding is unbiased
            leave nothing out.
        seed: seed of stochastic rounding and of PowerSGD's first directions.

    Attributes:
        residuals: what this rank has left out; None without error feedback.

    Raises:
        ValueError: if there is no such method, or its number is invalid.
    """

    def __init__(self, text: str, error_feedback: bool, seed: int) -> None:
        self.method, self.seed = read_method(text), seed
        self.residuals = Residuals(self.method.on_grid) if error_feedback and self.method.feeds_back else None
        self.steps: Counter[str] = Counter()  # number of steps in which each parameter has been sent
        self.inside: ProcessGroup | None = None  # duplicate of the group, for the program's own collectives

    def __call__(self, bucket, group: ProcessGroup, algorithm: str) -> Work:
        """Begin to sum a bucket (parallel/data.py). When the work is done, its buffer holds the approximate sum."""
        inside = self.inside = self.inside or group.duplicate()
        gradients = {parameter.name: view for parameter, view in zip(bucket.parameters, bucket.views, strict=True)}
        self.steps.update(gradients.keys())
        names = self.seed, self.steps[bucket.parameters[0].name]  # all parameters have been sent equally often

        def program() -> None:
            self.method.sum_gradients(gradients, self.residuals, names, inside, algorithm)

        return group.run_in_background(f"compressed sum ({self.method.name}) of {len(gradients)} gradients", program)
