"""``minidist hardware``, as someone who plans a run types it; and docs/hardware.md, whose tables are recomputed."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from minidist.cli import main as cli
from minidist.cli.hardware import MODEL
from minidist.plan.cluster.fusion import CHAINS
from minidist.plan.cluster.hardware import ClusterSpec, load
from minidist.plan.cluster.inference import compute_bound_batch, decode, largest_batch, prefill
from minidist.plan.cluster.roofline import kernel_seconds, ridge_point, total_seconds
from minidist.plan.cluster.topologies import bisection_bandwidth, from_toml, topology_of

ALL = load()
OWN = '[accelerator.mine]\nname = "Mine"\nmemory = 1e9\nmemory_bandwidth = 1e11\nflops = { fp32 = 1e12 }\n'


def shown(capsys, *arguments: str) -> str:
    assert cli.main(["hardware", *arguments]) == 0
    return capsys.readouterr().out


def rows(text: str) -> dict[str, list[str]]:
    """First cell -> the other cells of its line, of all tables."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {first: rest for first, *rest in lines if first}


def test_it_shows_all_accelerators_links_and_nodes(capsys):
    out = shown(capsys)
    for name in (*ALL.accelerators, *ALL.links, *ALL.nodes):
        assert re.search(rf"│ {name} +│", out), name
    accelerators = rows(out.partition("links:")[0])
    assert accelerators["h100"] == ["2022", "80", "3.35", "66.9", "989.4", "1,978.9", "295"]
    assert accelerators["v100"][4:6] == ["125", ""]  # fp16, and no fp8
    assert rows(out)["ndr"][1:] == ["50", "2.7"] and rows(out)["h100"][1:] == ["8", "nvlink4", "ndr", "9"]


def test_an_entry_has_its_ridge_points_its_arithmetic_and_its_sources(capsys):
    out = shown(capsys, "h100")
    assert rows(out)["bf16"] == ["989.4 TFLOP/s (1,978.9 sparse), ridge point 295 FLOPs per byte"]
    assert rows(out)["16 bits"] == ["528 x 512 multiply-adds x 2 x 1.83 GHz = 989.43 TFLOP/s"]
    assert "node h100: DGX H100" in out and out.count("│ source") == 2
    assert "50 GB/s, 2.7 µs" in shown(capsys, "ndr") and "hwLat" in shown(capsys, "nvlink4")


def test_a_cluster_has_its_bisection_bandwidth(capsys):
    assert rows(shown(capsys, "h100:4x8,oversubscription=4"))["bisection bandwidth"] == ["200 GB/s in each direction"]
    assert rows(shown(capsys, "tpu-v5p:4x4x8"))["network"] == ["a torus of 4x4x8 chips"]
    assert "bisection" not in shown(capsys, "h100:1x1")


def test_a_network_of_ones_own_is_shown_by_its_own_links(capsys, tmp_path):
    """GPU 2 has the slowest link, so the worst half is GPU 2 alone: not the first ranks, and nothing of NVLink."""
    speeds = {"gpu0": 25e9, "gpu1": 25e9, "gpu2": 5e9}
    links = [
        f'[[link]]\nbetween = ["{gpu}", "switch"]\nbandwidth = {speed}\nlatency = 1e-6' for gpu, speed in speeds.items()
    ]
    path = tmp_path / "net.toml"
    path.write_text("\n".join([f"ranks = {list(speeds)}", *links]))
    found = json.loads(shown(capsys, f"h100:3,network={path}", "--json", "-"))
    assert found["bisection_bandwidth"] == 5e9
    out = shown(capsys, f"h100:3,network={path}")
    assert "the links of" in out and "5 GB/s in each direction" in out and "NVLink" not in out


def test_json_has_the_numbers(capsys):
    found = json.loads(shown(capsys, "--json", "-"))
    assert found["accelerators"]["h100"]["flops"]["bf16"] == 989.4e12 and found["nodes"].keys() == ALL.nodes.keys()
    assert json.loads(shown(capsys, "h100", "--json", "-"))["node"]["inside"] == "nvlink4"
    assert json.loads(shown(capsys, "h100:2x8", "--json", "-"))["bisection_bandwidth"] == 400e9


@pytest.mark.parametrize("name", ["h100", "v100:2x8", "mine"])
def test_it_draws_a_roofline(name, capsys, tmp_path):
    (tmp_path / "own.toml").write_text(OWN)
    path = tmp_path / "roof.png"
    assert f"roofline: {path}" in shown(capsys, name, "--hardware", str(tmp_path / "own.toml"), "--png", str(path))
    assert Image.open(path).size[0] > 800


