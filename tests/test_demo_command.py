"""``minidist demo``, as a lecturer types it."""

import io
import json
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from pages import unpacked
from PIL import Image
from rich.console import Console

from minidist import show
from minidist.cli import main as cli
from minidist.cli.demo import command as demo
from minidist.cli.demo import every, menu
from minidist.show.demos import DEMONSTRATIONS, Demonstration
from minidist.show.gallery import folder
from minidist.show.player import terminal
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Box, Cue, Frame, Question, Scene


def test_the_menu_lists_every_demonstration_and_fits_its_window(capsys):
    """With the prompt below it, in 24 lines; a higher window has room for the groups."""
    assert cli.main(["demo"]) == 0
    listed = capsys.readouterr().out
    for name, one in DEMONSTRATIONS.items():
        assert re.search(rf"\b{name}\b", listed) and getattr(show, name.replace("-", "_")) is one
    with pytest.raises(AttributeError, match="no attribute 'rng'"):
        show.rng  # noqa: B018
    for width in (80, 140):
        lines, groups = (menu.menu(width, height).plain.splitlines() for height in (24, 50))
        assert len(lines) <= 23 and max(map(len, lines)) <= width and not any("…" in line for line in lines)
        extra = [line.strip() for line in groups if line not in lines]
        assert extra == list(dict.fromkeys(one.group for one in DEMONSTRATIONS.values()))
        assert menu.menu(width, len(groups) + 1).plain.splitlines() == groups  # all but the prompt's line
        assert menu.menu(width, len(groups)).plain.splitlines() == lines
        assert any("--size" in line for line in lines) is (width == 140)


def test_without_a_terminal_it_prints_the_frames_of_the_chosen_scene(capsys):
    assert cli.main(["demo", "broadcast", "--ranks", "3", "--size", "2", "--scene", "ring"]) == 0
    out = capsys.readouterr().out
    assert "Broadcast: rank 0's array on every rank · ring" in out
    assert [out.count(f"── {step} of 2 ──") for step in range(3)] == [1, 1, 1] and "M: 48 B" in out
    assert "bit for bit" in out and out.splitlines()[-1] == "also: --scene tree, --scene naive, --break"
    assert cli.main(["demo", "all-to-all", "--ranks", "2", "--break"]) == 0
    out = capsys.readouterr().out
    assert "broken: rank 0 swaps two of its chunks" in out and "Wrong data in 2 of 4 chunks" in out


# ── carts that run nothing, in place of the demonstrations ───────────────────────────────────────────────────────────


def an_animation(name: str = "cart") -> Animation:
    """Two scenes of 41 and 3 steps, each with a broken twin."""
    cues = (Cue(0, 1.5, "Ask what a cart is."),)
    asked = (Question(1, "Where is it?", ("here", "there"), 1, "It moves."),)

    def scene(called: str, steps: int, **more) -> Scene:
        frames = tuple(Frame((Box(i, 0, 9, 1, "#D55E00"),), f"{called}, step {i}") for i in range(steps))
        return Scene(called, f"A cart, {called}", frames, 2, verdict=f"{called} ends", **more)

    scenes = scene("long", 41, cues=cues, questions=asked), scene("short", 3)
    broken = scene("bad long", 41, twin="long"), scene("bad short", 3, twin="short", cues=cues)
    return Animation(name, f"A {name}", scenes, broken[0], "no wheel", also_broken=broken[1:])


@pytest.fixture
def carts(monkeypatch) -> dict[str, Demonstration]:
    """Three demonstrations, of which the second fails."""

    def make(name: str):
        if name == "ring":
            raise RuntimeError("a rank is missing\nand more")
        return an_animation(name)

    made = {
        name: Demonstration(name, f"how {name} goes", lambda *_, name=name: make(name), 2, 1, "carts", group="carts",
                            scenes=("long", "short"))
        for name in ("broadcast", "ring", "dp")
    }  # fmt: skip
    for module in (demo, every, folder):
        monkeypatch.setattr(module, "DEMONSTRATIONS", made)
    return made


