"""The commands as a user types them."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from threading import Thread

import pytest
from scripts import python

from minidist import backend, files
from minidist.cli import main as cli
from minidist.cli import verify
from minidist.cli.output import printable, terminal_console
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout, LooserSteps

SIZES = "--layers=1 --heads=2 --width=16 --context=16 --global-batch=8 --micro-batch=1 --steps=3".split()  # noqa: SIM905


def test_train_writes_json_trace_and_picture(tmp_path, capsys):
    paths = {name: tmp_path / f"out.{name}" for name in ("json", "trace", "png")}
    flags = [part for name, path in paths.items() for part in (f"--{name}", str(path))]
    assert cli.main(["train", "--dp", "2", *SIZES, "--sample", "20", "--clip", "inf", *flags]) == 0
    out = capsys.readouterr().out
    result = json.loads(paths["json"].read_text(), parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    assert result["config"]["clip"] == "inf"
    assert result["layout"] == "dp=2" and len(result["losses"]) == 3 and len(result["fingerprint"]) == 64
    assert result["tokens_per_second"] > 0 and len(result["traffic"]) == 2
    assert result["traffic"][0]["bytes_sent"] == result["traffic"][1]["bytes_sent"]
    said = result["fingerprint"], "validation loss", "text from the model", "a smaller --bucket-mb lets it overlap"
    assert all(text in out for text in said)
    events = json.loads(paths["trace"].read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert {"s", "f", "X", "M"} <= {event["ph"] for event in events}
    assert {event["name"] for event in events} >= {"step 2", "optimizer", "sync gradients"}
    assert paths["png"].read_bytes().startswith(b"\x89PNG")


def test_standard_output_has_only_the_json(tmp_path, capsys):
    assert cli.main(["train", *SIZES, "--json", "-", "--png", str(tmp_path / "x.png")]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["layout"] == "dp=1" and "fingerprint" in captured.err
    assert (tmp_path / "x.png").stat().st_size > 5000  # a picture needs no --trace


def test_the_summary_says_what_was_counted(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "results.json"
    assert cli.main(["train", *SIZES, "--dp", "4", "--node-size", "2", "--json", str(path)]) == 0
    printed, found = capsys.readouterr(), json.loads(path.read_text())
    lines = printed.out.splitlines()
    assert re.search(rf"3/3 loss {found['losses'][-1]:.4f} [\d,]+ tokens/s ", printed.err)  # the bar, at its end
    cells = [line.strip("│").replace("│", " ").split() for line in lines if line.startswith("│")]
    for rank, (moved, memory) in enumerate(zip(found["traffic"], found["memory"], strict=True)):
        kilobytes = [f"{moved[what] / 3 / 1e3:,.0f}" for what in ("bytes_sent", "bytes_between_nodes")]
        expected = [str(rank), *kilobytes, f"{moved['messages_sent'] / 3:,.0f}", f"{memory['peak'] / 1e6:,.2f}"]
        assert expected in [row[: len(expected)] for row in cells]
    (loss,) = (line for line in lines if line.startswith("loss: "))
    first, *_, last = found["losses"]
    assert loss.startswith(f"loss: {first:.4f} at the start ") and loss.endswith(f"{last:.4f} at the end")
    assert any(f"MFU {found['utilization']['mfu']:.1%} of the measured peak" in line for line in lines)


NEEDS = [  # (of verify: layouts and flags, the usual layouts, exit status, what is printed)
    (["dp=2", "cp=2", "cp=2,cp_kind=zigzag"], None, 0, ["one process, 4 sequence chunks", "All 3 layouts match"]),
    # of the usual layouts, those that need them are a group of their own
    ([], ["dp=2", "cp=2"], 0, ["one process ", "one process, 2 sequence", "Both layouts match", "with 2 sequence"]),
    (["--sequence-chunks=4"], ["dp=2", "cp=2"], 0, ["one process, 4 sequence chunks", "Both layouts match"]),
    (["dp=2,ep=2", "dp=3,ep=3"], None, 0, ["one process, 12 experts", "Both layouts match"]),
    ([], ["dp=2", "cp=2", "dp=2,ep=2"], 0, ["All 3 layouts match", "with 2 sequence chunks", "with 8 experts"]),
    (["--experts=6", "--top-k=1"], ["dp=2", "cp=2"], 0,
     ["one process, 6 experts ", "one process, 2 sequence chunks, 6 experts"]),
    (["dp=2,ep=2", "--experts=3"], None, 2, ["ep=2 does not divide the 3 experts"]),
    (["--global-batch=3"], ["dp=3", "dp=4"], 0, ["dp=3"]),  # what does not fit is skipped
    (["pp=3"], None, 0, ["GPT: 3 layers"]),
    (["pp=2,virtual=2"], None, 0, ["GPT: 4 layers"]),
    (["pp=2,stages=1+4"], None, 0, ["GPT: 5 layers"]),
    (["pp=3", "--layers=2"], None, 2, ["more than the 2 layers"]),
]  # fmt: skip


@pytest.mark.long
def test_verify_uses_what_the_layouts_need_unless_it_is_given(capsys, monkeypatch):
    """Layers, sequence chunks and experts: of layouts that are named, for all together."""
    offenders = []
    for arguments, usual, expected, words in NEEDS:
        monkeypatch.setattr(verify, "DEFAULT_LAYOUTS", [Layout.parse(text) for text in usual or ()])
        status = cli.main(["verify", *SIZES[1:], *arguments])
        printed = "".join(capsys.readouterr())
        if status != expected or not all(word in printed for word in words):
            offenders.append(f"{arguments}: status {status}, {printed}")
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize("hash", ["none", "own", "another"])
def test_verify_says_whether_this_machine_ends_where_all_others_do(capsys, tmp_path, monkeypatch, hash):
    command = ["verify", "dp=2", *SIZES, "--products", "exact", "--json", str(tmp_path / "found")]
    assert cli.main(command) == 0
    found = json.loads((tmp_path / "found").read_text())
    fingerprint, config = found["runs"][0]["fingerprint"], TrainConfig(**found["runs"][0]["config"])
    assert found["as_published"] is None and "very machine" not in capsys.readouterr().out
    known = {"none": {}, "own": {config: fingerprint}, "another": {config: "0badb175"}}[hash]
    monkeypatch.setattr("minidist.verify.comparison.PUBLISHED", known)
    status, printed = cli.main(command), capsys.readouterr().out
    told = {"none": "", "own": "Every machine ends on this hash.", "another": "Other machines get 0badb175"}
    assert status == (hash == "another") and told[hash] in printed
    found = json.loads((tmp_path / "found").read_text())
    assert found["as_published"] is {"none": None, "own": True, "another": False}[hash]
    assert found["runs"][0]["versions"].keys() == {"minidist", "numpy", "bits of its products"}


@pytest.mark.long
def test_the_published_hash_is_that_of_this_machine(capsys):
    """The first; the others take longer."""
    assert cli.main(["verify", "dp=2", "--products", "exact"]) == 0
    assert "Every machine ends on this hash." in capsys.readouterr().out


def test_verify_says_no_and_where_in_four_short_lines(capsys, tmp_path):
    path = tmp_path / "report.json"
    flags = ["--reduce-dtype", "float32", "--global-batch", "24", "--json", str(path)]
    assert cli.main(["verify", "dp=2", *SIZES, *flags]) == 1
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("dp=2") + 1
    when, where, how_far, how_much = lines[start : start + 4]
    assert "ulp" in how_far
    assert when.startswith("  first differs after step ") and where.startswith("  in ")
    assert how_far.endswith(" apart") and how_much.endswith(" elements differ")
    report = json.loads(path.read_text())
    assert not report["all_same"] and [run["layout"] for run in report["runs"]] == ["dp=1", "dp=2"]
    (told,) = [run["difference"] for run in report["runs"] if not run["same"]]
    assert told.startswith(when.strip() + ", " + where.strip()) and told.endswith(how_much.strip())


def test_divergence_is_reported_in_one_line_with_its_step_and_leaves_no_empty_files(tmp_path, capsys):
    flags = ["--json", str(tmp_path / "x.json"), "--png", str(tmp_path / "x.png")]
    assert cli.main(["train", *SIZES, "--lr", "1e30", "--steps", "9", *flags]) == 2
    err = capsys.readouterr().err
    assert "minidist: training diverged in step 1: the gradient of" in err
    assert "Traceback" not in err and "Warning" not in err and list(tmp_path.iterdir()) == []


def test_a_watched_run_has_the_bits_of_any_other_and_a_port_may_be_taken(capfd, tmp_path):
    found = []
    for number, flags in enumerate(([], ["--watch"])):
        path = tmp_path / f"{number}.json"
        assert cli.main(["train", *SIZES, "--dp", "2", "--json", str(path), *flags]) == 0
        found.append(json.loads(path.read_text())["fingerprint"])
    assert found[0] == found[1]
    assert "watch the run, slow ranks and kill them: http://127.0.0.1:" in capfd.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main(["train", *SIZES, "--watch", str(port)]) == 2
    assert f"--watch {port}: Address already in use. Choose another port" in capfd.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file on a full disk")
def test_a_file_that_cannot_be_written_costs_neither_the_results_nor_the_other_files(tmp_path, capsys):
    path = tmp_path / "x.json"
    assert cli.main(["train", *SIZES, "--trace", "/dev/full", "--json", str(path)]) == 2
    captured = capsys.readouterr()
    assert "minidist: --trace: cannot write '/dev/full': No space left on device" in captured.err
    fingerprint = json.loads(path.read_text())["fingerprint"]
    assert f"fingerprint: {fingerprint}" in captured.out


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="limits as on Unix")
def test_a_full_disk_leaves_the_old_file_as_it_was(tmp_path, monkeypatch):
    import resource

    @contextmanager
    def replacing_on_a_full_disk(path):
        """No file may become larger than 500 bytes: the system refuses the write, as it does on a full disk."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        with files.replacing(path) as new:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
            try:
                yield new
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    run = str(tmp_path / "run")
    assert cli.main(["train", *SIZES, "--save", run]) == 0
    commands = [["train", *SIZES, flag] for flag in ("--json", "--trace", "--png")] + [["checkpoint", run, "--export"]]
    for number, command in enumerate([*commands, ["verify", "dp=2", *SIZES, "--json"], ["demo", "bf16", "--html"]]):
        path = tmp_path / str(number) / f"old.{command[-1][2:]}"
        path.parent.mkdir()
        path.write_text("old")
        path.chmod(0o640)
        arguments = [*command, str(path)]
        with monkeypatch.context() as patch:
            patch.setattr("minidist.cli.output.replacing", replacing_on_a_full_disk)
            patch.setattr(sys, "dont_write_bytecode", True)  # of what is imported then, the cache would keep 500 bytes
            assert cli.main(arguments) == 2
        assert path.read_text() == "old" and list(path.parent.iterdir()) == [path], arguments
        assert cli.main(arguments) == 0
        assert path.read_bytes() != b"old" and list(path.parent.iterdir()) == [path], arguments
        assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.long
