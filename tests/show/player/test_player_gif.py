"""A scene as an animated GIF."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from minidist.show.player import gif
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Box, Frame, Label, Scene

RED, BLUE = "#C00000", "#0000C0"


def a_scene(colour: str, verdict: str = "", first_wrong: int | None = None) -> Scene:
    """A box that moves one place to the right in each of three frames."""
    frames = [
        Frame((Box(24 * i, 1, 24, 2, colour), Label(0, 0, "cart")), f"note {i}", {"at": str(i)}) for i in range(3)
    ]
    return Scene("cart", "A cart", tuple(frames), 4, {"cart": colour}, verdict, first_wrong)


@pytest.fixture
def animation() -> Animation:
    return Animation("cart", "A cart", (a_scene(RED, "It arrived."),), a_scene(BLUE, "It fell.", 1), "no wheel")


def frames_of(path) -> tuple[list[np.ndarray], list[int]]:
    """Each frame as (H, W, 3) uint8, and how long it stays in milliseconds."""
    frames, durations = [], []
    with Image.open(path) as image:
        assert image.format == "GIF" and image.info["loop"] == 0  # 0: forever
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(np.array(image.convert("RGB")))
            durations.append(image.info["duration"])
    return frames, durations


def columns_of(picture: np.ndarray, colour: str) -> np.ndarray:
    """Where a colour is, among the rows of the scene: column indices. Not in the rows below, where the key shows it."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    near = (np.abs(picture[:120].astype(int) - rgb) < 12).all(axis=2)
    return np.flatnonzero(near.any(axis=0))


def test_each_frame_shows_its_shapes_where_they_are_and_the_last_one_stays_longest(animation, tmp_path):
    gif.save(animation, animation.scenes[0], tmp_path / "cart.gif")
    frames, durations = frames_of(tmp_path / "cart.gif")
    assert durations == [gif.STEP, gif.STEP, gif.LAST] and gif.LAST > gif.STEP
    width = frames[0].shape[1]
    for i, frame in enumerate(frames):
        columns = columns_of(frame, RED)
        assert columns.min() / width == pytest.approx((24 * i + 2) / 76, abs=0.02)
        assert columns.max() / width == pytest.approx((24 * (i + 1) + 2) / 76, abs=0.02)


def test_a_colour_that_the_last_frame_lacks_stays(tmp_path):
    """Among many shades of red, a blue box in the middle frame."""
    shades = [Box(6 * i, 1, 6, 1, f"#{90 + 12 * i:02X}0000") for i in range(12)]
    frames = [Frame((*shades, *([Box(30, 2.5, 12, 1, BLUE)] if i == 1 else [])), "", {}) for i in range(3)]
    one = Animation("cart", "A cart", (Scene("cart", "A cart", tuple(frames), 4),), a_scene(BLUE), "no wheel")
    gif.save(one, one.scenes[0], tmp_path / "cart.gif")
    found, _ = frames_of(tmp_path / "cart.gif")
    assert [len(columns_of(frame, BLUE)) > 100 for frame in found] == [False, True, False]


def test_the_verdict_comes_with_the_last_frame_in_the_colour_of_the_result(animation, tmp_path):
    for scene, is_red in ((animation.scenes[0], False), (animation.broken, True)):
        gif.save(animation, scene, tmp_path / "cart.gif")
        frames, _ = frames_of(tmp_path / "cart.gif")
        verdict = [frame[-55:-35, : frame.shape[1] // 2].astype(int) for frame in frames]
        assert [(rows < 200).any() for rows in verdict] == [False, False, True]
        red, green, _ = verdict[-1][(verdict[-1] < 200).any(axis=2)].mean(axis=0)
        assert (red > green) is np.bool_(is_red)


def test_only_the_broken_scene_names_the_bug(animation, tmp_path):
    heights = []
    other = a_scene(BLUE, "It fell.", 1)
    animation = replace(animation, also_broken=(other,))
    for scene in (animation.scenes[0], animation.broken, other):
        gif.save(animation, scene, tmp_path / "cart.gif")
        heights.append(frames_of(tmp_path / "cart.gif")[0][0].shape[0])
    assert heights[1] - heights[0] == pytest.approx(20, abs=2)  # one more line of text
    assert heights[2] == heights[1]
