"""The cluster's clock: real ranks are recorded once, and replayed on other networks and slower chips."""

from dataclasses import replace
from itertools import product

import numpy as np

import minidist as md
from minidist import trace
from minidist.analysis.replay import Pace, replay
from minidist.analysis.report import report
from minidist.comm.cost import seconds as closed_form
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.topologies import topology_of
from minidist.plan.cluster.topology import Link, Topology

NARROWER = 8192 // 64  # how much wider the large model is for which the miniature stands
BYTES_WIDER = 2  # numbers here have 4 bytes, and 2 on an H100


def network(text: str, **changes) -> Topology:
    """Return the network of a cluster such as "h100:2x4"; ``changes`` replace fields of its ClusterSpec."""
    return topology_of(replace(ClusterSpec.parse(text), **changes))


def seconds(logs: list, topology: Topology) -> float:
    """Return how long recorded messages take on a network; computing takes no time."""
    return replay(logs, topology, None).seconds


def ideal_seconds(algorithm: str, nbytes: float, node_size: int, ranks: int) -> float:
    """Return the closed form of an all-reduce on H100 nodes: the sum over its steps of the slowest message."""
    return closed_form("all_reduce", algorithm, nbytes, tuple(rank // node_size for rank in range(ranks)))


def record_all_reduces(world, node_size: int, algorithms, sizes) -> dict:
    """Run every algorithm with every size; return (algorithm, bytes) -> (log, bytes sent to each rank)."""
    md.place_on_nodes(world, node_size)
    recorded = {}
    for algorithm, nbytes in product(algorithms, sizes):
        array, before = np.ones(nbytes // 4, np.float32), world.traffic
        trace.start()
        try:
            md.all_reduce(array, group=world, algorithm=algorithm)
        finally:
            log = trace.stop()
        recorded[algorithm, nbytes] = log, (world.traffic - before).sent[:, 0]
    return recorded


def record_sends(world, shift: int, nbytes: int) -> list:
    """Send to the other node of four, to the rank ``shift`` places further; return the log."""
    node, place = divmod(world.rank, 4)
    target, source = ((1 - node) * 4 + (place + move) % 4 for move in (shift, -shift))
    arrived = np.empty(nbytes // 4, np.float32)
    trace.start()
    receiving = md.irecv(arrived, source, world)
    md.isend(np.ones_like(arrived), target, world).wait()
    receiving.wait()
    return trace.stop()


def record_all_to_all(world, node_size: int, algorithm: str, nbytes: int) -> tuple:
    """Exchange pieces of ``nbytes``; return the log, and (bytes, messages, elements) sent to each rank."""
    md.place_on_nodes(world, node_size)
    outgoing = np.full((world.size, nbytes // 4), world.rank, np.float32)
    incoming, before = np.empty_like(outgoing), world.traffic
    trace.start()
    md.all_to_all_single(incoming, outgoing, group=world, algorithm=algorithm)
    return trace.stop(), (world.traffic - before).sent


def miniature(text: str) -> ClusterSpec:
    """Return a cluster whose links have no latency and whose chips are as much slower as the model is narrower."""
    spec = ClusterSpec.parse(text)
    flops = {"fp32": spec.accelerator.flops["bf16"] / NARROWER / BYTES_WIDER}
    inside, between = (replace(link, latency=0.0) for link in (spec.inside, spec.between))
    return replace(spec, accelerator=replace(spec.accelerator, flops=flops), inside=inside, between=between)


def step_on(logs: list, text: str, topology: Topology | None = None) -> tuple:
    """Replay a training run on a miniature cluster; return the replay and the report of its last step."""
    spec = miniature(text)
    replayed = replay(logs, topology or topology_of(spec), Pace(spec.accelerator).seconds)
    return replayed, report(replayed)


def dealt(topology: Topology, order) -> Topology:
    """Return the network with rank r on GPU ``order[r]``."""
    chips, nodes = (tuple(values[gpu] for gpu in order) for values in (topology.chips, topology.nodes))
    return replace(topology, chips=chips, nodes=nodes, routes={})


def bad_cable(topology: Topology, gpu: int, factor: float) -> Topology:
    """Return the network with one GPU's network card ``factor`` times as slow, in both directions."""

    def hurt(edge, link):
        bad = topology.chips[gpu] in edge and any("leaf" in end for end in edge)
        return Link(link.bandwidth / factor, link.latency) if bad else link

    return replace(topology, links={edge: hurt(edge, link) for edge, link in topology.links.items()}, routes={})


def slow_gpu(logs: list, rank: int, factor: float) -> list:
    """Return the logs with all kernels of one rank ``factor`` times as long."""

    def longer(entry):
        if not isinstance(entry, trace.Kernel):
            return entry
        return replace(entry, flops=int(entry.flops * factor), nbytes=int(entry.nbytes * factor))

    return [[longer(entry) for entry in log] if number == rank else log for number, log in enumerate(logs)]
