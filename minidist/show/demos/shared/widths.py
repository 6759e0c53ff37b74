"""The model of a demonstration whose ``size`` is the model's width."""


def check_width(size: int, least: int, most: int) -> None:
    """Raises ValueError for a width that shows nothing or takes too long. Call it before any rank starts."""
    if not least <= size <= most:
        raise ValueError(f"size, the model's width, must be from {least} to {most}, got {size}")


def heads_of(width: int) -> int:
    """The number of attention heads for this width: 4, or fewer if 4 does not divide it."""
    return next(heads for heads in (4, 2, 1) if width % heads == 0)