@pytest.mark.long
def test_scene_and_break_choose_what_is_shown_and_what_is_in_a_picture(carts, tmp_path, capsys, monkeypatch):
    def notes_of(figure) -> str:
        """All words of a figure, also those that are drawn as outlines."""
        found = figure.findobj(lambda artist: hasattr(artist, "get_text") or hasattr(artist, "narrow"))
        return "\n".join(getattr(one, "text", "") or getattr(one, "get_text", str)() for one in found)

    for flags, shown in (
        ([], "long"), (["--break"], "bad long"), (["--scene", "short"], "short"),
        (["--scene", "short", "--break"], "bad short"),
    ):  # fmt: skip
        assert cli.main(["demo", "dp", *flags]) == 0
        assert capsys.readouterr().out.splitlines()[0] == f"A cart, {shown}"
    drawn = []
    for name in ("figure", "contact_sheet", "slide"):
        make = getattr(Animation, name)
        monkeypatch.setattr(Animation, name, lambda *args, make=make: drawn.append(make(*args)) or drawn[-1])
    for flags, what, there, missing in (
        ([], "picture: ", ("long, step 40", "short, step 2", "bad short, step 2"), "step 1"),
        (["--scene", "short"], "picture of 3 steps: ", ("0  short, step 0", "2  short, step 2"), "long"),
        (["--break"], "picture of 41 steps; --step N makes a slide of one: ", ("40  bad long, step 40",), "short"),
        (["--scene", "short", "--break", "--step", "1"], "slide: ", ("bad short, step 1", "no wheel"), "step 2"),
    ):
        assert cli.main(["demo", "dp", *flags, "--svg", str(tmp_path / "a.svg")]) == 0
        assert capsys.readouterr().out == f"{what}{tmp_path / 'a.svg'}\n" and (tmp_path / "a.svg").stat().st_size
        words = notes_of(drawn[-1])
        assert all(text in words for text in there) and not re.search(rf"{missing}\b", words), flags
    assert cli.main(["demo", "dp", "--step", "2", "--png", str(tmp_path / "a.png")]) == 0
    with Image.open(tmp_path / "a.png") as picture:  # a slide has the shape of a slide
        assert picture.width / picture.height == pytest.approx(16 / 9, rel=1e-3) and picture.width >= 1920
    assert cli.main(["demo", "dp", "--step", "99", "--png", str(tmp_path / "b.png")]) == 2
    assert not (tmp_path / "b.png").exists()


