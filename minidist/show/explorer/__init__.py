"""The explorer: what training a model on many GPUs costs, as a page of sliders. All numbers are planned beforehand.

choices.py has the sliders, table.py plans every position of them, packing.py makes the tables small, presets.py has the
well-known cases, zoom.py the levels from a tensor core to a building; page.py makes the page, web/ has its scripts.
"""

from minidist.show.explorer.page import Explorer, explore

__all__ = ["Explorer", "explore"]
