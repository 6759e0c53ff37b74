"""What a rank's collectives add up to."""

from minidist.analysis.collectives import by_axis, by_kind

ROWS = [
    {"axis": "tp", "name": "all_reduce", "calls": 1, "bytes_sent": 5},
    {"axis": "shard", "name": "reduce_scatter_tensor", "calls": 1, "bytes_sent": 7},
    {"axis": "dp", "name": "all_reduce", "calls": 1, "bytes_sent": 1},
    {"axis": "embedding", "name": "all_reduce", "calls": 1, "bytes_sent": 2},
    {"axis": "pp", "name": "send", "calls": 1, "bytes_sent": 3},
]


def test_groups_inside_an_axis_count_for_it():
    assert by_axis(ROWS) == {"pp": 5, "dp": 8, "tp": 5}


def test_sizes_and_dtypes_of_one_kind_are_added_up():
    more = [{"axis": "tp", "name": "all_reduce", "calls": 4, "bytes_sent": 10}]
    assert by_kind(ROWS + more)["tp", "all_reduce"] == (5, 15)
    assert by_kind(ROWS)["embedding", "all_reduce"] == (1, 2) and len(by_kind(ROWS)) == 5
