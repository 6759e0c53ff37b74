"""Hardware as data: vendors' numbers against arithmetic, measured shares of the peak, clusters, the command's page."""

import json
import re

import pytest
from planned import HARDWARE, PAGE, rows

from minidist.cli import main as cli
from minidist.comm.placement import Links
from minidist.plan.cluster.efficiency import NEAREST, PERFECT, efficiency_of, interpolate, measured
from minidist.plan.cluster.hardware import ClusterSpec, load
from minidist.plan.cluster.topologies import bisection_bandwidth, topology_of

ALL = load()


def test_peaks_are_units_times_multiply_adds_times_clock_and_double_as_bits_halve():
    """They agree to the digits that are printed, and no dense rate is a sparse one by mistake."""
    h100 = ALL.accelerators["h100"]
    assert h100.flops["bf16"] == pytest.approx(132 * 4 * (16 * 4 * 8) * 2 * 1.83e9, rel=1e-4)
    for name, chip in ALL.accelerators.items():
        if chip.clock and not name.startswith("tpu"):
            peaks = [
                chip.tensor_cores * chip.tensor_fma * 2 * chip.clock,
                chip.cores * 2 * (chip.vector_clock or chip.clock),
            ]
            assert [chip.flops["fp16"], chip.flops["fp32"]] == pytest.approx(peaks, rel=4e-3), name
            assert chip.cores % chip.sms == chip.tensor_cores % chip.sms == 0
        for precision, sparse in chip.sparse_flops.items():
            assert sparse == pytest.approx(2 * chip.flops[precision], rel=1e-3), name
        pairs = [("bf16", "tf32", 0.03), ("fp4", "fp8", 1e-3), ("fp8", "bf16", 1e-3)]  # B200's TF32 is rounded
        for half, full, digits in pairs:
            if {half, full} <= chip.flops.keys() and (name, half) != ("tpu-v5p", "fp8"):  # as fast as its BF16
                assert chip.flops[half] == pytest.approx(2 * chip.flops[full], rel=digits), (name, half)
        assert chip.flops.get("fp16", chip.flops.get("bf16")) == chip.flops.get("bf16", chip.flops.get("fp16"))


def test_links_are_one_direction_of_what_is_printed_and_systems_add_up():
    links = {name: link.bandwidth for name, link in ALL.links.items()}
    printed = {"nvlink2": 300e9, "nvlink3": 600e9, "nvlink4": 900e9, "nvlink5": 1800e9}  # both directions together
    assert printed == {name: 2 * links[name] for name in printed} and 6 * 2 * links["ici5p"] == 1200e9
    gigabits = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800, "ethernet100": 100, "ethernet400": 400}
    assert {name: number * 1e9 / 8 for name, number in gigabits.items()} == {name: links[name] for name in gigabits}
    for name, transfers in {"pcie4": 16e9, "pcie5": 32e9}.items():
        assert links[name] == pytest.approx(16 * transfers * 128 / 130 / 8, rel=1e-3)
    nvl72, dgx2 = ALL.nodes["gb200"], ALL.nodes["v100"]
    assert nvl72.size * 2 * links[nvl72.inside] == pytest.approx(130e12, rel=4e-3)  # NVL72's switches: 130 TB/s
    assert 8 * ALL.accelerators["b200"].memory == 1440e9 and dgx2.nics * 2 * 8 * links[dgx2.between] == 1600e9
    assert all(entry.source and entry.name for kind in (ALL.accelerators, ALL.links) for entry in kind.values())


