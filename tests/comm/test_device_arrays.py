"""Arrays that lie elsewhere are staged through host memory: the path that CuPy's take, with a stand-in for the GPU."""

from types import SimpleNamespace

import numpy as np

import minidist as md
from minidist import backend

LIMIT = 30


class DeviceArray:
    """What the staging uses of a CuPy array. Its memory cannot be reached but through ``get`` and ``x[...] = y``."""

    def __init__(self, values) -> None:
        self._memory = np.array(values)
        self.dtype, self.shape, self.flags = self._memory.dtype, self._memory.shape, self._memory.flags
        self.size, self.nbytes, self.ndim = self._memory.size, self._memory.nbytes, self._memory.ndim
        self.device = SimpleNamespace(use=lambda: None)
        self.sets = 0

    def get(self) -> np.ndarray:
        return self._memory.copy()

    def __setitem__(self, place, array: np.ndarray) -> None:
        assert place is Ellipsis and array.shape == self.shape and array.dtype == self.dtype
        self._memory[...] = array
        self.sets += 1


def staged(world):
    backend.xp.__dict__["ndarray"] = DeviceArray
    try:
        rank, size = world.rank, world.size
        right, left = (rank + 1) % size, (rank - 1) % size

        x = DeviceArray(np.full((2, 3), float(rank)))
        md.all_reduce(x, group=world)
        assert (x.get() == 3).all() and x.sets == 1
        work = md.all_reduce(x, group=world, async_op=True)
        assert work.wait() and (x.get() == 9).all()

        x = DeviceArray(np.full(4, float(rank)))
        md.broadcast(x, 1, group=world)
        assert (x.get() == 1).all()

        everything = DeviceArray(np.zeros((size, 2)))
        md.all_gather_into_tensor(everything, DeviceArray(np.full(2, float(rank))), group=world)
        assert everything.get()[:, 0].tolist() == [0, 1, 2]
        part = DeviceArray(np.zeros(2))
        md.reduce_scatter_tensor(part, everything, group=world)
        assert (part.get() == 3 * rank).all()

        output = DeviceArray(np.zeros((size, 2)))
        md.all_to_all_single(output, DeviceArray(np.full((size, 2), float(rank))), group=world)
        assert output.get()[:, 1].tolist() == [0, 1, 2] and output.sets == 1
        md.all_to_all_single(output, output, group=world)
        assert (output.get() == rank).all()

        x = DeviceArray(np.zeros(5))
        receiving = md.irecv(x, left, world)
        md.send(DeviceArray(np.full(5, float(rank))), right, world)
        receiving.wait()
        assert (x.get() == left).all()

        boxes = [DeviceArray(np.zeros(2)) for _ in range(size)] if rank == 0 else None
        md.gather(DeviceArray(np.full(2, float(rank))), boxes, 0, world)
        assert boxes is None or [box.get()[0] for box in boxes] == [0, 1, 2]
    finally:
        backend.xp.__dict__["ndarray"] = np.ndarray
    return True


def test_arrays_on_a_device_are_copied_there_and_back(ranks):
    assert all(ranks(3).run(staged, timeout=LIMIT))
