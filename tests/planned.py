"""One's own files, and the tables that commands print."""

HARDWARE = """
[accelerator.mine]
name = 'My GPU'
memory = 16e9
memory_bandwidth = 500e9
flops = { fp32 = 10e12, bf16 = 40e12 }

[link.cable]
name = 'a cable'
bandwidth = 1e9
latency = 5e-5

[node.lab]
name = 'lab machine'
accelerator = 'mine'
size = 4
inside = 'pcie4'
between = 'cable'
nics = 2
"""
NETWORK = """
ranks = ["a", "b", "c", "d"]
nodes = [0, 0, 1, 1]
link = [
  { between = ["a", "b"], bandwidth = 10e9 },
  { between = ["b", "c"], bandwidth = 1e9, latency = 2e-6 },
  { between = ["c", "d"], bandwidth = 10e9 },
  { between = ["d", "a"], bandwidth = 1e9, one_way = true },
]
"""


def rows(text: str) -> dict[str, list[str]]:
    """First cell -> the other cells of its line, of all tables in what a command prints."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {first: rest for first, *rest in lines if first}
