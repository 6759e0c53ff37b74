"""``cupy._core``: the libraries that CuPy adds with."""

CUB = 1


class Core:
    """Both kinds of accelerators, as CuPy begins with them."""

    def __init__(self) -> None:
        self._reduction = self._routine = [CUB]

    def get_reduction_accelerators(self) -> list[int]:
        return self._reduction

    def set_reduction_accelerators(self, accelerators: list[int]) -> None:
        self._reduction = list(accelerators)

    def get_routine_accelerators(self) -> list[int]:
        return self._routine

    def set_routine_accelerators(self, accelerators: list[int]) -> None:
        self._routine = list(accelerators)