def test_a_link_stays_a_link_and_a_device_stays_a_device(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    for path in (link, link, os.devnull):  # without the target, and with it
        assert cli.main(["train", *SIZES, "--json", str(path)]) == 0
    assert link.is_symlink() and json.loads(target.read_text())["fingerprint"]
    assert sys.platform == "win32" or Path(os.devnull).is_char_device()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name, as on Unix")
def test_an_export_goes_through_a_pipe_which_stays_one(tmp_path):
    """One with a name, and one without, as a shell's ``--export >(sha256sum)`` names it."""
    assert cli.main(["train", *SIZES, "--save", str(tmp_path)]) == 0
    pipe, file, read, (end, start) = tmp_path / "pipe", tmp_path / "file", [], os.pipe()
    os.mkfifo(pipe)

    def collect(source):
        with open(source, "rb") as stream:
            read.append(stream.read())

    readers = [Thread(target=collect, args=(source,), daemon=True) for source in (pipe, end)]
    for reader in readers:
        reader.start()
    for path in (pipe, f"/dev/fd/{start}", file):
        assert cli.main(["checkpoint", str(tmp_path), "--export", str(path)]) == 0
    assert pipe.is_fifo()
    os.close(start)
    for reader in readers:
        reader.join()
    assert read == [file.read_bytes()] * 2


PLAN = "--model=llama3-8b --cluster=h100:8 --batch=64".split()  # noqa: SIM905


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="pipes as on Unix")
def test_a_closed_pipe_has_an_exit_status_of_its_own_and_files_are_written(tmp_path):
    documents = str(Path(__file__).with_name("verify") / "documents.jsonl")
    assert cli.main(["train", *SIZES, "--save", str(tmp_path / "run")]) == 0
    for *command, name, least in (
        ("challenge", "", 0),
        ("train", *SIZES, "--png", "x.png", 5000),
        ("data", documents, "--packing", "cut", "--json", "data", 500),
        ("hardware", "--json", "hardware", 500),
        ("scaling", "--json", "scaling", 500),
        ("failures", "--json", "failures", 200),
        ("plan", "--validate", "--json", "validated", 500),
        ("plan", *PLAN, "--json", "plan", 500),
        ("plan", *PLAN, "--layout", "tp=8", "--json", "layout", 500),
        ("checkpoint", str(tmp_path / "run"), "--json", "checkpoints", 200),
        ("checkpoint", str(tmp_path / "run"), "--export", "weights", 5000),
    ):
        reader, writer = os.pipe()
        os.close(reader)
        line = [sys.executable, "-m", "minidist.cli", *command, *[str(tmp_path / name)] * bool(name)]
        with open(writer, "wb") as closed:
            assert subprocess.run(line, stdout=closed, timeout=300).returncode == 141, command
        assert (tmp_path / name).stat().st_size > least


