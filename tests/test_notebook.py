"""Ranks inside a Jupyter kernel: functions defined in cells, prints in the cell, and failures told there."""

import pytest

CELLS = [
    "import numpy as np\nimport minidist as md\nSCALE = 10\ncluster = md.Cluster(3)",
    """
def helper(x):
    return x * SCALE

def main(world):
    x = np.array([helper(world.rank)])
    md.all_reduce(x, group=world)
    print("rank", world.rank, "has", x[0])
    return int(x[0])
""",
    "cluster.run(main)",
    "SCALE = 100\ncluster.run(main)",  # the cell's new global travels with the function
    "cluster.run(lambda world: [world.rank, SCALE])",
    """
try:
    cluster.run(lambda world: md.recv(np.zeros(1), (world.rank + 1) % 3, world))
except md.Deadlock as error:
    print(error)
""",
    "cluster.run(main)",
    "cluster.close()",
]


@pytest.mark.long
def test_a_cluster_in_a_notebook():
    nbformat = pytest.importorskip("nbformat", reason="Jupyter is not installed")  # here: importing it takes seconds
    nbclient = pytest.importorskip("nbclient", reason="Jupyter is not installed")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    texts = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    results = [[o.data["text/plain"] for o in cell.outputs if "data" in o] for cell in notebook.cells]
    assert results[2] == ["[30, 30, 30]"] and sorted(texts[2].split("\n")[:3]) == [f"rank {r} has 30" for r in range(3)]
    assert results[3:5] == [["[300, 300, 300]"], ["[[0, 100], [1, 100], [2, 100]]"]]
    assert "ranks 0, 1, 2 of 3 can never go on" in texts[5] and "<lambda>" in texts[5]
    assert results[6] == ["[300, 300, 300]"]
