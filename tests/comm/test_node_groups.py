"""Which ranks share a node, and what a run counts of it."""

import numpy as np
import pytest

import minidist as md
from minidist.comm.nodes.placement import Link, Links, check_node_size, node_grid, place_on_nodes, ranks_by_node

LIMIT = 60  # seconds for one run of a cluster


def nodes_of_groups(world):
    before = world.nodes
    links = Links(between=Link(bandwidth=1e9, latency=1e-5))
    place_on_nodes(world, 2, links)
    column = world.new_group([5, 3, 1] if world.rank % 2 else [0, 2, 4])
    return before, world.nodes, column.nodes, world.transport.links == links


def test_every_group_knows_the_nodes_of_its_ranks(ranks):
    cluster = ranks(6)
    for rank, found in enumerate(cluster.run(nodes_of_groups, timeout=LIMIT)):
        assert found == ((0,) * 6, (0, 0, 1, 1, 2, 2), (2, 1, 0) if rank % 2 else (0, 1, 2), True)
    # a new run begins on one node again
    assert cluster.run(lambda world: world.nodes, timeout=LIMIT) == [(0,) * 6] * 6


@pytest.mark.parametrize(
    ("node_size", "world_size", "message"),
    [
        (4, 6, "6 ranks do not fill nodes of 4. Choose node_size 3 or 6, or 4 or 8 ranks"),
        (5, 12, "12 ranks do not fill nodes of 5. Choose node_size 4 or 6, or 10 or 15 ranks"),
        (4, 2, "2 ranks do not fill nodes of 4. Choose node_size 2, or 4 ranks"),
        (2, 7, "7 ranks do not fill nodes of 2. Choose node_size 1 or 7, or 6 or 8 ranks"),
        (0, 4, "node_size=0: a node has at least 1 rank"),
        (-2, 4, "node_size=-2: a node has at least 1 rank"),
    ],
)
def test_ranks_that_do_not_fill_nodes(node_size, world_size, message):
    with pytest.raises(ValueError) as caught:
        check_node_size(node_size, world_size)
    assert message in str(caught.value)


@pytest.mark.parametrize(("node_size", "world_size"), [(1, 1), (1, 5), (5, 5), (3, 9)])
def test_ranks_that_fill_nodes(node_size, world_size):
    check_node_size(node_size, world_size)


def misplaced(world):
    messages = []
    for group, size in ((world.new_group([world.rank]), 1), (world, 4)):
        try:
            place_on_nodes(group, size)
        except ValueError as error:
            messages.append(str(error))
    return messages, world.nodes


def test_only_the_world_is_placed_and_nothing_is_changed_by_an_error(ranks):
    for messages, nodes in ranks(3).run(misplaced, timeout=LIMIT):
        assert "pass the world" in messages[0] and "do not fill nodes of 4" in messages[1] and nodes == (0, 0, 0)


def test_the_grid_of_a_group():
    assert ranks_by_node((7, 3, 7, 3, 3)) == [[0, 2], [1, 3, 4]]
    assert node_grid((7, 3, 7, 3)).tolist() == [[0, 2], [1, 3]]  # rows in the order in which the nodes appear
    with pytest.raises(ValueError, match="on every node, but this group has 2, 3 on its nodes"):
        node_grid((7, 3, 7, 3, 3))


def count(world, node_size):
    if node_size:
        place_on_nodes(world, node_size)
    before, traffic = world.collectives, world.traffic
    md.all_reduce(np.ones(12, np.float32), group=world, algorithm="direct")
    md.all_reduce(np.ones(12, np.float32), group=world, algorithm="direct", async_op=True).wait()
    if world.rank < 2:
        x = np.ones(5)
        md.sendrecv(x, 1 - world.rank, x.copy(), 1 - world.rank, world)
    return (world.collectives - before).as_list(), (world.traffic - traffic).as_dict()


@pytest.mark.parametrize(("node_size", "others", "peer_elsewhere"), [(0, 0, 0), (4, 0, 0), (2, 2, 0), (1, 3, 1)])
def test_bytes_between_nodes_are_counted_by_kind_and_by_rank(ranks, node_size, others, peer_elsewhere):
    for rank, (rows, traffic) in enumerate(ranks(4).run(count, node_size, timeout=LIMIT)):
        found = {row["name"]: (row["calls"], row["bytes_sent"], row["bytes_between_nodes"]) for row in rows}
        assert found.pop("all_reduce") == (2, 2 * 3 * 48, 2 * others * 48)
        sends = {"send": (1, 40, 40 * peer_elsewhere)} if rank < 2 else {}
        assert found == sends
        assert traffic["bytes_between_nodes"] == sum(row["bytes_between_nodes"] for row in rows)