INTERRUPTED = """
import sys

class InterruptedByNumpy:
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            raise KeyboardInterrupt

sys.meta_path.insert(0, InterruptedByNumpy())
from minidist.cli import program
sys.argv = ["minidist", "verify", "dp=0"]
sys.exit(program())
"""
HUNG_UP = INTERRUPTED.replace("import sys", "import signal, sys\nsignal.signal(signal.SIGHUP, {})").replace(
    "raise KeyboardInterrupt", "signal.raise_signal(signal.SIGHUP)"
)
STARTED = "import sys, minidist.cli.main as cli; cli.build_parser('check'); print('numpy' in sys.modules)"


def test_ctrl_c_while_importing_is_answered_and_a_command_imports_only_what_it_needs():
    for script, expected in (
        (INTERRUPTED, (130, "", "minidist: interrupted; all ranks have ended\n")),
        (STARTED, (0, "False\n", "")),
    ):
        done = python("-c", script)
        assert (done.returncode, done.stdout, done.stderr) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="signals as on Unix")
def test_a_terminal_that_closes_ends_a_command_but_not_under_nohup():
    codes = [python("-c", HUNG_UP.format(f"signal.SIG_{handler}")).returncode for handler in ("DFL", "IGN")]
    assert codes == [130, 2]  # which is that of dp=0


