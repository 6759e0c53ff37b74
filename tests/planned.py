"""One's own files, and the tables that commands print."""

import re
from pathlib import Path

PAGE = (Path(__file__).parent.parent / "docs" / "hardware.md").read_text(encoding="utf-8")
GRAPH, HARDWARE = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)  # as the page shows them
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
