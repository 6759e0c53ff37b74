"""Training on a learner's own code: their implementations, the library's where a stub still is, and who is who."""

import json

import pytest

from minidist import overrides
from minidist.cli import main
from minidist.course.answers import course_folder, read_answers
from minidist.course.authoring.stubs import put_back, stub_of
from minidist.course.learner.implementations import implementations_of, training_on
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run
from minidist.verify.comparison import verify as verify_layouts

SMALL = "--steps=3 --layers=1 --width=16 --heads=2 --context=8 --global-batch=8 --micro-batch=1".split()  # noqa: SIM905
SOLUTIONS = {name: source.text for name, source in read_answers(course_folder("solutions")).items()}


@pytest.fixture
def folder(tmp_path):
    """``folder(names)``: a learner's folder in which these functions are solved."""

    def make(*names: str):
        for chapter, solution in SOLUTIONS.items():
            text = stub_of(solution)
            solved = [
                name for name in names if f"def {name}(" in text or f"class {name}(" in text or f"class {name}:" in text
            ]
            (tmp_path / f"{chapter}.py").write_text(put_back(text, solution, solved))
        return tmp_path

    return make


def owners(folder) -> dict[str, bool]:
    return {piece.name: piece.source is not None for piece in implementations_of(str(folder))}


def test_the_sockets_that_are_promised():
    promised = {"all_reduce_ring", "broadcast_tree", "all_gather_ring", "reduce_scatter_ring", "all_to_all_pairwise"}
    assert promised | {"BucketedDataParallel"} <= overrides.OVERRIDABLE.keys()
    assert all(owners(course_folder("solutions")).values())  # each has a task, and each solution fits


def test_stubs_fall_back(folder):
    mine = owners(folder("all_reduce_ring", "fill_buckets"))
    assert [name for name, own in mine.items() if own] == ["all_reduce_ring", "fill_buckets"]
    why = {piece.name: piece.why for piece in implementations_of(str(folder()))}
    assert why["broadcast_tree"] == "still a stub in ch03_collectives.py"


def verify(folder, *arguments) -> int:
    return main(["verify", "--impl", str(folder), *SMALL, *arguments])


def test_all_solutions_reach_the_librarys_fingerprint(capsys):
    layouts = ["dp=4,algorithm=ring", "dp=3,algorithm=naive,sync=naive", "dp=5,algorithm=tree,bucket_mb=0.01", "dp=1"]
    layouts += ["tp=2", "zero=1,dp=2,tp=2,sp=1"]
    layouts += ["pp=2", "pp=2,schedule=gpipe", "pp=2,virtual=2", "pp=2,schedule=zb-h1"]
    assert main(["verify", "--impl", "solutions", *SMALL, "--layers=4", *layouts]) == 0
    shown = capsys.readouterr().out
    assert shown.count("  yes") == 10 and shown.count("yours") == len(overrides.OVERRIDABLE)


def test_a_ring_of_ones_own_on_top_of_stubs(folder, capsys):
    """all_reduce_ring calls two functions that are still stubs: the library's stand in for them."""
    assert verify(folder("all_reduce_ring"), "dp=4,algorithm=ring") == 0
    shown = capsys.readouterr().out
    assert shown.count("yours") == 1 and "still a stub" in " ".join(shown.split())


def test_a_wrong_ring_is_found(folder, capsys):
    place = folder("all_gather_ring")
    file = place / "ch03_collectives.py"
    file.write_text(file.read_text().replace("range(size - 1)", "range(size - 2)"))
    assert verify(place, "dp=3,algorithm=ring") == 1
    shown = capsys.readouterr().out
    assert "NO" in shown and "first differs after step 0" in shown


def test_what_all_layouts_share_is_named(folder, capsys):
    """AdamW in another order of operations is right, but has other bits: no ring is to blame."""
    place = folder("adamw_update", "all_gather_ring")
    file = place / "ch01_transformer.py"
    text = file.read_text()
    assert text.count("data -= scratch") == 1 or "data -=" in text
    start = text.index("data -=")
    file.write_text(text[:start] + "data *= np.float32(1 + 2**-20)\n    " + text[start:])
    assert verify(place, "dp=2,algorithm=ring", "dp=3,algorithm=ring") == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("first differs") == 1 and "dp=2,algorithm=ring dp=3,algorithm=ring" in shown
    assert "something that all of them share. Of yours that is adamw_update, all_gather_ring." in shown