def test_text_from_the_model_has_no_control_characters(capsys):
    assert printable("a\x1b[31m\x07\n\tb") == "a\ufffd[31m\ufffd\n\tb"
    terminal_console().print("[bold]")  # it may be the name of a file
    assert capsys.readouterr().out == "[bold]\n"


def test_every_setting_is_a_flag_with_its_default(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help", "all"])
    parts = capsys.readouterr().out.split("\n  --")  # a flag's help begins on a line of its own
    help_of = {part.split()[0]: " ".join(part.split()) for part in parts[1:]}
    for field in (*fields(Layout), *fields(TrainConfig)):
        in_words = {"text": "the course's own prose", "stages": "split evenly", "capacity": "none is dropped"}
        in_words |= {"rampup_batch_size": "no ramp", "compress": "the gradients themselves", "tokenizer": "bytes"}
        default = in_words.get(field.name, field.default)
        assert f"(default: {default})" in help_of[field.name.replace("_", "-")]


def test_help_begins_short_and_shows_a_group_on_request(capsys):
    """The dozen flags of a first run; those with a word in their name or in that of their group; none but these."""
    shown = {}
    for word in ([], ["looser"], ["Outer_"], ["all"], ["nowhere"]):
        with pytest.raises(SystemExit) as end:
            cli.main(["train", "-h", *word])
        shown[end.value.code, *word] = capsys.readouterr()
    flags = {words: set(re.findall(r"^  (--[a-z-]+)", out, re.MULTILINE)) for words, (out, _) in shown.items()}
    assert "--dp" in flags[0,] and len(flags[0,]) <= 14 and "Layout: looser steps" in shown[0,].out.split("more:")[1]
    assert flags[0, "looser"] == {f"--{field.replace('_', '-')}" for field in LooserSteps.__annotations__}
    assert flags[0, "Outer_"] == {"--outer-lr", "--outer-momentum"}
    assert flags[0,] | flags[0, "looser"] < flags[0, "all"] and "'nowhere'" in shown[2, "nowhere"].err
    assert cli.main([]) == 0 and "minidist verify" in capsys.readouterr().out


def test_a_file_gives_flags_that_the_command_line_overrides(capsys, tmp_path):
    """TOML with tables or without, and what --json wrote: the same run, and the same bits."""
    flags = ["--dp", "2", "--zero", "3", "--layers", "1", "--steps", "2", "--fault", "rank=0,step=1,kind=slow:1.1"]
    flags += ["--warmup", "0", "--weight-decay", "0", "--reshard-after-forward", "0"]
    settings = tmp_path / "run.toml"
    settings.write_text(
        'layout = "dp=2,zero=3"\nsteps = 7\ntables = true\nelastic = false\nfault = ["rank=0,step=1,kind=slow:1.1"]\n'
        "[model]\nlayers = 1\nwarmup = 0\nweight-decay = 0.0\nreshard-after-forward = false\n"
    )
    given, first, second = (tmp_path / f"{name}.json" for name in "abc")
    assert cli.main(["train", *flags, "--json", str(given)]) == 0
    capsys.readouterr()
    assert cli.main(["train", "--steps", "2", "--config", str(settings), "--json", str(first)]) == 0
    assert "matrix products" in capsys.readouterr().out  # --tables
    assert cli.main(["train", f"--config={first}", "--json", str(second)]) == 0
    runs = [json.loads(path.read_text()) for path in (given, first, second)]
    for key in ("layout", "config", "fingerprint", "losses"):
        assert runs[0][key] == runs[1][key] == runs[2][key]
    for name, text in (("run.toml", "steps = [["), ("run.json", "[]")):
        (tmp_path / name).write_text(text)
        assert cli.main(["train", "--config", str(tmp_path / name)]) == 2
        assert f"--config {tmp_path / name}: " in capsys.readouterr().err


def test_a_missing_cupy_is_told(capsys):
    with suppress(RuntimeError):
        backend.find("cupy")
        pytest.skip("CuPy is here")
    assert cli.main(["train", "--backend=cupy"]) == 2 and "--backend cupy needs " in capsys.readouterr().err


def test_missing_tokenizers_are_told(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    file = tmp_path / "tokenizer.json"
    file.write_text('{"model": "one that nobody has read before"}')
    for command in (["train", "--tokenizer", str(file)], ["tokenizer", "train", str(file), "--vocab=300"]):
        assert cli.main(command) == 2
        assert "it needs the package tokenizers: pip install 'minidist[tokenizers]'\n" in capsys.readouterr().err
