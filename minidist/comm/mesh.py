"""Named dimensions over the ranks: which ranks differ in their data-parallel place alone, and so on."""

import math

import numpy as np

from minidist.comm.group import ProcessGroup, check_group
from minidist.overrides import overridable


class DeviceMesh:
    """The ranks of a group laid out as an array, and for each of its dimensions the group that this rank is in.

    ``init_device_mesh((2, 3), mesh_dim_names=("dp", "tp"), group=world)`` lays six ranks out as [[0 1 2], [3 4 5]]:
    ranks 0, 1, 2 form a tp group, ranks 0 and 3 a dp group. The last dimension changes fastest, so put there what
    talks most (Megatron-LM: tensor parallelism, whose ranks then share a machine). After
    ``torch.distributed.device_mesh``.

    Attributes:
        mesh: the ranks of the group it was made from, in its shape.
        mesh_dim_names: the name of each dimension.
    """

    def __init__(self, mesh: np.ndarray, names: tuple[str, ...], groups: dict[str, ProcessGroup], rank: int) -> None:
        self.mesh, self.mesh_dim_names, self._groups = mesh, names, groups
        self._coordinate = dict(zip(names, mesh_coordinate(rank, mesh.shape), strict=True))

    def __repr__(self) -> str:
        shape = ", ".join(f"{name}={size}" for name, size in zip(self.mesh_dim_names, self.mesh.shape, strict=True))
        return f"DeviceMesh({shape})"

    def get_group(self, mesh_dim: str) -> ProcessGroup:
        """The group of the ranks that differ from this one in that dimension alone."""
        return self._groups[self._known(mesh_dim)]

    def get_local_rank(self, mesh_dim: str) -> int:
        """This rank's place along a dimension."""
        return self._coordinate[self._known(mesh_dim)]

    def get_coordinate(self) -> tuple[int, ...]:
        """This rank's place along every dimension."""
        return tuple(self._coordinate.values())

    def size(self, mesh_dim: str | None = None) -> int:
        """The length of a dimension, or the number of all ranks."""
        if mesh_dim is None:
            return self.mesh.size
        return self.mesh.shape[self.mesh_dim_names.index(self._known(mesh_dim))]

    def _known(self, name: str) -> str:
        if name not in self.mesh_dim_names:
            raise KeyError(f"this mesh has no dimension {name!r}; it has {', '.join(self.mesh_dim_names)}")
        return name


def init_device_mesh(
    mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...], group: ProcessGroup
) -> DeviceMesh:
    """Lay the ranks of a group out in ``mesh_shape``, one name for each dimension. Called by all of its ranks.

    Raises:
        ValueError: when the shape does not hold exactly the group's ranks, or the names do not fit it.
    """
    check_group(group, "init_device_mesh")
    shape, names = tuple(mesh_shape), tuple(mesh_dim_names)
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise ValueError(f"mesh_dim_names must be {len(shape)} different names for mesh_shape {shape}, but is {names}")
    if math.prod(shape) != group.size or min(shape, default=0) < 1:
        factors = " x ".join(map(str, shape))
        raise ValueError(
            f"mesh_shape {factors} = {math.prod(shape)} must hold exactly the {group.size} ranks of the group"
        )
    groups: dict[str, ProcessGroup] = {}
    for dim, name in enumerate(names):
        for ranks in mesh_groups(shape, dim):
            if (line := group.new_group(ranks)) is not None:
                groups[name] = line
                line.axis = name
    return DeviceMesh(np.arange(group.size).reshape(shape), names, groups, group.rank)


@overridable
def mesh_coordinate(rank: int, mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
    """A rank's place along every dimension of a mesh: the digits of its number, the last dimension's change fastest."""
    place = []
    for length in reversed(mesh_shape):
        rank, digit = divmod(rank, length)
        place.append(digit)
    return tuple(reversed(place))


@overridable
def mesh_groups(mesh_shape: tuple[int, ...], dim: int) -> list[list[int]]:
    """The ranks that differ along one dimension alone: every line of the mesh along it, each rank in one of them."""
    mesh = np.arange(math.prod(mesh_shape)).reshape(mesh_shape)
    return np.moveaxis(mesh, dim, -1).reshape(-1, mesh_shape[dim]).tolist()
