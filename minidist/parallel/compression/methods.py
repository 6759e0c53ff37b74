"""The methods of compression by name."""

from fractions import Fraction

from minidist.parallel.compression.method import Gathered, Method
from minidist.parallel.compression.one_bit import OneBit
from minidist.parallel.compression.power_sgd import PowerSGD
from minidist.parallel.compression.quantized import Int8, StochasticBFloat16
from minidist.parallel.compression.top_k import TopK

PLAIN = {"bf16": StochasticBFloat16, "int8": Int8, "onebit": OneBit}  # those that take no number
LONGEST = 18  # digits of a rank
CHOICES = "bf16, int8, onebit, topk:SHARE or powersgd:RANK"


def read_method(text: str) -> Method:
    """The method written ``int8``, ``topk:0.01`` or ``powersgd:4``, with nothing sent yet.

    Raises:
        ValueError: for another name, or a number that it cannot have.
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
    """Whether the messages of a method, written so, are bytes; the others are floats."""
    return isinstance(read_method(text), Gathered)


def _share(text: str, number: str) -> Fraction:
    try:
        if number.isascii() and "_" not in number and float(number) > 0:  # a float first: 1e-999999999 has no room
            share = Fraction(
                number
            )  # 0.07 of 100 elements are 7; with floats they would be 7.000000000000001, and so 8
            if share <= 1:
                return share
    except ValueError:
        pass  # told below, in the same words
    raise ValueError(f"compress={text}: the share to send must be above 0 and at most 1, as in topk:0.01")
