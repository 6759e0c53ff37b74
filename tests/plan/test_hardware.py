"""Hardware as data: vendors' numbers against arithmetic, one's own file, and what a cluster is called."""

import pytest

from minidist.comm.nodes.placement import Links
from minidist.plan.cluster.hardware import ClusterSpec, load

ALL = load()
GPUS = {name: gpu for name, gpu in ALL.accelerators.items() if not name.startswith("tpu")}


# ── The numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_where_989_teraflops_come_from():
    h100 = ALL.accelerators["h100"]
    assert h100.tensor_cores == 132 * 4 and h100.tensor_fma == 16 * 4 * 8 == 512
    assert h100.flops["bf16"] == pytest.approx(132 * 4 * 512 * 2 * 1.83e9, rel=1e-4)


@pytest.mark.parametrize("name", [name for name, gpu in GPUS.items() if gpu.clock])
def test_peaks_are_units_times_multiply_adds_times_clock(name):
    """To the digits that are printed: 0.4 %."""
    gpu = GPUS[name]
    assert gpu.flops["fp16"] == pytest.approx(gpu.tensor_cores * gpu.tensor_fma * 2 * gpu.clock, rel=4e-3)
    assert gpu.flops["fp32"] == pytest.approx(gpu.cores * 2 * (gpu.vector_clock or gpu.clock), rel=4e-3)
    assert gpu.cores % gpu.sms == gpu.tensor_cores % gpu.sms == 0


@pytest.mark.parametrize("name", ALL.accelerators)
def test_fewer_bits_are_faster_and_sparse_is_printed_twice(name):
    """Half of the bits, twice the FLOP/s; and no dense rate is a sparse one by mistake."""
    chip = ALL.accelerators[name]
    for precision, sparse in chip.sparse_flops.items():
        assert sparse == pytest.approx(2 * chip.flops[precision], rel=1e-3)
    if "tf32" in chip.flops:
        assert chip.flops["bf16"] == pytest.approx(2 * chip.flops["tf32"], rel=0.03)  # B200's TF32 is rounded
    assert chip.flops.get("fp16", chip.flops.get("bf16")) == chip.flops.get("bf16", chip.flops.get("fp16"))
    for half, full in (("fp4", "fp8"), ("fp8", "bf16")):
        if half in chip.flops and name != "tpu-v5p":  # whose FP8 is as fast as BF16
            assert chip.flops[half] == pytest.approx(2 * chip.flops[full], rel=1e-3)


def test_links_are_one_direction_of_what_is_printed():
    printed = {"nvlink2": 300e9, "nvlink3": 600e9, "nvlink4": 900e9, "nvlink5": 1800e9}  # both directions together
    for name, both in printed.items():
        assert 2 * ALL.links[name].bandwidth == both
    for name, gigabits in {
        "edr": 100,
        "hdr": 200,
        "ndr": 400,
        "xdr": 800,
        "ethernet100": 100,
        "ethernet400": 400,
    }.items():
        assert ALL.links[name].bandwidth == gigabits * 1e9 / 8
    for name, transfers in {"pcie4": 16e9, "pcie5": 32e9}.items():
        assert ALL.links[name].bandwidth == pytest.approx(16 * transfers * 128 / 130 / 8, rel=1e-3)
    assert 6 * 2 * ALL.links["ici5p"].bandwidth == 1200e9


def test_systems_add_up():
    """What is printed of whole systems: NVL72's switches 130 TB/s, eight B200 1,440 GB."""
    nvl72 = ALL.nodes["gb200"]
    assert nvl72.size * 2 * ALL.links[nvl72.inside].bandwidth == pytest.approx(130e12, rel=4e-3)
    assert 8 * ALL.accelerators["b200"].memory == 1440e9
    dgx2 = ALL.nodes["v100"]
    assert dgx2.nics * 2 * 8 * ALL.links[dgx2.between].bandwidth == 1600e9


