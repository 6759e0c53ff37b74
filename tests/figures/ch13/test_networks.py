from figures.ch13 import networks

from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.topologies import topology_of, torus
from minidist.plan.cluster.topology import Link


def test_a_line_for_each_link_and_every_rank():
    tree = topology_of(ClusterSpec.parse("h100:2x4"))
    rails = topology_of(ClusterSpec.parse("h100:2x4,network=rails"))
    figure = networks.draw({"tree": tree, "rails": rails}, {"tree": "one", "rails": "two"})
    for axes, topology in zip(figure.axes, (tree, rails), strict=True):
        assert len(axes.patches) == len(topology.links)
        assert {str(rank) for rank in range(8)} <= {text.get_text() for text in axes.texts}


def test_no_two_vertices_in_one_place():
    for text in ("h100:1x8", "h100:2x4", "h100:2x4,network=rails", "h100:4x2"):
        places = networks.positions(topology_of(ClusterSpec.parse(text)))
        assert len(set(places.values())) == len(places)
    places = networks.positions(torus((4, 4), Link(1.0)))
    assert len(set(places.values())) == 16
