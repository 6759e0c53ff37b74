"""Moves arrays between ranks; knows nothing of autograd or models."""

from minidist.comm.collectives import (
    ReduceOp,
    all_gather_into_tensor,
    all_reduce,
    all_to_all_single,
    broadcast,
    gather,
    reduce,
    reduce_scatter_tensor,
    scatter,
)
from minidist.comm.failures import Deadlock, Hang, Mismatch, RankFailed
from minidist.comm.group import ProcessGroup
from minidist.comm.mesh import DeviceMesh, init_device_mesh
from minidist.comm.nccl.stream import find_gpus
from minidist.comm.placement import place_on_nodes
from minidist.comm.point_to_point import (
    P2POp,
    barrier,
    batch_isend_irecv,
    irecv,
    isend,
    recv,
    send,
    sendrecv,
    wait_any,
)
from minidist.comm.runtime.job import init
from minidist.comm.runtime.launch import Cluster, launch
from minidist.comm.work import Work

__all__ = [
    "Cluster",
    "Deadlock",
    "DeviceMesh",
    "Hang",
    "Mismatch",
    "P2POp",
    "ProcessGroup",
    "RankFailed",
    "ReduceOp",
    "Work",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "find_gpus",
    "gather",
    "init",
    "init_device_mesh",
    "irecv",
    "isend",
    "launch",
    "place_on_nodes",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "scatter",
    "send",
    "sendrecv",
    "wait_any",
]
