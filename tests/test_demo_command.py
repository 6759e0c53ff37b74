"""``minidist demo``, as a lecturer types it."""

import io
import json
import os
import re
import subprocess
import sys
from threading import Timer
from unittest.mock import Mock

import carts
import pytest
from pages import data_in
from PIL import Image
from rich.console import Console

from minidist import show
from minidist.cli import demo, demo_gallery
from minidist.cli import main as cli
from minidist.show.demos import DEMONSTRATIONS, Demonstration
from minidist.show.gallery import folder
from minidist.show.stage import terminal


def test_the_menu_lists_every_demonstration_and_fits_its_window(capsys):
    """The menu and the prompt below it take 24 lines; a higher window has room for the groups."""
    assert cli.main(["demo"]) == 0
    listed = capsys.readouterr().out
    for name, one in DEMONSTRATIONS.items():
        assert re.search(rf"\b{name}\b", listed) and getattr(show, name.replace("-", "_")) is one
    for width in (80, 140):
        lines = demo.menu(width, 24).plain.splitlines()
        assert len(lines) <= 23 and max(map(len, lines)) <= width and not any("…" in line for line in lines)


def test_without_a_terminal_it_prints_the_beats_of_the_chosen_scene(capsys):
    assert cli.main(["demo", "broadcast", "--ranks", "3", "--size", "2", "--scene", "ring"]) == 0
    out = capsys.readouterr().out
    assert [out.count(f"── {beat} of 2 ──") for beat in range(3)] == [1, 1, 1] and "Right: all 9 chunks." in out
    assert out.splitlines()[-1] == "also: --scene 'tree', --scene 'naive', --break"


@pytest.fixture
def demonstrations(monkeypatch) -> dict[str, Demonstration]:
    """Three demonstrations that run nothing, of which the second fails."""

    def make(name: str):
        if name == "ring":
            raise RuntimeError("a rank is missing\nand more")
        return carts.animation(name)

    made = {
        name: Demonstration(name, f"how {name} goes", ("slow", "late", "dialled"), lambda *_, name=name: make(name),
                            2, 1, "carts", group="carts")
        for name in ("broadcast", "ring", "dp")
    }  # fmt: skip
    for module in (demo, demo_gallery, folder):
        monkeypatch.setattr(module, "DEMONSTRATIONS", made)
    return made


@pytest.mark.long
def test_scene_and_break_choose_what_is_shown_and_what_is_in_a_picture(demonstrations, tmp_path, capsys):
    for flags, shown in (
        ([], "How does a cart go, slow?"), (["--break"], "Broken: How does a cart go, slow?"),
        (["--scene", "late"], "How does a cart go, late?"), (["--scene", "dialled"], "How does a cart go, dialled?"),
        (["--scene", "late", "--break"], "Broken: How does a cart go, late?"),
    ):  # fmt: skip
        assert cli.main(["demo", "dp", *flags]) == 0
        assert capsys.readouterr().out.splitlines()[0] == shown
    for flags, what in (
        ([], "picture: "), (["--scene", "late"], "picture of 3 beats: "), (["--break", "--step", "1"], "slide: "),
    ):  # fmt: skip
        assert cli.main(["demo", "dp", *flags, "--svg", str(tmp_path / "a.svg")]) == 0
        assert capsys.readouterr().out == f"{what}{tmp_path / 'a.svg'}\n" and (tmp_path / "a.svg").stat().st_size
    assert cli.main(["demo", "dp", "--step", "2", "--png", str(tmp_path / "a.png")]) == 0
    with Image.open(tmp_path / "a.png") as picture:  # a slide has the shape of a slide
        assert picture.width / picture.height == pytest.approx(16 / 9, rel=1e-3) and picture.width >= 1920
    assert cli.main(["demo", "dp", "--step", "99", "--png", str(tmp_path / "b.png")]) == 2
    assert not (tmp_path / "b.png").exists()