def test_notes_for_the_speaker_have_cues_questions_and_minutes(carts, capsys):
    assert cli.main(["demo", "dp", "--notes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dp: A dp" and lines[2] == "about 3 minutes; b breaks it: no wheel"
    assert "long (40 steps, 1.5 min): A cart, long" in lines and "  step 0 (1.5 min): Ask what a cart is." in lines
    start = lines.index("  before step 1, ask: Where is it?") + 1
    answer = ["      1  here", "      2  there   <- the answer", "      because: It moves."]
    assert lines[start : start + 3] == answer
    assert "short (2 steps): A cart, short" in lines  # no cues, and no minutes
    assert "bad short, broken (2 steps, 1.5 min): A cart, bad short" in lines


def test_all_writes_a_gallery_past_a_demonstration_that_fails(carts, tmp_path, capsys, monkeypatch):
    gallery = tmp_path / "new" / "gallery"
    assert cli.main(["demo", "--all", "--html", str(gallery), "--notes"]) == 1
    captured = capsys.readouterr()
    assert re.sub(r"\d+\.\d s", "- s", captured.err).splitlines() == [
        " 1 of 3  broadcast: - s", " 2 of 3  ring: it failed: RuntimeError: a rank is missing", " 3 of 3  dp: - s"
    ]  # fmt: skip
    assert captured.out.count("about 3 minutes") == 2 and "gallery/index.html" in captured.out
    names = {path.name for path in gallery.iterdir()}
    assert {"index.html", "broadcast.html", "dp.html", "dp.png", "chapter-03-0.png"} <= names
    assert "ring.html" not in names
    carts.pop("ring")

    def missing(name: str):
        raise ValueError(f"the course's folder {name}/ is missing")

    monkeypatch.setattr(every, "course_folder", missing)
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
    animation = unpacked(paths["html"].read_text(encoding="utf-8"))
    assert animation["first"] == [scene["broken"] for scene in animation["scenes"]].index(True)  # the bug first
    assert paths["png"].read_bytes().startswith(b"\x89PNG") and paths["gif"].read_bytes().startswith(b"GIF89a")
    events = json.loads(paths["trace"].read_text())["traceEvents"]
    messages = [event for event in events if event["ph"] == "X" and "bytes" in event["args"]]
    assert {event["pid"] for event in events} == {0, 1}
    assert {(event["pid"], event["name"]) for event in messages} == {
        (rank, f"{way} rank {1 - rank}") for rank in (0, 1) for way in ("send to", "receive from")
    }


def test_bad_input_is_reported_before_a_rank_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cases = [
        (["ring", "--ranks", "99"], "the demonstration ring shows 2 to 8 ranks, not 99"),
        (["ring", "--size", "0"], "size, numbers in each chunk, must be from 1 to 10,000, got 0"),
        (["ring", "--html", "/nowhere/a.html"], "--html: cannot write '/nowhere/a.html'"),
        (["ring", "--png", "a.jpg"], "--png: a.jpg must end in .png"),
        (["ring", "--gif", "a.png"], "--gif: a.png must end in .gif"),
        (["ring", "--svg", "a.png"], "--svg: a.png must end in .svg"),
        (["--html", "a.html"], "name a demonstration: minidist demo NAME"),
        (["--notes"], "name a demonstration: minidist demo NAME"),
        (["ring", "--scene", "rung"], "ring has no scene 'rung': choose from 'ring', 'numbers', 'naive', "),
        (["ring", "--step", "3"], "--step chooses the step of a picture: add --png PATH or --svg PATH"),
        (["--all"], "--all needs --html DIR for a gallery, --notes for the speaker's notes, or both"),
        (["ring", "--all", "--notes"], "--all shows every demonstration as it is: leave out ring"),
        (["--all", "--notes", "--ranks", "2", "--break"], "leave out --ranks, --break"),
        (["--all", "--html", "/dev/null"], "--html: cannot write '/dev/null': File exists"),
    ]
    for arguments, message in cases:
        assert cli.main(["demo", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1 and message in captured.err and not captured.out
        assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit):
        cli.main(["demo", "rng"])
    assert "all-gather" in capsys.readouterr().err


# ── terminals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_terminal_without_a_keyboard_gets_the_frames_and_with_one_the_player(carts, monkeypatch):
    out, played = io.StringIO(), []
    monkeypatch.setattr(demo, "terminal_console", lambda: Console(file=out, force_terminal=True, width=100))
    monkeypatch.setattr(terminal, "play", lambda animation, scene: played.append(scene.name) or scene)
    monkeypatch.setenv("TERM", "xterm-256color")
    with open(os.devnull) as nothing:
        for keyboard in (nothing, None):  # redirected, closed
            monkeypatch.setattr(sys, "stdin", keyboard)
            assert cli.main(["demo", "dp"]) == 0 and "── 1 of 40 ──" in out.getvalue()
            assert cli.main(["demo"]) == 0 and "which one?" not in out.getvalue()  # the menu, and no question
    assert not played  # nobody could end the player
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert cli.main(["demo", "dp", "--break"]) == 0 and played == ["bad long"]


def started(*arguments: str, keyboard, **streams) -> subprocess.Popen:
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    environment |= {"FORCE_COLOR": "1"} if streams.get("stdout") == subprocess.PIPE and keyboard is not None else {}
    command = [sys.executable, "-m", "minidist.cli", "demo", *arguments]
    return subprocess.Popen(command, stdin=keyboard, env=environment, close_fds=True, **streams)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="a pipe and a terminal of this kind are Unix's")
def test_ctrl_d_ends_the_menu_and_a_reader_that_stops_ends_the_frames():
    import pty

    leader, follower = pty.openpty()
    chosen = started(keyboard=follower, stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    frames = started("all-to-all", "--ranks", "2", keyboard=subprocess.DEVNULL, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE)  # fmt: skip
    frames.stdout.close()  # sooner than `| head -1` would
    try:
        os.write(leader, b"\x04")
        out, _ = chosen.communicate(timeout=120)
        assert chosen.returncode == 0 and "which one? number or name" in out.decode()
        _, errors = frames.communicate(timeout=120)
        assert (errors.count(b"Traceback"), frames.returncode) == (0, 141)  # the status of a broken pipe
    finally:
        chosen.kill()
        frames.kill()
        frames.stderr.close()
        os.close(leader)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of this kind is Unix's")
def test_in_a_terminal_the_player_takes_keys():
    import pty
    import select

    leader, follower = pty.openpty()
    player = started("all-to-all", "--ranks", "2", keyboard=follower, stdout=follower, stderr=follower)
    os.close(follower)
    seen, pressed, deadline = b"", [], time.monotonic() + 300
    keys = [
        (b"Before: a letter", b" "), (b"space reveal", b" "), (b"Step 1", b"b"), (b"fix|broken: rank 0 swaps", b"q"),
    ]  # fmt: skip
    try:
        while time.monotonic() < deadline:
            if select.select([leader], [], [], 0.2)[0]:
                try:
                    more = os.read(leader, 65536)
                except OSError:  # Linux: the other end is closed
                    break
                if not more:
                    break
                seen += more
            if keys and re.search(keys[0][0], re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen)):
                os.write(leader, keys[0][1])
                pressed.append(keys.pop(0)[1])
        assert player.wait(timeout=120) == 0 and pressed == [b" ", b" ", b"b", b"q"]
    finally:
        player.kill()
        os.close(leader)
