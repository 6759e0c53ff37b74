"""An animation as characters, and the player's keys."""

import asyncio
import io
from dataclasses import replace

import pytest
from rich.color import ColorType
from rich.console import Console

from minidist.show.player.animation import Animation
from minidist.show.player.characters import lines_of, messages_of
from minidist.show.player.scene import WIDTH, Arrow, Box, Frame, Label, Scene
from minidist.show.player.terminal import Player, print_animation


def drawn(*shapes, height: float = 3, colours: bool = False):
    return lines_of(Frame(shapes, ""), height, colours)


def plain(*shapes, height: float = 3) -> list[str]:
    return [line.plain.rstrip() for line in drawn(*shapes, height=height)]


def style_at(line, column: int):
    return next(span.style for span in line.spans if span.start <= column < span.end)


def test_a_line_is_always_as_wide_as_the_grid():
    lines = drawn(Label(70, 0, "too long for what is left"), Box(-3, -1, 200, 9, text="x" * 300), height=2.2)
    assert [line.cell_len for line in lines] == [WIDTH] * 3


def test_without_colours_a_box_is_its_mark_with_its_text_in_the_middle():
    assert plain(Box(2, 0, 6, 3, "#D55E00", "ab", "F")) == ["  FFFFFF", "  FFabFF", "  FFFFFF"]


def test_later_shapes_cover_earlier_ones_and_paper_hides():
    lines = plain(
        Box(0, 0, 6, 1, "#D55E00", "", "F"), Label(1, 0.5, "abc"), Box(2, 0, 9, 1, "paper", "", " "), height=1
    )
    assert lines == ["Fa"]


def test_texts_are_cut_to_their_box_and_placed_by_their_anchor():
    assert plain(Box(0, 0, 3, 1, "faint", "abcdef"), height=1) == ["abc"]
    assert plain(Label(9, 0.5, "end", anchor="end"), Label(20, 0.5, "mid", anchor="middle"), height=1) == [
        "      end         mid"
    ]


def test_frames_mark_what_changed_and_what_is_wrong():
    changed, wrong = Box(0, 0, 4, 1, None, "a", outline="ink"), Box(5, 0, 4, 1, None, "b", outline="wrong")
    assert plain(changed, wrong, height=1) == ["[a ] !b !"]
    assert plain(Box(0, 0, 4, 1, None, "a", outline="faint"), height=1) == [" a"]


def test_a_frame_does_not_hide_a_text():
    assert plain(Box(0, 0, 4, 1, "faint", "abcd", outline="ink"), height=1) == ["abcd"]


def test_a_box_thinner_than_half_a_line_is_visible():
    (line,) = drawn(Box(0, 0.1, 3, 0.1, "#D55E00"), height=1, colours=True)
    assert line.plain.rstrip() == "▀▀▀"


def test_half_a_line_is_half_a_block():
    (line,) = drawn(Box(0, 0.5, 2, 0.5, "#D55E00"), Box(4, 0, 2, 0.5, "#0072B2"), height=1, colours=True)
    assert line.plain.rstrip() == "▄▄  ▀▀"
    (line,) = drawn(Box(0, 0, 2, 1, "#D55E00"), Box(0, 0, 2, 0.5, "#0072B2"), height=1, colours=True)
    style = style_at(line, 0)
    assert (line.plain[:2], style.color.name, style.bgcolor.name) == ("▀▀", "#0072b2", "#d55e00")


def test_a_thin_box_is_visible_and_its_text_readable():
    (line,) = drawn(Box(3, 0, 0.1, 1, "#0072B2"), Box(10, 0, 5, 1, "#F0E442", "pale"), height=1, colours=True)
    assert style_at(line, 3).bgcolor.name == "#0072b2" and style_at(line, 11).color.name == "#000000"
    assert style_at(line, 11).color.type is ColorType.TRUECOLOR