def test_measured_shares_are_those_of_the_published_benchmark_over_the_data_sheet():
    """Azure's TFLOP/s and GB/s for the A100; a chip without measurements has those of the nearest."""
    found = measured()["a100"]
    for size, tflops in ((1024, 119.4), (2048, 221.8), (4096, 228.0), (8192, 253.7), (16384, 256.5)):
        assert found.of_product(2 * size**3) == pytest.approx(tflops / 312, abs=0.01)
    for megabytes, bandwidth in ((1, 36.2), (134, 174.2), (8000, 231.6)):
        assert found.of_collective(megabytes * 1e6) == pytest.approx(bandwidth / 300, abs=0.01)
    for name, one in measured().items():
        shares = [share for curve in (one.products, one.inside) for _, share in curve]
        assert all(0 < share <= 1 for share in (*shares, one.memory, one.flash_forward, one.between)), name
        assert one.flash_backward <= one.flash_forward and efficiency_of(ALL.accelerators[name]) is one
    assert all(efficiency_of(ALL.accelerators[name]) is measured()[nearest] for name, nearest in NEAREST.items())
    found = [interpolate([[10.0, 0.2], [1000.0, 0.6]], x) for x in (5, 10, 100, 1000, 1e9)]
    assert found == pytest.approx([0.1, 0.2, 0.4, 0.6, 0.6])  # half the work takes as long; 100 is half way
    assert PERFECT.of_product(1e-9) == PERFECT.of_collective(1e9) == 1


def test_ones_own_entries_come_on_top_and_have_one_kind_of_node_or_name_it(tmp_path):
    own = tmp_path / "own.toml"

    def cluster(text: str, size: str = "") -> ClusterSpec:
        own.write_text(text)
        return ClusterSpec.parse(f"{own}{size}")

    assert cluster(HARDWARE, ":2x4").accelerator.name == "My GPU" and cluster(HARDWARE).world_size == 4
    assert load(own).accelerators.keys() == {*ALL.accelerators, "mine"} and "mine" not in load().accelerators
    assert cluster(HARDWARE, "#h100:2x8").accelerator == ALL.accelerators["h100"]
    known = HARDWARE.replace("[link.cable]", "[link.ndr]").replace('"cable"', '"ndr"')  # a name that is known
    assert cluster(known).between.bandwidth == 3.1e9 and load().links["ndr"].bandwidth == 50e9
    two_kinds = HARDWARE + HARDWARE[HARDWARE.index("[node.lab]") :].replace("lab", "other")
    assert cluster(two_kinds, "#other:2x4").world_size == 8
    assert cluster(HARDWARE.replace("size = 4", "size = 12\ntorus = 2")).torus == (3, 4)  # no room for a cube of four
    of_others = HARDWARE.replace('accelerator = "mine"', 'accelerator = "h100-pcie"')
    assert cluster(of_others, ":2x4").accelerator == ALL.accelerators["h100-pcie"]
    with pytest.raises(ValueError, match=r"own\.toml: not valid TOML"):  # and then what Python says
        cluster(HARDWARE.replace("[link.cable]", "[link.cable"))


def test_clusters_are_read_and_written_with_the_links_of_their_nodes_unless_told_others():
    for text, nodes, size, written in (
        ("h100:2x8", 2, 8, "h100:2x8"), ("h100:8", 1, 8, "h100:1x8"), ("h100", 1, 8, "h100:1x8"),
        ("gb200:2x72", 2, 72, "gb200:2x72"), ("tpu-v5p:4x4", 1, 16, "tpu-v5p:4x4x1"),
        ("h100:4x8, oversubscription=4", 4, 8, "h100:4x8,oversubscription=4"),
        ("h100:4x8,between=ethernet100,network=rails", 4, 8, "h100:4x8,between=ethernet100,network=rails"),
    ):  # fmt: skip
        spec = ClusterSpec.parse(text)
        assert (spec.nodes, spec.node_size, spec.world_size) == (nodes, size, nodes * size), text
        assert str(spec) == written and ClusterSpec.parse(written) == spec
        spec.check(nodes * size)
    spec = ClusterSpec.parse("h100:4x8,between=hdr,inside=pcie5")
    assert spec.between == ALL.links["hdr"] and spec.inside == ALL.links["pcie5"]
    assert [ClusterSpec.parse(f"v100:2x{size}").nics for size in (16, 8, 3, 1)] == [8, 4, 2, 1]  # as in a full node
    assert ClusterSpec.parse("h100:2x8").links == Links()  # collectives choose by the same numbers
    slow = [ClusterSpec.parse(f"h100:2x8,oversubscription=4{more}").links.between for more in ("", ",network=rails")]
    assert [link.bandwidth for link in slow] == [12.5e9, 50e9]  # a rail is on one leaf switch
    for text, ranks in (("h100:2x8", 12), ("h100:2x8", 64), ("h100:2x8", 14), ("tpu-v4:4x4x4", 24)):
        with pytest.raises(ValueError, match="choose ") as caught:  # which clusters it would fill
            ClusterSpec.parse(text).check(ranks)
        others = str(caught.value).partition("choose ")[2].split(", or ")[:-1]
        assert others and all(ClusterSpec.parse(other).world_size == ranks for other in others)


