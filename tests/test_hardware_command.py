"""``minidist hardware``, as someone who plans a run types it; and docs/hardware.md, whose tables are recomputed."""

import json
import re
from pathlib import Path

from PIL import Image
from planned import rows

from minidist.cli import main as cli
from minidist.cli.hardware import MODEL
from minidist.plan.cluster.fusion import CHAINS
from minidist.plan.cluster.hardware import ClusterSpec, load
from minidist.plan.cluster.inference import compute_bound_batch, decode, largest_batch, prefill
from minidist.plan.cluster.roofline import kernel_seconds, total_seconds
from minidist.plan.cluster.topologies import bisection_bandwidth, from_toml, topology_of

ALL = load()
OWN = '[accelerator.mine]\nname = "Mine"\nmemory = 1e9\nmemory_bandwidth = 1e11\nflops = { fp32 = 1e12 }\n'
PAGE = (Path(__file__).parent.parent / "docs" / "hardware.md").read_text(encoding="utf-8")


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
    chips, links, nodes = re.split("\nlinks|\nnodes", shown(capsys))
    assert rows(chips)["h100"] == ["2022", "80", "3.35", "66.9", "989.4", "1,978.9", "295"]
    assert on_page("Accelerators") == {name: rows(chips)[name][1:] for name in ALL.accelerators}
    assert {*rows(links)} >= {*ALL.links} and rows(links)["ndr"][1:] == ["50", "2.7"]
    assert rows(nodes)["h100"][1:] == ["8", "nvlink4", "ndr", "9"]
    for name, (title, size, inside, speed, between, slower) in on_page("Nodes and links").items():
        node = rows(nodes)[name]
        assert [node[0], node[2], node[3]] == [title, inside, between] and size in node[1]
        assert [f"{ALL.links[link].bandwidth / 1e9:g}" for link in (inside, between)] == [speed, slower]
    assert on_page("Nodes and links").keys() == ALL.nodes.keys()
    out = shown(capsys, "h100")
    assert rows(out)["bf16"] == ["989.4 TFLOP/s (1,978.9 sparse), ridge point 295 FLOPs per byte"]
    assert rows(out)["16 bits"] == ["528 x 512 multiply-adds x 2 x 1.83 GHz = 989.43 TFLOP/s"]
    assert "node h100: DGX H100" in out and out.count("│ source") == 2 and "hwLat" in shown(capsys, "nvlink4")


def test_a_cluster_has_its_bisection_bandwidth(capsys, tmp_path):
    """In a network of one's own GPU 2 has the slowest link, so the worst half is GPU 2 alone, and nothing of NVLink."""
    assert rows(shown(capsys, "h100:4x8,oversubscription=4"))["bisection bandwidth"] == ["200 GB/s in each direction"]
    assert rows(shown(capsys, "tpu-v5p:4x4x8"))["network"] == ["a torus of 4x4x8 chips"]
    assert "bisection" not in shown(capsys, "h100:1x1")
    links = [f'[[link]]\nbetween = ["gpu{gpu}", "switch"]\nbandwidth = {5e9 if gpu == 2 else 25e9}' for gpu in range(3)]
    path = tmp_path / "net.toml"
    path.write_text("\n".join(['ranks = ["gpu0", "gpu1", "gpu2"]', *links]))
    assert json.loads(shown(capsys, f"h100:3,network={path}", "--json", "-"))["bisection_bandwidth"] == 5e9
    out = shown(capsys, f"h100:3,network={path}")
    assert "the links of" in out and "5 GB/s in each direction" in out and "NVLink" not in out
    for text, (accelerators, _, bisection) in on_page("Clusters").items():
        spec = ClusterSpec.parse(text)
        assert f"{spec.world_size:,}" == accelerators
        assert f"{bisection_bandwidth(topology_of(spec)) / 1e9:,.0f}" == bisection


def test_json_has_the_numbers_and_ones_own_file_comes_on_top(capsys, tmp_path):
    found = json.loads(shown(capsys, "--json", "-"))
    assert found["accelerators"]["h100"]["flops"]["bf16"] == 989.4e12 and found["nodes"].keys() == ALL.nodes.keys()
    assert json.loads(shown(capsys, "h100", "--json", "-"))["node"]["inside"] == "nvlink4"
    assert json.loads(shown(capsys, "h100:2x8", "--json", "-"))["bisection_bandwidth"] == 400e9
    (tmp_path / "own.toml").write_text(OWN)
    own, path = ["--hardware", str(tmp_path / "own.toml")], tmp_path / "roof.png"
    assert rows(shown(capsys, *own))["mine"] == ["", "1", "0.1", "1", "", "", ""]
    assert f"roofline: {path}" in shown(capsys, "mine", *own, "--png", str(path))
    assert Image.open(path).size[0] > 800 and rows(shown(capsys, "mine", *own))["source"] == ["own.toml"]


def test_the_page_has_the_two_ends_of_the_roofline_and_what_fusion_saves():
    ends, saves = {}, {}
    for name in ("v100", "a100", "h100", "h200", "b200"):
        chip = ALL.accelerators[name]
        precision = "bf16" if "bf16" in chip.flops else "fp16"
        seconds = [total_seconds(chip, work(MODEL, 1, 2048).values(), precision) for work in (prefill, decode)]
        batches = compute_bound_batch(MODEL, chip, precision), largest_batch(MODEL, chip, 2048)
        ends[name] = [*(f"{1e3 * each:.1f}" for each in seconds), *map(str, batches)]
    for chain in CHAINS:
        moved = [chain.nbytes(8 * 2048 * 4096, 2, fused) for fused in (False, True)]
        seconds = [kernel_seconds(ALL.accelerators["h100"], 0, nbytes, "bf16") for nbytes in moved]
        saves[chain.name] = [str(len(chain.unfused)), str(len(chain.fused)), *(f"{1e6 * s:,.0f}" for s in seconds)]
    assert on_page("The roofline") == ends and on_page("Fused elementwise operations") == saves


def test_the_pages_files_are_read(tmp_path):
    graph, own = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "own.toml").write_text(own)
    spec = ClusterSpec.parse(f"{tmp_path / 'own.toml'}:2x4")
    assert spec.accelerator.name == "My GPU" and spec.nics == 1 and spec.world_size == 8
    links = "".join(graph[graph.index("[[link]]") :].replace("gpu0", f"gpu{rank}") + "\n" for rank in range(3))
    (tmp_path / "graph.toml").write_text(graph[: graph.index("[[link]]")] + links)
    assert from_toml(tmp_path / "graph.toml").nodes == (0, 0, 1)