def test_messages_are_listed():
    frame = Frame((Arrow(0, 0, 1, 1, label="0 → 1"), Box(0, 0, 1, 1), Arrow(0, 0, 1, 1, label="1 → 2")), "")
    assert messages_of(frame) == "0 → 1, 1 → 2"


@pytest.mark.parametrize("count", [1, 7, 9, 40])
def test_messages_that_do_not_fit_two_lines_are_counted_and_none_is_cut(count):
    labels = [f"{i} → {i + 1} a (8,000 B)" for i in range(count)]
    frame = Frame(tuple(Arrow(0, 0, 1, 1, label=label) for label in labels), "")
    scene, out = Scene("cart", "A cart", (frame,), 1), io.StringIO()
    print_animation(Animation("cart", "A cart", (scene,), scene, "none"), scene, Console(file=out, width=100))
    shown = out.getvalue().split("messages: ")[1].splitlines()[0]
    whole, _, more = shown.partition(", and ")
    named = whole.split(", ")
    assert named == labels[: len(named)] and more == (f"{count - len(named)} more" if len(named) < count else "")
    assert len(f"messages: {shown}") <= 2 * WIDTH
    assert len(named) == count or len(f"messages: {', '.join(labels[: len(named) + 1])}, and 9 more") > 2 * WIDTH


# ── an animation ─────────────────────────────────────────────────────────────────────────────────────────────────────


def an_animation() -> Animation:
    def scene(name: str) -> Scene:
        frames = [Frame((Box(0, 0, 9, 1, "#D55E00", f"{name}{i}"),), f"note {i}", {"step": str(i)}) for i in range(4)]
        return Scene(name, f"title of {name}", tuple(frames), 1, {"cart": "#D55E00"}, f"verdict of {name}", None)

    return Animation("cart", "A cart", (scene("one"), scene("two")), scene("bad"), "a wheel is off")


def test_without_a_terminal_every_frame_is_printed():
    animation, out = an_animation(), io.StringIO()
    print_animation(animation, animation.broken, Console(file=out, width=100))
    lines = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
    frames = [line for i in range(4) for line in (f"── {i} of 3 ──", f"##bad{i}###", f"note {i}", f"step: {i}")]
    assert lines == [
        "title of bad",
        "broken: a wheel is off",
        "# cart",
        *frames,
        "verdict of bad",
        "also: --scene one, --scene two",
    ]


def test_of_frames_with_one_note_the_last_is_printed():
    frames = [Frame((Label(0, 0.5, f"mile {i}"),), note) for i, note in enumerate(("off", "on", "on", "on", "end"))]
    scene, out = Scene("cart", "A cart", tuple(frames), 1), io.StringIO()
    print_animation(Animation("cart", "A cart", (scene,), scene, "none"), scene, Console(file=out, width=100))
    assert [line.strip() for line in out.getvalue().splitlines() if "mile" in line] == ["mile 0", "mile 3", "mile 4"]


def test_without_colours_the_key_has_marks():
    shapes = (
        Box(0, 0, 9, 1, "#D55E00", "", "F"),
        Box(0, 0, 9, 1, None, outline="wrong"),
        Box(0, 0, 1, 1, None, outline="ink"),
    )
    key = {"forward": "#D55E00", "bad": "wrong", "new": "ink"}
    scene, out = Scene("cart", "A cart", (Frame(shapes, ""),), 1, key), io.StringIO()
    print_animation(Animation("cart", "A cart", (scene,), scene, "none"), scene, Console(file=out, width=100))
    assert "F forward   ! ! bad   [ ] new" in out.getvalue()


class HandTimer:
    """In place of the player's timer: it ticks when it is told to."""

    def __init__(self, seconds: float, tick) -> None:
        self.seconds, self.tick = seconds, tick

    def stop(self) -> None:
        self.tick = lambda: None