def test_all_writes_a_gallery_past_a_demonstration_that_fails(demonstrations, tmp_path, capsys, monkeypatch):
    gallery = tmp_path / "new" / "gallery"
    assert cli.main(["demo", "--all", "--html", str(gallery), "--notes"]) == 1
    captured = capsys.readouterr()
    assert re.sub(r"\d+\.\d s", "- s", captured.err).splitlines() == [
        " 1 of 3  broadcast: - s", " 2 of 3  ring: it failed: RuntimeError: a rank is missing", " 3 of 3  dp: - s"
    ]  # fmt: skip
    assert captured.out.count(f"{carts.drive('slow').question}\n") == 4  # the notes for the speaker
    names = {path.name for path in gallery.iterdir()}
    assert {"index.html", "broadcast.html", "dp.html", "dp.png", "03_collectives-0.png"} <= names
    assert "ring.html" not in names
    demonstrations.pop("ring")
    monkeypatch.setattr(demo_gallery, "course_folder", Mock(side_effect=ValueError("the course's folder is missing")))
    assert cli.main(["demo", "--all", "--html", str(gallery)]) == 0  # again, into the same folder
    assert "the gallery has no pictures of the chapters" in capsys.readouterr().out


@pytest.mark.long
def test_every_kind_of_file_is_written(tmp_path, capsys):
    kinds = {"html": "a.html", "gif": "a.gif", "png": "a.png", "svg": "a.svg", "trace": "a.json"}
    paths = {flag: tmp_path / name for flag, name in kinds.items()}
    flags = [part for flag, path in paths.items() for part in (f"--{flag}", str(path))]
    assert cli.main(["demo", "ring", "--ranks", "2", "--break", *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 5 and all(str(path) in out for path in paths.values())
    animation = data_in(paths["html"].read_text(encoding="utf-8"), "stories")
    assert animation["stories"][animation["first"]]["broken"]  # the bug first
    assert paths["png"].read_bytes().startswith(b"\x89PNG") and paths["gif"].read_bytes().startswith(b"GIF89a")
    events = json.loads(paths["trace"].read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}


# ── terminals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_terminal_without_a_keyboard_gets_the_beats_and_with_one_the_player(demonstrations, monkeypatch):
    out, played = io.StringIO(), []
    monkeypatch.setattr(demo, "terminal_console", lambda: Console(file=out, force_terminal=True, width=100))
    monkeypatch.setattr(
        terminal, "play", lambda animation, scene: played.append(scene.question + scene.broken) or scene
    )
    monkeypatch.setenv("TERM", "xterm-256color")
    with open(os.devnull, encoding="utf-8") as nothing:
        for keyboard in (nothing, None):  # redirected, closed
            monkeypatch.setattr(sys, "stdin", keyboard)
            assert cli.main(["demo", "dp"]) == 0 and "slow begins." in out.getvalue()
            assert cli.main(["demo"]) == 0 and "which one?" not in out.getvalue()  # the menu, and no question
    assert not played  # nobody could end the player
    keyboard = io.StringIO()  # Ctrl-D
    keyboard.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", keyboard)
    assert cli.main(["demo"]) == 0 and "which one? number or name" in out.getvalue()
    assert cli.main(["demo", "dp", "--break"]) == 0 and played == ["How does a cart go, slow?" + carts.BUG]


@pytest.mark.long
def test_in_a_terminal_the_player_takes_keys():
    leader, follower = pytest.importorskip("pty", reason="a terminal of this kind is Unix's").openpty()
    command = [sys.executable, "-m", "minidist.cli", "demo", "all-to-all", "--ranks", "2"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    player = subprocess.Popen(command, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    seen, pressed = b"", []
    keys = [
        (b"a block for each GPU", b" "), (b"How many arrays", b"b"), (b"Broken:", b"q"),
    ]  # fmt: skip
    killer = Timer(300, player.kill)
    killer.start()
    try:
        while more := os.read(leader, 65536):
            seen += more
            if keys and re.search(keys[0][0], re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen)):
                os.write(leader, keys[0][1])
                pressed.append(keys.pop(0)[1])
    except OSError:  # Linux: the other end is closed
        pass
    killer.cancel()
    os.close(leader)
    assert player.wait(timeout=120) == 0 and pressed == [b" ", b"b", b"q"]