def test_ones_own_file_comes_on_top(capsys, tmp_path):
    (tmp_path / "own.toml").write_text(OWN)
    out = shown(capsys, "--hardware", str(tmp_path / "own.toml"))
    assert rows(out)["mine"] == ["", "1", "0.1", "1", "", "", ""] and "h100" in out
    assert rows(shown(capsys, "mine", "--hardware", str(tmp_path / "own.toml")))["source"] == ["own.toml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["h1oo"], "unknown hardware 'h1oo': the nearest is 'h100'"),
        (["h100:2x16"], "a DGX H100 has 8 accelerators, not 16: choose h100:4x8"),
        (["--png", "roof.png"], "--png draws the roofline of one accelerator: name it"),
        (["ndr", "--png", "roof.png"], "--png draws the roofline of one accelerator: name it"),
        (["h100", "--png", "roof.gif"], "--png: roof.gif must end in .png"),
        (["--hardware", "nowhere.toml"], "nowhere.toml: cannot read this file"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert cli.main(["hardware", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and message in captured.err and not captured.out


# ── The page ─────────────────────────────────────────────────────────────────────────────────────────────────────────

PAGE = (Path(__file__).parent.parent / "docs" / "hardware.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """First cell, without its backticks -> the others, of the table below a heading."""
    (section,) = re.findall(rf"^## {heading}$\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.strip("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]
    return {first: rest for first, *rest in cells[2:]}


def test_the_page_has_the_accelerators_of_the_file():
    rates = {}
    for name, chip in ALL.accelerators.items():
        precision = "bf16" if "bf16" in chip.flops else "fp16"
        numbers = [chip.memory / 1e9, chip.memory_bandwidth / 1e12]
        numbers += [chip.flops.get(key, 0) / 1e12 for key in ("fp32", precision, "fp8")]
        rates[name] = [*(f"{n:,.5g}" if n else "" for n in numbers), f"{ridge_point(chip, precision):.0f}"]
    assert table("Accelerators") == rates


def test_the_page_has_the_nodes_of_the_file():
    nodes = {}
    for name, node in ALL.nodes.items():
        inside, between = ALL.links[node.inside].bandwidth / 1e9, ALL.links[node.between].bandwidth / 1e9
        nodes[name] = [node.name, f"{node.size:,}", node.inside, f"{inside:g}", node.between, f"{between:g}"]
    assert table("Nodes and links") == nodes


def test_the_page_shows_clusters_that_are_read_as_it_says():
    for text, (accelerators, _, bisection) in table("Clusters").items():
        spec = ClusterSpec.parse(text)
        assert f"{spec.world_size:,}" == accelerators
        assert f"{bisection_bandwidth(topology_of(spec)) / 1e9:,.0f}" == bisection


def test_the_page_has_the_two_ends_of_the_roofline():
    found = {}
    for name in ("v100", "a100", "h100", "h200", "b200"):
        chip = ALL.accelerators[name]
        precision = "bf16" if "bf16" in chip.flops else "fp16"
        seconds = [total_seconds(chip, work(MODEL, 1, 2048).values(), precision) for work in (prefill, decode)]
        found[name] = [
            f"{1e3 * seconds[0]:.1f}",
            f"{1e3 * seconds[1]:.1f}",
            str(compute_bound_batch(MODEL, chip, precision)),
            str(largest_batch(MODEL, chip, 2048)),
        ]
    assert table("The roofline") == found


def test_the_page_has_what_fusion_saves():
    h100, elements = ALL.accelerators["h100"], 8 * 2048 * 4096
    found = {}
    for chain in CHAINS:
        seconds = [kernel_seconds(h100, 0, chain.nbytes(elements, 2, fused), "bf16") for fused in (False, True)]
        found[chain.name] = [str(len(chain.unfused)), str(len(chain.fused)), *(f"{1e6 * s:,.0f}" for s in seconds)]
    assert table("Fused elementwise operations") == found


def test_the_pages_files_are_read(tmp_path):
    graph, own = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "own.toml").write_text(own)
    spec = ClusterSpec.parse(f"{tmp_path / 'own.toml'}:2x4")
    assert spec.accelerator.name == "My GPU" and spec.nics == 1 and spec.world_size == 8
    links = "".join(graph[graph.index("[[link]]") :].replace("gpu0", f"gpu{rank}") + "\n" for rank in range(3))
    (tmp_path / "graph.toml").write_text(graph[: graph.index("[[link]]")] + links)
    assert from_toml(tmp_path / "graph.toml").nodes == (0, 0, 1)
