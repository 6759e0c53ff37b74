"""The sizes of a demonstration's model where ``size`` is its width."""


def check_width(size: int, least: int, most: int) -> None:
    """Raises ValueError for a width that shows nothing or takes too long. Called before any rank starts."""
    if not least <= size <= most:
        raise ValueError(f"size, the model's width, must be from {least} to {most}, but is {size}")


def heads_of(width: int) -> int:
    """How many attention heads a model of this width has: 4, or fewer where 4 do not divide it."""
    return next(heads for heads in (4, 2, 1) if width % heads == 0)
