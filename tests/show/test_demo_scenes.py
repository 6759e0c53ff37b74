"""The names of scenes that are known before a rank starts are those that the demonstrations make."""

import pytest

from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.menu import SCENES

QUICK = ("broadcast", "ring", "reduce-scatter", "all-gather", "all-to-all", "flash", "deadlock")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in DEMONSTRATIONS]
)
def test_declared_scenes_are_made(name, short_training):
    made = tuple(scene.name for scene in DEMONSTRATIONS[name]().scenes)
    assert made == SCENES[name], f"in show/demos/menu.py write  {name!r}: {made},"


def test_the_menu_lists_every_demonstration_once_in_its_order():
    assert list(SCENES) == list(DEMONSTRATIONS)


@pytest.mark.parametrize("demonstration", DEMONSTRATIONS.values(), ids=DEMONSTRATIONS.keys())
def test_what_it_shows_fits_a_line_of_the_menu(demonstration):
    assert len(demonstration.about) <= 62
