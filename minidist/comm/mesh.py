"""Ranks as an array with named dimensions: for each dimension, the groups of ranks that differ only in it."""

import math

import numpy as np

from minidist.comm.group import ProcessGroup, check_group
from minidist.overrides import overridable


class DeviceMesh:
    """Ranks of a group as an array, with the group that this rank is in along each dimension.

    ``init_device_mesh((2, 3), mesh_dim_names=("dp", "tp"), group=world)`` arranges six ranks as [[0 1 2], [3 4 5]]:
    ranks 0, 1, 2 form a tp group, ranks 0 and 3 a dp group. The last dimension changes fastest, so it should be the one
    that communicates most (in Megatron-LM tensor parallelism, whose ranks then share a node). Modelled on
    ``torch.distributed.device_mesh``. Methods raise KeyError for a dimension that the mesh does not have.

    Attributes:
        group: all ranks of the mesh.
        mesh: the ranks of the group, in the shape of the mesh.
        mesh_dim_names: the name of each dimension.
    """

    def __init__(self, mesh: np.ndarray, names: tuple[str, ...], groups: dict[str, ProcessGroup], group) -> None:
        self.mesh, self.mesh_dim_names, self._groups, self.group = mesh, names, groups, group
        self._coordinate = dict(zip(names, mesh_coordinate(group.rank, mesh.shape), strict=True))

    def __repr__(self) -> str:
        shape = ", ".join(f"{name}={size}" for name, size in zip(self.mesh_dim_names, self.mesh.shape, strict=True))
        return f"DeviceMesh({shape})"

    def get_group(self, mesh_dim: str) -> ProcessGroup:
        """Return the group of the ranks that differ from this one only in that dimension."""
        return self._groups[self._known(mesh_dim)]

    def get_local_rank(self, mesh_dim: str) -> int:
        """Return this rank's coordinate in a dimension."""
        return self._coordinate[self._known(mesh_dim)]

    def get_coordinate(self) -> tuple[int, ...]:
        """Return this rank's coordinate in every dimension."""
        return tuple(self._coordinate.values())

    def size(self, mesh_dim: str | None = None) -> int:
        """Return the length of a dimension; without one, the number of ranks in the mesh."""
        if mesh_dim is None:
            return self.mesh.size
        return self.mesh.shape[self.mesh_dim_names.index(self._known(mesh_dim))]

    def flatten(self, mesh_dims: tuple[str, str], name: str) -> "DeviceMesh":
        """Return the mesh with two neighbouring dimensions merged. All ranks call it (torch: ``DeviceMesh._flatten``).

        Raises:
            ValueError: if the dimensions are not next to each other, in this order.
        """
        first, second = (self.mesh_dim_names.index(self._known(dim)) for dim in mesh_dims)
        if second != first + 1:
            raise ValueError(f"flatten: {mesh_dims[1]!r} does not follow {mesh_dims[0]!r} in {self.mesh_dim_names}")
        shape, names = list(self.mesh.shape), list(self.mesh_dim_names)
        shape[first : second + 1], names[first : second + 1] = [shape[first] * shape[second]], [name]
        return init_device_mesh(tuple(shape), mesh_dim_names=tuple(names), group=self.group)

    def _known(self, name: str) -> str:
        if name not in self.mesh_dim_names:
            raise KeyError(f"this mesh has no dimension {name!r}; it has {', '.join(self.mesh_dim_names)}")
        return name


def init_device_mesh(
    mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...], group: ProcessGroup
) -> DeviceMesh:
    """Arrange a group's ranks in ``mesh_shape``, with one name for each dimension. All ranks of the group call it.

    Raises:
        ValueError: when the shape does not hold exactly the group's ranks, or does not match the names.
    """
    check_group(group, "init_device_mesh")
    shape, names = tuple(mesh_shape), tuple(mesh_dim_names)
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise ValueError(f"mesh_dim_names must be {len(shape)} different names for mesh_shape {shape}, got {names}")
    if math.prod(shape) != group.size or min(shape, default=0) < 1:
        raise ValueError(
            f"mesh_shape {shape} makes {math.prod(shape)} ranks, but the group has {group.size}; they must agree"
        )
    groups: dict[str, ProcessGroup] = {}
    for dim, name in enumerate(names):
        for ranks in mesh_groups(shape, dim):
            if (line := group.new_group(ranks)) is not None:
                groups[name] = line
                line.name = name
    return DeviceMesh(np.arange(group.size).reshape(shape), names, groups, group)


@overridable
def mesh_coordinate(rank: int, mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a rank's coordinate in every dimension of a mesh: the rank's digits, of which the last changes fastest."""
    place = []
    for length in reversed(mesh_shape):
        rank, digit = divmod(rank, length)
        place.append(digit)
    return tuple(reversed(place))


@overridable
def mesh_groups(mesh_shape: tuple[int, ...], dim: int) -> list[list[int]]:
    """Return the groups of ranks that differ only in one dimension: every line of the mesh along it."""
    mesh = np.arange(math.prod(mesh_shape)).reshape(mesh_shape)
    return np.moveaxis(mesh, dim, -1).reshape(-1, mesh_shape[dim]).tolist()