def shown(capsys, *arguments: str) -> str:
    assert cli.main(["hardware", *arguments]) == 0
    return capsys.readouterr().out


def on_page(heading: str) -> dict[str, list[str]]:
    """First cell, without its backticks -> the others, of the table below a heading of the page."""
    (section,) = re.findall(rf"^## {heading}$\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.strip("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]
    return {first: rest for first, *rest in cells[2:]}


def test_it_shows_what_there_is_as_the_page_does(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    chips, links, nodes = map(rows, re.split("\nlinks|\nnodes", shown(capsys)))
    assert on_page("Accelerators") == {name: chips[name][1:] for name in ALL.accelerators}
    assert {*links} >= {*ALL.links} and on_page("Nodes and links").keys() == ALL.nodes.keys()
    for name, (title, size, inside, speed, between, slower) in on_page("Nodes and links").items():
        node = nodes[name]
        assert [node[0], node[2], node[3]] == [title, inside, between] and size in node[1]
        assert [f"{ALL.links[link].bandwidth / 1e9:g}" for link in (inside, between)] == [speed, slower]
    out = shown(capsys, "h100")
    assert rows(out)["16 bits"] == ["528 x 512 multiply-adds x 2 x 1.83 GHz = 989.43 TFLOP/s"]
    assert "node h100: DGX H100" in out and "hwLat" in shown(capsys, "nvlink4")


def test_a_cluster_has_its_bisection_bandwidth(capsys, tmp_path):
    """GPU 2 of a user's network has the slowest link, so the worst half is GPU 2 alone, and nothing of NVLink."""
    assert rows(shown(capsys, "tpu-v5p:4x4x8"))["network"] == ["a torus of 4x4x8 chips"]
    assert "bisection" not in shown(capsys, "h100:1x1")
    links = [f'[[link]]\nbetween = ["gpu{gpu}", "switch"]\nbandwidth = {5e9 if gpu == 2 else 25e9}' for gpu in range(3)]
    path = tmp_path / "net.toml"
    path.write_text("\n".join(['ranks = ["gpu0", "gpu1", "gpu2"]', *links]))
    out = shown(capsys, f"h100:3,network={path}")
    assert "the links of" in out and "5 GB/s in each direction" in out and "NVLink" not in out
    for text, (accelerators, _, bisection) in on_page("Clusters").items():
        spec = ClusterSpec.parse(text)
        assert f"{spec.world_size:,}" == accelerators
        assert f"{bisection_bandwidth(topology_of(spec)) / 1e9:,.0f}" == bisection


def test_json_has_the_numbers_and_ones_own_file_comes_on_top(capsys, tmp_path):
    found, node, cluster = (json.loads(shown(capsys, *name, "--json", "-")) for name in ((), ("h100",), ("h100:2x8",)))
    assert found["accelerators"]["h100"]["flops"]["bf16"] == 989.4e12 and found["nodes"].keys() == ALL.nodes.keys()
    assert node["node"]["inside"] == "nvlink4" and cluster["bisection_bandwidth"] == 400e9
    (tmp_path / "own.toml").write_text(HARDWARE)
    own, path = ["--hardware", str(tmp_path / "own.toml")], tmp_path / "roof.png"
    assert rows(shown(capsys, *own))["mine"][1:] == ["24", "1", "40", "80", "", "80"]
    assert f"roofline: {path}" in shown(capsys, "mine", *own, "--png", str(path)) and path.stat().st_size > 10_000
