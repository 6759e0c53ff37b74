"""A layout: how one training run is split over ranks. Written ``dp=4,algorithm=ring``, here and in every table."""

from dataclasses import dataclass, fields

from minidist.comm.algorithms import ALL_REDUCE

SYNCS = ("naive", "bucketed", "overlapped")


@dataclass(frozen=True)
class Layout:
    """Everything that may differ between two runs whose fingerprints must agree.

    Raises:
        ValueError: for a value that no run can have, naming it and what it may be.
    """

    dp: int = 1  # data-parallel ranks
    algorithm: str = "auto"  # of the gradients' all-reduce
    sync: str = "overlapped"  # when the gradients are summed: see parallel/data.py
    bucket_mb: float = 1.0  # MiB of gradients in one message

    def __post_init__(self) -> None:
        if not 1 <= self.dp <= 64:
            raise ValueError(f"dp={self.dp}: the number of data-parallel ranks must be from 1 to 64")
        _choice("algorithm", self.algorithm, ("auto", *ALL_REDUCE))
        _choice("sync", self.sync, SYNCS)
        if not self.bucket_mb > 0:
            raise ValueError(f"bucket_mb={self.bucket_mb:g}: a bucket must be larger than 0 MiB")

    @property
    def world_size(self) -> int:
        return self.dp

    def __str__(self) -> str:
        """The settings that differ from the defaults, as ``parse`` reads them."""
        changed = [f for f in fields(self) if f.name == "dp" or getattr(self, f.name) != f.default]
        return ",".join(f"{f.name}={getattr(self, f.name)}" for f in changed)

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The layout written ``key=value,key=value``.

        Raises:
            ValueError: for an unknown key, a key given twice, or a value of the wrong kind.
        """
        types = {f.name: f.type for f in fields(cls)}
        settings: dict = {}
        for part in text.replace(" ", "").split(","):
            key, equals, value = part.partition("=")
            if key not in types or not equals:
                raise ValueError(f"layout {text!r}: {part!r} is not key=value with a key of {', '.join(types)}")
            if key in settings:
                raise ValueError(f"layout {text!r}: {key} is given twice")
            try:
                settings[key] = types[key](value)
            except ValueError:
                kind = {int: "a whole number", float: "a number"}[types[key]]
                raise ValueError(f"layout {text!r}: {key}={value} is not {kind}") from None
        return cls(**settings)


def _choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{key}={value}: choose from {', '.join(choices)}")