def test_inside_a_node_links_are_many_times_as_fast_as_between_nodes():
    ratios = {name: ALL.links[n.inside].bandwidth / ALL.links[n.between].bandwidth for name, n in ALL.nodes.items()}
    assert ratios["h100"] == 9.0 and ratios["b200"] == 18.0 and min(ratios.values()) >= 8


def test_collectives_choose_by_the_same_numbers_where_nobody_says_others():
    assert ClusterSpec.parse("h100:2x8").links == Links()
    bandwidths = [ClusterSpec.parse(f"h100:2x8{more}").links.between.bandwidth for more in OVERSUBSCRIBED]
    assert bandwidths == [12.5e9, 50e9]  # a rail is on one leaf switch


def test_everything_has_a_source_and_a_name():
    for entry in [*ALL.accelerators.values(), *ALL.links.values(), *ALL.nodes.values()]:
        assert len(entry.source) > 8 and entry.name


# ── One's own file ───────────────────────────────────────────────────────────────────────────────────────────────────

OVERSUBSCRIBED = (",oversubscription=4", ",oversubscription=4,network=rails")

OWN = """
[accelerator.mine]
name = "My GPU"
memory = 16e9
memory_bandwidth = 500e9
flops = { fp32 = 10e12, bf16 = 40e12 }

[link.cable]
name = "a cable"
bandwidth = 1e9
latency = 5e-5

[node.lab]
name = "lab machine"
accelerator = "mine"
size = 4
inside = "pcie4"
between = "cable"
nics = 2
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def test_ones_own_entries_come_on_top(own):
    found = load(own)
    assert found.accelerators.keys() == {*ALL.accelerators, "mine"} and found.nodes["h100"] == ALL.nodes["h100"]
    assert found.accelerators["mine"].source == "own.toml" and "mine" not in load().accelerators


def test_ones_own_entry_may_take_a_known_name(own):
    own.write_text(OWN.replace("[link.cable]", "[link.ndr]").replace('"cable"', '"ndr"'))
    assert load(own).links["ndr"].bandwidth == 1e9 and load().links["ndr"].bandwidth == 50e9


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("memory_bandwidth", "memory_bandwith", r"own.toml: \[accelerator.mine\]: unknown key 'memory_bandwith': the "
         "nearest is 'memory_bandwidth'"),
        ("memory = 16e9", "", r"\[accelerator.mine\]: the key 'memory' is missing: expected a number of at least 0"),
        ("memory = 16e9", 'memory = "16 GB"', r"\[accelerator.mine\]: memory: expected a number .* got '16 GB'"),
        ("memory = 16e9", "memory = nan", "memory: expected a number"),
        ("memory = 16e9", "memory = inf", "memory: expected a number"),
        ("memory = 16e9", "memory = true", "memory: expected a number"),
        ("memory = 16e9", "memory = 0", r"\[accelerator.mine\]: memory, memory_bandwidth and the FLOP/s .* above 0"),
        ("bf16 =", "bf61 =", r"\[accelerator.mine\]: unknown precision 'bf61': the nearest is 'bf16'"),
        ("bf16 = 40e12", 'bf16 = "fast"', "flops: bf16: expected a number of at least 0, got 'fast'"),
        ("{ fp32 = 10e12, bf16 = 40e12 }", "1e12", "flops: expected a table of numbers"),
        ("size = 4", "size = 4.5", r"\[node.lab\]: size: expected a whole number of at least 0, got 4.5"),
        ("size = 4", "size = 0", r"\[node.lab\]: size must be at least 1"),
        ("nics = 2", "nics = 3", "3 network cards .* must divide the 4 accelerators"),
        ('"pcie4"', '"pci4"', r"\[node.lab\]: inside: unknown 'pci4': the nearest is 'pcie4'"),
        ('"mine"', '"h1000"', r"\[node.lab\]: accelerator: unknown 'h1000': the nearest is 'h100'"),
        ("[link.cable]", "[links.cable]", r"unknown table \[links\]: the nearest is 'link'"),
        ("bandwidth = 1e9", "bandwidth = 0", r"\[link.cable\]: bandwidth must be above 0"),
        ("[link.cable]", "[link.cable", "own.toml: this is no TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_table_and_key(own, before, after, message):
    assert before in OWN
    own.write_text(OWN.replace(before, after, 1))
    with pytest.raises(ValueError, match=message):
        load(own)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none.toml: cannot read this file: No such file"):
        load(tmp_path / "none.toml")


def test_a_table_that_is_none_is_named(own):
    own.write_text("link = 3")
    with pytest.raises(ValueError, match=r"own.toml: expected tables such as \[link.own\], got link = 3"):
        load(own)
    own.write_text("link.cable = 3")
    with pytest.raises(ValueError, match=r"own.toml: \[link.cable\]: expected a table, got 3"):
        load(own)


# ── Clusters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "nodes", "node_size", "written"),
    [
        ("h100:2x8", 2, 8, "h100:2x8"),
        ("h100:8", 1, 8, "h100:1x8"),
        ("h100", 1, 8, "h100:1x8"),
        ("a100:16x4", 16, 4, "a100:16x4"),
        ("gb200:2x72", 2, 72, "gb200:2x72"),
        ("tpu-v5p:4x4x8", 1, 128, "tpu-v5p:4x4x8"),
        ("tpu-v5p:4x4", 1, 16, "tpu-v5p:4x4x1"),
        ("h100:4x8, oversubscription=4", 4, 8, "h100:4x8,oversubscription=4"),
        ("h100:4x8,between=ethernet100,network=rails", 4, 8, "h100:4x8,between=ethernet100,network=rails"),
    ],
)
def test_clusters_are_read_and_written(text, nodes, node_size, written):
    spec = ClusterSpec.parse(text)
    assert (spec.nodes, spec.node_size, spec.world_size) == (nodes, node_size, nodes * node_size)
    assert str(spec) == written and ClusterSpec.parse(written) == spec


def test_a_cluster_has_the_links_of_its_nodes_unless_told_others():
    spec = ClusterSpec.parse("h100:4x8,oversubscription=4,between=hdr,inside=pcie5")
    assert spec.accelerator == ALL.accelerators["h100"] and spec.oversubscription == 4
    assert spec.between == ALL.links["hdr"] and spec.inside == ALL.links["pcie5"]
    assert ClusterSpec.parse("h100:4x8").between == ALL.links["ndr"]


def test_network_cards_are_shared_as_in_a_full_node():
    assert [ClusterSpec.parse(f"v100:2x{size}").nics for size in (16, 8, 3, 1)] == [8, 4, 2, 1]


def test_ones_own_file_has_one_kind_of_node_or_names_it(own):
    assert ClusterSpec.parse(f"{own}:2x4").accelerator.name == "My GPU"
    assert ClusterSpec.parse(f"{own}").world_size == 4
    assert ClusterSpec.parse(f"{own}#h100:2x8").accelerator == ALL.accelerators["h100"]
    own.write_text(OWN + OWN[OWN.index("[node.lab]") :].replace("lab", "other"))
    assert ClusterSpec.parse(f"{own}#other:2x4").world_size == 8
    with pytest.raises(ValueError, match=r"has 2 kinds of nodes: name one, such as .*own.toml#lab"):
        ClusterSpec.parse(f"{own}:2x4")
    own.write_text("")
    with pytest.raises(ValueError, match=r"has 0 kinds of nodes: add a table \[node.own\]"):
        ClusterSpec.parse(f"{own}:2x4")


def test_a_torus_without_room_for_a_cube_of_four_names_one_that_fits(own):
    own.write_text(OWN.replace("size = 4", "size = 12\ntorus = 2"))
    assert ClusterSpec.parse(str(own)).torus == (3, 4)
    with pytest.raises(ValueError, match=r"own.toml:3x5: .* choose .*own.toml:3x4$"):
        ClusterSpec.parse(f"{own}:3x5")


def test_an_accelerator_without_a_node_says_so(own):
    with pytest.raises(ValueError, match="h100-pcie is an accelerator without a node of its own"):
        ClusterSpec.parse("h100-pcie:2x8")
    own.write_text(OWN.replace('accelerator = "mine"', 'accelerator = "h100-pcie"'))
    assert ClusterSpec.parse(f"{own}:2x4").accelerator == ALL.accelerators["h100-pcie"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h1000:2x8", "unknown hardware 'h1000': the nearest is 'h100'; choose from v100, a100-40, a100, h100"),
        ("", "unknown hardware ''"),
        ("h100:2x16", "a DGX H100 has 8 accelerators, not 16: choose h100:4x8"),
        ("h100:3x12", "a DGX H100 has 8 accelerators, not 12: choose h100:3x8"),
        ("h100:12", "a DGX H100 has 8 accelerators, not 12: choose h100:8 or h100:16"),
        ("h100:1x16", "a DGX H100 has 8 accelerators, not 16: choose h100:2x8"),
        ("h100:0x8", "h100:0x8: expected a size in whole numbers above 0, such as h100:8"),
        ("h100:two", "h100:two: expected a size"),
        ("h100:", "h100:: expected a size"),
        ("h100:2x2x2", "a size is NODESxACCELERATORS, such as h100:2x8"),
        ("tpu-v4:4x4x4x4", "a torus of up to 3 dimensions and 4,096 chips: choose tpu-v4:4x4x4"),
        ("tpu-v4:100x100", "a torus of up to 3 dimensions and 4,096 chips"),
        ("h100:2x8,oversubscribed=4", "unknown option 'oversubscribed': the nearest is 'oversubscription'"),
        ("h100:2x8,oversubscription=lots", "oversubscription: expected a number of at least 1, got 'lots'"),
        ("h100:2x8,oversubscription=0.5", "oversubscription must be 1 or more, and finite; got 0.5"),
        ("h100:2x8,oversubscription=nan", "oversubscription must be 1 or more"),
        ("h100:2x8,between=nrd", "between: unknown link 'nrd': the nearest is 'ndr'"),
        ("h100:2x8,network=rail", "unknown network 'rail': the nearest is 'rails'; choose from tree, rails, rail-only"),
        ("nowhere.toml:2x8", "nowhere.toml: cannot read this file"),
    ],
)
def test_clusters_that_cannot_be_are_named_with_the_nearest_that_can(text, message):
    with pytest.raises(ValueError, match=message):
        ClusterSpec.parse(text)


@pytest.mark.parametrize(
    ("cluster", "ranks", "choice"),
    [
        ("h100:2x8", 12, "choose h100:3x4, or h100:6x2, or a layout of 16 ranks"),
        ("h100:2x8", 64, "choose h100:8x8, or h100:16x4, or a layout of 16 ranks"),
        ("h100:2x8,oversubscription=2", 6, "choose h100:6,oversubscription=2, or a layout of 16 ranks"),
        ("h100:2x8", 14, "choose h100:7x2, or h100:14x1, or a layout of 16 ranks"),
        ("h100:1x1", 2, "choose h100:2, or a layout of 1 rank$"),
        ("tpu-v4:4x4x4", 24, "choose tpu-v4:2x3x4, or a layout of 64 ranks"),
        ("tpu-v4:4x4x4", 5000, "accelerators: choose a layout of 64 ranks"),
    ],
)
def test_a_layout_that_does_not_fill_a_cluster_hears_which_it_would(cluster, ranks, choice):
    spec = ClusterSpec.parse(cluster)
    spec.check(spec.world_size)
    with pytest.raises(ValueError, match=choice) as caught:
        spec.check(ranks)
    for other in str(caught.value).partition("choose ")[2].split(", or ")[:-1]:
        assert ClusterSpec.parse(other).world_size == ranks
