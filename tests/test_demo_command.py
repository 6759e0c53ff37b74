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
from rich.console import Console

from minidist import show
from minidist.cli import demo
from minidist.cli import main as cli
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.player import terminal


def test_alone_it_prints_the_menu(capsys):
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    for name in DEMONSTRATIONS:
        assert re.search(rf"\b{name}\b", out)


def test_without_a_terminal_it_prints_the_frames(capsys):
    assert cli.main(["demo", "all-gather", "--ranks", "3", "--size", "2"]) == 0
    out = capsys.readouterr().out
    assert [out.count(f"── {step} of 2 ──") for step in range(3)] == [1, 1, 1]
    assert "formula M (N−1)/N: 32 B   M: 48 B" in out and "matches the single-process result bit for bit" in out


def test_break_shows_the_bug(capsys):
    assert cli.main(["demo", "all-to-all", "--ranks", "2", "--break"]) == 0
    out = capsys.readouterr().out
    assert "broken: rank 0 swaps two of its chunks" in out and "Wrong data in 2 of 4 chunks" in out


def test_scene_chooses_what_to_show_first(capsys):
    assert cli.main(["demo", "broadcast", "--ranks", "2", "--scene", "ring"]) == 0
    assert "Broadcast: rank 0's array on every rank · ring" in capsys.readouterr().out
    assert cli.main(["demo", "broadcast", "--ranks", "2", "--scene", "round"]) == 2
    assert "broadcast has no scene 'round': choose from 'tree', 'naive', 'ring'" in capsys.readouterr().err


FILES = {"html": "a.html", "gif": "a.gif", "png": "a.png", "trace": "a.json"}


def test_files_for_slides(tmp_path, capsys):
    paths = {flag: tmp_path / name for flag, name in FILES.items()}
    flags = [part for flag, path in paths.items() for part in (f"--{flag}", str(path))]
    assert cli.main(["demo", "ring", "--ranks", "2", "--break", *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 4 and all(str(path) in out for path in paths.values())
    page = paths["html"].read_text(encoding="utf-8")
    animation = json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    broken = [scene["broken"] for scene in animation["scenes"]]
    assert animation["first"] == broken.index(True)  # it shows the bug first
    assert paths["png"].read_bytes().startswith(b"\x89PNG") and paths["gif"].read_bytes().startswith(b"GIF89a")
    events = json.loads(paths["trace"].read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    messages = [event for event in events if event["ph"] == "X" and "bytes" in event["args"]]
    assert {(event["pid"], event["name"]) for event in messages} == {
        (rank, f"{way} rank {1 - rank}") for rank in (0, 1) for way in ("send to", "receive from")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring", "--ranks", "99"], "the demonstration ring shows 2 to 8 ranks, not 99"),
        (["ring", "--size", "0"], "size, numbers in each chunk, must be from 1 to 10,000, got 0"),
        (["ring", "--html", "/nowhere/a.html"], "--html: cannot write '/nowhere/a.html'"),
        (["ring", "--png", "a.jpg"], "--png: a.jpg must end in .png"),
        (["ring", "--gif", "a.png"], "--gif: a.png must end in .gif"),
        (["--html", "a.html"], "name a demonstration: minidist demo NAME"),
    ],
)
def test_bad_input_is_reported_before_a_rank_starts(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and message in captured.err and not captured.out
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        cli.main(["demo", "rng"])
    assert "all-gather" in capsys.readouterr().err


def test_each_has_a_name_in_show():
    for name, demonstration in DEMONSTRATIONS.items():
        assert getattr(show, name.replace("-", "_")) is demonstration
    with pytest.raises(AttributeError, match="no attribute 'rng'"):
        show.rng  # noqa: B018


@pytest.mark.parametrize("keyboard", ["redirected", "closed"])
def test_without_a_keyboard_a_terminal_gets_the_frames(keyboard, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(demo, "terminal_console", lambda: Console(file=out, force_terminal=True, width=100))
    monkeypatch.setattr(terminal, "play", lambda animation, scene: pytest.fail("nobody could end the player"))
    monkeypatch.setenv("TERM", "xterm-256color")
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing if keyboard == "redirected" else None)
        assert cli.main(["demo", "all-to-all", "--ranks", "2"]) == 0
        assert "── 1 of 1 ──" in out.getvalue() and "bit for bit" in out.getvalue()
        assert cli.main(["demo"]) == 0 and "which one?" not in out.getvalue()  # the menu, and no question


def test_with_a_keyboard_and_a_terminal_there_is_the_player(monkeypatch):
    played = []
    monkeypatch.setattr(demo, "terminal_console", lambda: Console(file=io.StringIO(), force_terminal=True))
    monkeypatch.setattr(terminal, "play", lambda animation, scene: played.append(scene.name) or scene)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("TERM", "xterm-256color")
    assert cli.main(["demo", "all-to-all", "--ranks", "2", "--break"]) == 0 and played == ["broken"]


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of this kind is Unix's")
def test_ctrl_d_ends_the_menu():
    import pty

    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    menu = subprocess.Popen(
        [sys.executable, "-m", "minidist.cli", "demo"], stdin=follower, stdout=subprocess.PIPE, stderr=follower,
        env=environment | {"FORCE_COLOR": "1"}, close_fds=True,
    )  # fmt: skip
    os.close(follower)
    try:
        os.write(leader, b"\x04")
        out, _ = menu.communicate(timeout=120)
        assert menu.returncode == 0 and "which one? number or name" in out.decode()
    finally:
        menu.kill()
        os.close(leader)


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe of this kind is Unix's")
def test_if_the_reader_stops_it_ends_with_the_status_of_a_broken_pipe():
    command = [sys.executable, "-m", "minidist.cli", "demo", "all-to-all", "--ranks", "2"]
    printing = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    printing.stdout.close()  # sooner than `| head -1` would
    try:
        _, errors = printing.communicate(timeout=120)
        assert (errors.count(b"Traceback"), printing.returncode) == (0, 141)
    finally:
        printing.kill()
        printing.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of this kind is Unix's")
def test_in_a_terminal_the_player_takes_keys():
    import pty
    import select

    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    command = [sys.executable, "-m", "minidist.cli", "demo", "all-to-all", "--ranks", "2"]
    player = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment, close_fds=True
    )
    os.close(follower)
    seen, pressed, deadline = b"", [], time.monotonic() + 300
    keys = [(b"Before: a letter", b" "), (b"Step 1", b"b"), (b"fix|broken: rank 0 swaps", b"q")]
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
        assert player.wait(timeout=120) == 0 and pressed == [b" ", b"b", b"q"]
    finally:
        player.kill()
        os.close(leader)