def test_calls_are_counted(folder, capsys):
    place = folder(
        "all_reduce_ring",
        "all_gather_ring",
        "reduce_scatter_ring",
        "adamw_update",
        "BucketedDataParallel",
        "fill_buckets",
    )
    assert main(["train", "--dp", "2", "--algorithm", "ring", "--impl", str(place), *SMALL, "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    calls = {row["function"]: row["calls"] for row in result["implementations"]}
    assert (
        calls["all_reduce_ring"] == calls["all_gather_ring"] == calls["reduce_scatter_ring"] == 3
    )  # one bucket a step
    assert calls["BucketedDataParallel"] == calls["fill_buckets"] == 1 and calls["adamw_update"] % 3 == 0
    yours = {row["function"] for piece in result["implementations"] if piece["implementation"] == "yours"}
    assert "broadcast_tree" not in yours and "adamw_update" in yours


def test_an_error_of_ones_own_is_told_with_its_line(folder, capsys):
    place = folder("all_reduce_ring")
    file = place / "ch03_collectives.py"
    file.write_text(file.read_text().replace("    chunks = chunks_of(flat, group.size)", "    chunks = 1 / 0"))
    line = file.read_text().splitlines().index("    chunks = 1 / 0") + 1
    assert main(["train", "--dp", "2", "--algorithm", "ring", "--impl", str(place), *SMALL]) == 2
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told and f'ch03_collectives.py", line {line}' in told


def test_an_answer_that_raises_not_implemented_error_is_none_the_less_an_answer(folder):
    place = folder("all_reduce_ring")
    file = place / "ch03_collectives.py"
    file.write_text(
        file.read_text().replace(
            "    chunks = chunks_of(",
            "    if flat is None:\n        raise NotImplementedError('sum only')\n    chunks = chunks_of(",
        )
    )
    assert owners(place)["all_reduce_ring"]


def test_the_reference_is_the_librarys_and_nothing_stays_plugged(ranks):
    config = TrainConfig(layers=1, heads=2, width=16, context=8, global_batch=8, micro_batch=1, steps=2)
    function = training_on(implementations_of("solutions"))
    one, two = verify_layouts([Layout(2)], config, rank_function=function)
    assert one.ranks[0].override_calls == {} and two.ranks[0].override_calls["adamw_update"] > 0
    assert run(ranks(2), config, Layout(2), rank_function=function).ranks[0].override_calls["adamw_update"] > 0
    assert run(ranks(2), config, Layout(2)).ranks[0].override_calls == {}  # the same ranks, afterwards


def test_a_class_on_a_stub_is_a_stub(folder):
    """ZeroStage2 is written, and ZeroStage1, on which it is built, is not."""
    mine = owners(folder("ZeroStage2", "ZeroStage3"))
    assert not mine["ZeroStage2"] and not mine["ZeroStage3"]
    mine = owners(folder("ZeroStage1", "ZeroStage2"))
    assert mine["ZeroStage1"] and mine["ZeroStage2"] and not mine["ZeroStage3"]


def test_unusable_input(tmp_path, capsys):
    assert main(["train", "--impl", str(tmp_path / "nowhere"), *SMALL]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    (tmp_path / "ch03_collectives.py").write_text("x = 1\ndef broken(:\n")
    assert main(["verify", "--impl", str(tmp_path), *SMALL, "dp=2"]) == 2
    assert "ch03_collectives.py:2: this is not Python" in capsys.readouterr().err


def test_plug_refuses_what_has_no_socket():
    with pytest.raises(KeyError, match="there is no socket 'nonsense'"):
        overrides.override({"nonsense": print})


def test_a_socket_looks_its_function_up_at_each_call():
    @overrides.socket
    def double(x):
        return 2 * x

    try:
        alias = double
        overrides.override({"double": lambda x: 3 * x})
        assert alias(1) == 3 and overrides.calls["double"] == 1
        overrides.override({})
        assert alias(1) == 2
    finally:
        del overrides.OVERRIDABLE["double"]
