"""``minidist train --watch``."""

import json
import socket

from minidist.cli.main import main

SMALL = "--layers=1 --heads=2 --width=16 --context=8 --global-batch=4 --micro-batch=1".split()  # noqa: SIM905


def test_a_watched_run_has_the_bits_of_any_other(capfd, tmp_path):
    found = []
    for flags in ([], ["--watch"]):
        path = tmp_path / f"{len(flags)}.json"
        assert main(["train", *SMALL, "--steps", "6", "--dp", "2", "--json", str(path), *flags]) == 0
        found.append(json.loads(path.read_text())["fingerprint"])
    assert found[0] == found[1]
    assert "watch the run, slow ranks and kill them: http://127.0.0.1:" in capfd.readouterr().err


def test_a_port_that_is_taken(capfd):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["train", *SMALL, "--watch", str(port)]) == 2
    assert f"--watch {port}: Address already in use. Choose another port" in capfd.readouterr().err