def play(
    *keys: str, ticks: int = 0, then: tuple = (), animation: Animation | None = None
) -> tuple[str, int, str, list[HandTimer]]:
    """Press keys, let the timer tick, press others; return the player's scene, frame and picture, and its timers."""
    animation = animation or an_animation()

    async def session():
        timers = []
        player = Player(animation, animation.scenes[0])
        async with player.run_test(size=(90, 24)) as pilot:
            player.set_interval = lambda *arguments: timers.append(HandTimer(*arguments)) or timers[-1]
            await pilot.press(*keys)
            for _ in range(ticks):
                timers[-1].tick()
            await pilot.press(*then)
            picture = str(player.query_one("#picture").render())
            return player.scene.name, player.frame, picture.strip(), timers

    return asyncio.run(asyncio.wait_for(session(), 300))


def test_space_and_arrows_step():
    assert play("space", "right", "left", "pagedown")[:3] == ("one", 2, "one2")
    assert play("left")[:3] == ("one", 0, "one0")
    assert play("end")[:3] == ("one", 3, "one3") and play("end", "space", "home")[:3] == ("one", 0, "one0")


def test_b_breaks_it_in_the_same_step_and_fixes_it_again():
    assert play("s", "space", "b")[:3] == ("bad", 1, "bad1")
    assert play("s", "space", "b", "space", "b")[:3] == ("two", 2, "two2")


def test_b_goes_to_the_scene_that_the_broken_one_belongs_to():
    animation = an_animation()
    twins = replace(animation, broken=replace(animation.broken, twin="two"))
    assert play("space", "b", animation=twins)[:3] == ("one", 1, "one1")  # there, the bug cannot be shown
    assert play("s", "space", "b", "space", "b", animation=twins)[:3] == ("two", 2, "two2")
    assert play("s", "space", "b", animation=twins)[:3] == ("bad", 1, "bad1")


def test_the_verdict_comes_with_the_last_frame():
    async def session(*keys: str) -> str:
        animation = an_animation()
        player = Player(animation, animation.scenes[0])
        async with player.run_test(size=(90, 24)) as pilot:
            await pilot.press(*keys)
            return str(player.query_one("#verdict").render())

    shown = [asyncio.run(asyncio.wait_for(session(*keys), 300)) for keys in (("space",), ("end",), ("end", "b"))]
    assert shown == ["", "verdict of one", "verdict of bad"]


def test_s_cycles_through_the_scenes():
    assert play("s", "s")[0] == "one" and play("b", "s")[0] == "two"


@pytest.mark.long
def test_p_plays_to_the_end_at_the_speed_of_a_number():
    def timer(*keys: str) -> float:
        return play(*keys)[3][-1].seconds

    assert play("p", ticks=2)[1] == 2
    assert play("p", ticks=9)[1] == 3  # it stops at the end
    assert play("end", "p", ticks=2)[1] == 2  # from the beginning again
    assert play("p", ticks=9, then=("p",))[1] == 0  # it had stopped: p starts again
    assert play("p", "p", ticks=2)[1] == 0  # paused
    assert timer("1", "p") == 2.4 / 1.5 and timer("9", "p") == 2.4 / 1.5**9
    assert timer("p", "9") == timer("9", "p")  # the speed may change on the way
    assert play("p", "1", ticks=2)[1] == 2


def test_in_a_low_window_the_keys_of_a_presenter_step_and_up_and_down_scroll():
    async def session():
        animation = an_animation()
        player = Player(animation, animation.scenes[0])
        async with player.run_test(size=(80, 6)) as pilot:
            await pilot.press("pagedown", "pagedown", "pageup")
            await pilot.pause()
            seen = [player.query_one(name).region for name in ("#note", "#facts")]
            assert all(region.y >= 0 and region.bottom <= 6 for region in seen)  # whatever else does not fit
            await pilot.press("down")
            await pilot.pause()
            return player.frame, player.query_one("VerticalScroll").scroll_y

    frame, scrolled = asyncio.run(asyncio.wait_for(session(), 300))
    assert frame == 1 and scrolled > 0
