"""The player in a terminal, by Textual's own pilot: what each key leads to, and what fits the window."""

import asyncio
from unittest.mock import patch

import carts
import pytest
from textual.widgets import Static

from minidist.show.stage import terminal
from minidist.show.stage.terminal import Player

CARTS, QUESTION = carts.animation(), carts.QUESTION
LIMIT = 300  # seconds for one session


def screen(*keys: str, size: tuple[int, int] = (80, 24)) -> dict[str, str]:
    """The texts of the visible parts after these keys; "on" goes to the next beat without waiting for the clock."""

    async def session():
        player = Player(CARTS, CARTS.scenes[0])
        async with player.run_test(size=size) as pilot:
            for key in keys:
                await pilot.press(*(["space", "space"] if key == "on" else [key]))
            await pilot.pause()
            parts = [part for part in player.query(Static) if part.display and part.id]
            assert all(part.region.bottom <= size[1] for part in parts), "it does not fit the window"
            return {part.id: str(part.render()) for part in parts} | {"ended": not player.is_running}

    with patch.object(terminal, "RATE", 1 / LIMIT):  # pictures a second: no clock runs on between two keys
        return asyncio.run(asyncio.wait_for(session(), LIMIT))


OVER, BAD = "slow is over. 10 is right.", "slow is over. It limps."


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("space on on", OVER), ("end", OVER), ("end left", "slow is on its way at 10."), ("end home", "slow begins."),
        ("b end", BAD), ("end b", BAD), ("end b b", OVER), ("s", "late begins."), ("s s s", "slow begins."),
        ("d on pagedown left", "slow begins."), ("s s plus end", "dialled is over. 11 is right."),
        ("s s minus minus on", "dialled begins."),
    ],
)  # fmt: skip
def test_keys_step_jump_break_and_choose(keys, says):
    assert screen(*keys.split())["says"] == says


def test_a_class_votes_before_the_answer_and_sees_its_votes_beside_it():
    lines = screen("space", "2", "2", "3")["asked"].splitlines()
    assert lines == [QUESTION.text, "  1  at 20", "  2  at 40   2 for it", "  3  at 80   1 for it"]
    assert "asked" not in screen("space", "space")
    lines = screen("space", "2", "end", "space")["asked"].splitlines()
    assert lines[2:] == ["  2  at 40   1 for it", "  3  at 80", QUESTION.reason]


def test_evidence_notes_the_bug_and_the_end():
    shown = screen("b", "end", "e")
    assert shown["title"] == "Broken: How does a cart go, slow?"
    assert shown["more"].splitlines() == ["miles: 20", f"bug: {carts.BUG}", "wheel 2, by 7 ulps", *carts.CODE]
    assert screen("n")["more"] == carts.CUE and len(screen()["keys"]) <= 78
    assert screen("q")["ended"] and screen("escape", size=(140, 50))["ended"]
