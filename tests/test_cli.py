"""The commands as a user types them."""

import json
import shlex
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
from choosing import long

from minidist import backend, files
from minidist.cli import main as cli
from minidist.cli.output import printable
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

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
    for text in (result["fingerprint"], "validation loss", "each rank, in one step", "text from the model"):
        assert text in out
    events = json.loads(paths["trace"].read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert {"s", "f", "X", "M"} <= {event["ph"] for event in events}
    assert {event["name"] for event in events} >= {"step 2", "optimizer", "sync gradients"}
    assert paths["png"].read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_picture_that_cannot_show_overlap_says_why(tmp_path, capsys):
    flags = ["train", *SIZES, "--dp", "2", "--png", str(tmp_path / "x.png")]
    assert cli.main(flags) == 0
    assert "one bucket holds all gradients" in " ".join(capsys.readouterr().out.split())
    for more in (["--bucket-mb", "0.01"], ["--zero", "1"], ["--sync", "naive"]):
        assert cli.main([*flags, *more]) == 0
        assert "one bucket" not in capsys.readouterr().out


@pytest.mark.long
def test_a_picture_of_a_pipeline(tmp_path, monkeypatch):
    """For pp=2,dp=2: the first of two pipelines, ranks 0 and 2, as a grid."""
    from minidist.show.figures import pipelines

    drawn, draw = [], pipelines.draw
    monkeypatch.setattr(pipelines, "draw", lambda found, *rest: drawn.append((found, *rest)) or draw(found, *rest))
    path = str(tmp_path / "x.png")
    assert cli.main(["train", *SIZES, "--layers", "2", "--pp", "2", "--dp", "2", "--png", path]) == 0
    ((found, _, ranks),) = drawn
    ((title, rows),) = found.items()
    assert list(ranks) == [0, 2]
    assert title == "dp=2,pp=2" and [row[0].action.stage for row in rows] == [0, 1]
    assert Path(path).stat().st_size > 5000


@pytest.mark.long
def test_default_layouts_that_do_not_fit_are_skipped(capsys):
    assert cli.main(["verify", *SIZES, "--global-batch", "3", "--steps", "1"]) == 0
    out = capsys.readouterr().out
    assert "dp=3" in out and "dp=4" not in out


def test_standard_output_has_only_the_json(tmp_path, capsys):
    assert cli.main(["train", *SIZES, "--json", "-", "--png", str(tmp_path / "x.png")]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["layout"] == "dp=1" and "fingerprint" in captured.err
    assert (tmp_path / "x.png").stat().st_size > 5000  # a picture needs no --trace


@pytest.mark.long
def test_no_number_and_no_name_is_cut_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    flags = "--dp=4 --zero=3 --node-size=2 --steps=2 --width=128 --json=- --tables".split()  # noqa: SIM905
    assert cli.main(["train", *flags]) == 0
    captured = capsys.readouterr()
    found, printed = json.loads(captured.out), captured.err
    tables = printed[printed.index("traffic per rank") :]
    assert "…" not in tables
    assert all(f"{rank['bytes_between_nodes']:,} │" in tables for rank in found["traffic"])
    rows = found["collectives"][0]
    assert {"dp", "shard"} == {row["axis"] for row in rows} and all(row["calls"] > 0 for row in rows)
    sent = [row["bytes_sent"] for row in rows]
    assert sent == sorted(sent, reverse=True) and "collectives and sends of rank 0, one step" in printed


def test_the_summary_fits_one_screen_and_says_what_was_counted(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "results.json"
    flags = [*SIZES, "--dp", "4", "--node-size", "2", "--sample", "60", "--json", str(path)]
    assert cli.main(["train", *flags]) == 0
    lines, found = capsys.readouterr().out.splitlines(), json.loads(path.read_text())
    assert len(lines) <= 24
    cells = [line.strip("│").replace("│", " ").split() for line in lines if line.startswith("│")]
    rows = {row[0]: row for row in cells}
    for rank, (moved, memory) in enumerate(zip(found["traffic"], found["memory"], strict=True)):
        kilobytes = [f"{moved[what] / 3 / 1e3:,.0f}" for what in ("bytes_sent", "bytes_between_nodes")]
        expected = [str(rank), *kilobytes, f"{moved['messages_sent'] / 3:,.0f}", f"{memory['peak'] / 1e6:,.2f}"]
        assert rows[str(rank)][: len(expected)] == expected
    (loss,) = (line for line in lines if line.startswith("loss: "))
    first, *_, last = found["losses"]
    assert loss.startswith(f"loss: {first:.4f} at the start █") and loss.endswith(f"{last:.4f} at the end")
    assert any(f"MFU {100 * found['utilization']['mfu']:.1f} % of the measured peak" in line for line in lines)


def test_verify_says_yes(capsys, tmp_path):
    path = tmp_path / "verify.json"
    assert cli.main(["verify", "dp=2", "dp=3,algorithm=tree", *SIZES, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.count("yes") == 2 and "All 2 layouts match the single-process run bit for bit" in out
    report = json.loads(path.read_text())
    assert report["all_same"] and [run["layout"] for run in report["runs"]] == ["dp=1", "dp=2", "dp=3,algorithm=tree"]
    assert len({run["fingerprint"] for run in report["runs"]}) == 1


@pytest.mark.long
def test_verify_uses_as_many_sequence_chunks_as_the_layouts_need(capsys, monkeypatch):
    """Of layouts that are named, all together; of the usual ones, those that need them are a group of their own."""
    from minidist.cli import verify as command

    assert cli.main(["verify", "dp=2", "cp=2", "cp=2,cp_kind=zigzag", *SIZES]) == 0
    out = capsys.readouterr().out
    assert "one process, 4 sequence chunks" in out and out.count("yes") == 3
    monkeypatch.setattr(command, "DEFAULT_LAYOUTS", [Layout(dp=2), Layout(cp=2)])
    for more, references in (([], ["one process ", "one process, 2 sequence"]), (["--sequence-chunks", "4"], [])):
        assert cli.main(["verify", *SIZES, *more]) == 0
        out = capsys.readouterr().out
        assert "All 2 layouts match the single-process run bit for bit" in out
        assert all(reference in out for reference in references or ["one process, 4 sequence chunks"])
        assert ("with 2 sequence chunks" in out) == (not more)


@pytest.mark.long
def test_verify_gives_layouts_that_share_experts_some(capsys, monkeypatch):
    from minidist.cli import verify as command

    assert cli.main(["verify", "dp=2,ep=2", "dp=3,ep=3", *SIZES]) == 0
    out = capsys.readouterr().out
    assert "one process, 12 experts" in out and out.count("yes") == 2
    monkeypatch.setattr(command, "DEFAULT_LAYOUTS", [Layout(dp=2), Layout(cp=2), Layout(dp=2, ep=2)])
    assert cli.main(["verify", *SIZES]) == 0
    out = capsys.readouterr().out
    assert "All 3 layouts match" in out and "with 2 sequence chunks" in out and "with 8 experts" in out
    assert cli.main(["verify", *SIZES, "--experts", "6", "--top-k", "1"]) == 0
    out = capsys.readouterr().out
    assert "one process, 6 experts " in out and "one process, 2 sequence chunks, 6 experts" in out
    assert cli.main(["verify", "dp=2,ep=2", *SIZES, "--experts", "3"]) == 2
    assert "ep=2 does not divide the 3 experts" in capsys.readouterr().err


@pytest.mark.long
def test_train_shows_how_evenly_experts_were_loaded(capsys):
    assert cli.main(["train", *SIZES, "--experts", "4", "--dp", "2", "--ep", "2", "--capacity", "1", "--tables"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "choices of each of 4 experts, last step" in out and "most / mean" in out and "varies" in out
    assert cli.main(["train", *SIZES]) == 0
    assert "experts" not in capsys.readouterr().out


@pytest.mark.long
def test_verify_uses_as_many_layers_as_a_pipeline_needs(capsys):
    """Unless --layers is given."""
    sizes = SIZES[1:]  # all but the layers
    for layout, layers in (("pp=3", 3), ("dp=2", 2), ("pp=2,virtual=2", 4), ("pp=2,stages=1+4", 5)):
        assert cli.main(["verify", layout, *sizes]) == 0
        assert f"GPT: {layers} layers" in capsys.readouterr().out, layout
    assert cli.main(["verify", "pp=3", *sizes, "--layers", "2"]) == 2
    assert "more than the 2 layers" in capsys.readouterr().err


def test_verify_says_no_and_where_in_four_short_lines(capsys, tmp_path):
    path = tmp_path / "report.json"
    flags = ["--reduce-dtype", "float32", "--global-batch", "24", "--json", str(path)]
    assert cli.main(["verify", "dp=2", *SIZES, *flags]) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    start = lines.index("dp=2") + 1
    when, where, how_far, how_much = lines[start : start + 4]
    assert "NO" in out and "ulp" in how_far
    assert when.startswith("  first differs after step ") and where.startswith("  in ")
    assert how_far.endswith(" apart") and how_much.endswith(" elements differ")
    (told,) = [run["difference"] for run in json.loads(path.read_text())["runs"] if not run["same"]]
    assert told.startswith(when.strip() + ", " + where.strip()) and told.endswith(how_much.strip())


def test_divergence_is_reported_in_one_line_with_its_step_and_leaves_no_empty_files(tmp_path, capsys):
    flags = ["--json", str(tmp_path / "x.json"), "--png", str(tmp_path / "x.png")]
    assert cli.main(["train", *SIZES, "--lr", "1e30", "--steps", "9", *flags]) == 2
    err = capsys.readouterr().err
    assert "minidist: training diverged in step 1: the gradient of" in err
    assert "Traceback" not in err and "Warning" not in err and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file on a full disk")
def test_a_file_that_cannot_be_written_costs_neither_the_results_nor_the_other_files(tmp_path, capsys):
    path = tmp_path / "x.json"
    assert cli.main(["train", *SIZES, "--trace", "/dev/full", "--json", str(path)]) == 2
    captured = capsys.readouterr()
    assert "minidist: --trace: cannot write '/dev/full': No space left on device" in captured.err
    fingerprint = json.loads(path.read_text())["fingerprint"]
    assert f"fingerprint: {fingerprint}" in captured.out


@pytest.mark.skipif(sys.platform == "win32", reason="limits as on Unix")
@pytest.mark.parametrize(
    ("flag", "command"),
    [
        long("json", ["train", *SIZES]), long("trace", ["train", *SIZES]), long("png", ["train", *SIZES]),
        long("json", ["verify", "dp=2", *SIZES]), long("html", ["demo", "bf16"]),
    ],
)  # fmt: skip
def test_a_full_disk_leaves_the_old_file_as_it_was(flag, command, tmp_path, monkeypatch):
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

    path = tmp_path / f"old.{flag}"
    path.write_text("old")
    path.chmod(0o640)
    with monkeypatch.context() as patch:
        patch.setattr("minidist.cli.output.replacing", replacing_on_a_full_disk)
        assert cli.main([*command, f"--{flag}", str(path)]) == 2
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    assert cli.main([*command, f"--{flag}", str(path)]) == 0
    assert path.read_text(errors="replace") != "old" and list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.long
def test_a_link_stays_a_link_and_a_device_stays_a_device(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    for _ in range(2):  # without the target, and with it
        assert cli.main(["train", *SIZES, "--json", str(link)]) == 0
        assert link.is_symlink() and json.loads(target.read_text())["fingerprint"]
    if Path("/dev/null").exists():
        assert cli.main(["train", *SIZES, "--json", "/dev/null"]) == 0
        assert Path("/dev/null").is_char_device()


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="pipes as on Unix")
@pytest.mark.parametrize("command", ["train", "verify"])
def test_a_closed_pipe_has_an_exit_status_of_its_own(command, tmp_path):
    png = ["--png", str(tmp_path / "x.png")] if command == "train" else ["dp=2"]
    line = shlex.join([sys.executable, "-m", "minidist.cli", command, *SIZES, *png])
    result = subprocess.run(["bash", "-c", f"{line} | true; exit ${{PIPESTATUS[0]}}"], timeout=300)
    assert result.returncode == 141
    assert command == "verify" or (tmp_path / "x.png").stat().st_size > 5000  # although the printing failed


def test_flags_say_how_a_number_is_written(capsys):
    for arguments, message in (
        ("train --dp ²", "argument --dp: ² is not a whole number: write it in the digits 0 to 9, as in 12"),
        ("train --layers １", "argument --layers: １ is not a whole number"),
        ("verify --steps 1_0", "argument --steps: 1_0 is not a whole number"),
        ("verify --max-ranks 1_0", "argument --max-ranks: 1_0 is not a whole number"),
        ("train --lr 1_0", "argument --lr: 1_0 is not a number: write it as in 12, 0.5 or 3e-4"),
        ("train --sample x", "argument --sample: x is not a whole number"),
        ("train --steps " + "9" * 400, "999... (400 characters) is too large: a whole number may be 92233720368547758"),
        ("train --layers " + "9" * 5000, "999... (5000 characters) is not a whole number"),
        ("demo ring --ranks ²", "argument --ranks: ² is not a whole number"),
        ("plan --cluster h100:8 --model llama3-8b --batch 8 --price nan", "nan is not a number"),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments.split())
        assert caught.value.code == 2 and message in capsys.readouterr().err, arguments


def test_ctrl_c_during_the_imports_is_answered_in_a_sentence():
    script = """
import sys

class InterruptedByNumpy:
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            raise KeyboardInterrupt

sys.meta_path.insert(0, InterruptedByNumpy())
from minidist.cli import program
sys.exit(program())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "minidist: interrupted; all ranks have ended\n"


def test_a_command_starts_without_what_only_the_others_need():
    script = "import sys, minidist.cli.main as cli; cli.build_parser('check'); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout == "False\n", done.stderr


def test_text_from_the_model_has_no_control_characters():
    assert printable("a\x1b[31m\x07\n\tb") == "a\ufffd[31m\ufffd\n\tb"


def test_texts_that_cannot_be_read_as_such(capsys):
    """(All other refusals: train/refusals.txt.)"""
    for flags, message in (
        (["--context", "1000000"], "too few for a context of 1000000"),
        (["--text", __file__, "--json", __file__], "--json, --text must be different files"),
    ):
        assert cli.main(["train", *flags]) == 2 and message in capsys.readouterr().err


def test_every_setting_is_a_flag_with_its_default(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    parts = capsys.readouterr().out.split("\n  --")  # a flag's help begins on a line of its own
    help_of = {part.split()[0]: " ".join(part.split()) for part in parts[1:]}
    for field in (*fields(Layout), *fields(TrainConfig)):
        in_words = {"text": "Python's own documentation", "stages": "split evenly", "capacity": "none is dropped"}
        in_words |= {"rampup_batch_size": "no ramp", "compress": "the gradients themselves"}
        default = in_words.get(field.name, field.default)
        assert f"(default: {default})" in help_of[field.name.replace("_", "-")]


def test_cupy_without_a_gpu_is_reported(capsys):
    try:
        backend.find("cupy")
        pytest.skip("there is a GPU")
    except RuntimeError:
        assert cli.main(["train", "--backend", "cupy"]) == 2
    assert "--backend cupy needs " in capsys.readouterr().err
