"""The picture of a breakdown, which a benchmark draws."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np

FILE = Path(__file__).parents[2] / "benchmarks" / "breakdown_picture.py"


def test_segments_are_stacked():
    spec = spec_from_file_location("breakdown_picture", FILE)
    breakdown_picture = module_from_spec(spec)
    spec.loader.exec_module(breakdown_picture)
    one = {"compute": 2e-3, "communication": 1e-3, "waiting": 5e-4}
    bars = breakdown_picture.draw({"tp=2": [one]}, "").axes[0].patches[:3]
    assert np.allclose([(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars], [(0, 2), (2, 3), (3, 3.5)])
