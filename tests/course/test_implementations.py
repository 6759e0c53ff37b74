"""Training on a learner's own code: overrides for what is solved, the library's functions for what is still a stub."""

import json
import re
import shutil
from pathlib import Path

import pytest
from choosing import long

from minidist import overrides
from minidist.cli.main import main
from minidist.course.answers import course_folder, solutions
from minidist.course.learner.implementations import implementations_of, training_on
from minidist.course.stubs import replace_definitions, stub_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run
from minidist.verify.comparison import verify as verify_layouts

SMALL = "--steps=3 --layers=1 --width=16 --heads=2 --context=8 --global-batch=4 --micro-batch=1".split()  # noqa: SIM905
SOLUTIONS = {name: source.text for name, source in solutions().items()}


@pytest.fixture
def folder(tmp_path):
    """``folder(*names, old=, new=)``: a learner's folder in which these functions are solved, with a change in them."""

    def make(*names: str, old: str = "", new: str = ""):
        for chapter, solution in SOLUTIONS.items():
            text = stub_of(solution)
            solved = [name for name in names if re.search(rf"^(def|class) {name}\b", text, re.M)]
            text = replace_definitions(text, solution, solved)
            (tmp_path / f"{chapter}.py").write_text(text.replace(old, new) if old and solved else text)
        return tmp_path

    return make


def solved_in(folder) -> dict[str, bool]:
    """Each overridable function -> whether this folder overrides it."""
    return {function.name: function.source is not None for function in implementations_of(str(folder))}


def test_each_overridable_function_has_a_task_whose_solution_loads():
    solved = solved_in(course_folder("solutions"))
    assert solved.keys() == set(overrides.OVERRIDABLE) and len(solved) > 60 and all(solved.values())


def test_what_is_a_stub(folder):
    refuses = "    if flat is None:\n        raise NotImplementedError('sum only')\n    chunks = chunks_of("
    for names, change, expected in (
        (["all_reduce_ring", "fill_buckets"], {}, ["all_reduce_ring", "fill_buckets"]),
        (["ZeroStage2", "ZeroStage3"], {}, []),  # their base class ZeroStage1 is one
        (["ZeroStage1", "ZeroStage2"], {}, ["ZeroStage1", "ZeroStage2"]),
        (["all_reduce_ring"], {"old": "    chunks = chunks_of(", "new": refuses}, ["all_reduce_ring"]),
    ):
        mine = solved_in(folder(*names, **change))
        assert [name for name, own in mine.items() if own] == expected
    mine = folder() / "ch03_collectives.py"
    where = {function.name: function.where for function in implementations_of(str(mine.parent))}
    assert where["broadcast_tree"] == "still a stub in ch03_collectives.py"
    mine.write_text(mine.read_text() + "\n\nbroadcast_tree = lambda flat, src, group: None\n")  # below its stub
    assert solved_in(mine.parent)["broadcast_tree"]


def verify(folder, *arguments) -> int:
    return main(["verify", "--impl", str(folder), *SMALL, *arguments])


def train(folder, *arguments) -> int:
    return main(["train", "--impl", str(folder), *SMALL, *arguments])


def calls_in(printed: str) -> dict[str, int]:
    """Return how often rank 0 called each of the learner's functions, from the command's JSON."""
    rows = json.loads(printed)["implementations"]
    return {row["function"]: row["calls"] for row in rows if row["implementation"] == "yours"}


@pytest.mark.long
def test_all_solutions_reach_the_librarys_fingerprint(capsys):
    layouts = [
        "dp=4,algorithm=ring", "dp=3,algorithm=naive,sync=naive", "dp=5,algorithm=tree,bucket_mb=0.01", "dp=1", "tp=2",
        "zero=1,dp=2,tp=2,sp=1", "dp=4,algorithm=double_tree", "dp=4,node_size=2,algorithm=hierarchical", "pp=2",
        "pp=2,schedule=gpipe", "pp=2,virtual=2", "pp=2,schedule=zb-h1",
    ]  # fmt: skip
    assert verify("solutions", "--layers=4", "--global-batch=8", *layouts) == 0
    shown = capsys.readouterr().out
    assert shown.count("  yes") == len(layouts) and shown.count("yours") > 20 and "│ minidist" not in shown
    # ranks that share the experts, and tokens that are dropped for lack of capacity
    experts = "--experts=4 --expert-hidden=8 --capacity=1 --aux-loss=0.01 --bias-rate=0.01".split()  # noqa: SIM905
    assert verify("solutions", *experts, "ep=2,dp=4", "--json=-") == 0
    calls = calls_in(capsys.readouterr().out)
    chapter = [name for name in overrides.OVERRIDABLE if f"def {name}(" in SOLUTIONS["ch11_experts"]]
    assert len(chapter) == 9 and all(calls[name] for name in chapter)


CALLED = {  # flags of a run -> functions of the solutions that it calls
    "--dp=2 --algorithm=ring": "all_reduce_ring all_gather_ring reduce_scatter_ring",
    "--dp=2 --products=exact": "bits_of exact_matmul",
    "--dp=2 --compress=powersgd:2": "power_sgd_step feed_back",
    "--dp=2 --compress=topk:0.1": "top_k feed_back",
    "--dp=2 --compress=onebit": "one_bit feed_back",
    "--dp=2 --compress=int8": "stochastic_round",
    "--dp=2 --sync=local --local-steps=2": "outer_step due",
    "--dp=2 --sync=server --staleness=1": "may_begin shard_map",  # may_begin on a server alone
    "--dp=4 --node-size=2 --algorithm=hierarchical": "all_reduce_hierarchical",
    "--dp=4 --algorithm=double_tree": "double_tree",
    "--tp=2 --arch=llama --kv-heads=1": "groups_of rms_norm_forward rms_norm_backward rotary_table rotate_forward "
    "rotate_backward silu_gate_forward silu_gate_backward",
    "--cp=2 --cp-kind=balanced --sequence-chunks=4 --text=documents.jsonl --packing=first-fit": "first_fit hidden_keys "
    "any_key_seen permuted deal_chunks",
    "--dp=2 --rebalance --steps=6": "deal",
    "--dp=3 --check-replicas=1": "odd_ones_out",
    "--dp=3 --zero=2 --save=saved --save-every=1 --keep=1": "part_of_runs writers write_durably commit discard",
    "--tp=2 --resume=saved": "overlaps read_part",
    "--tp=2 --init-from=hf": "read_slice",
}


@pytest.mark.long
def test_functions_are_called_by_the_runs_of_their_chapters(tmp_path, capsys, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[1] / "verify" / "documents.jsonl", tmp_path)
    for flags, names in CALLED.items():
        if "init-from" in flags:
            assert main(["checkpoint", "saved", "--export", "hf", "hf", "--json=-"]) == 0 and capsys.readouterr()
        assert train("solutions", *flags.split(), "--json=-") == 0
        calls = calls_in(capsys.readouterr().out)
        assert [name for name in names.split() if not calls[name]] == [], flags
        assert "ring" not in flags or [calls[name] for name in names.split()] == [3, 3, 3]  # one bucket per step
    # in the parent, before any rank starts: the command checks a checkpoint
    mine = folder("missing_elements", old="return size - covered", new="return size - covered + 7")
    assert train(mine, "--resume", "saved") == 2
    assert "no file has 7 of the" in capsys.readouterr().err
    # and after they have ended: the clock of a cluster plays the run again, and shares links
    seconds = []
    for slower in ("shares[fullest]", "shares[fullest] / 1000"):
        mine = folder("fair_rates", old="rates[message] = shares[fullest]", new=f"rates[message] = {slower}")
        assert train(mine, "--dp=2", "--as-if=h100:2x1", "--json=-") == 0
        seconds.append(json.loads(capsys.readouterr().out)["as_if"]["seconds_per_step"])
    assert seconds[1] > 10 * seconds[0]


def test_the_library_fills_in_for_stubs_and_what_was_called_is_listed_after_the_verdict(folder, capsys):
    """all_reduce_ring is solved, but not what it calls; with the naive algorithm nobody calls the rings."""
    assert verify(folder("all_reduce_ring", "adamw_update"), "dp=4,algorithm=ring") == 0
    shown = capsys.readouterr().out
    assert shown.count("yours") == 2 and "still a stub" in " ".join(shown.split())
    assert verify(folder("all_reduce_ring", "adamw_update"), "dp=2,algorithm=naive") == 0
    verdict, _, listed = capsys.readouterr().out.partition("bit for bit")
    assert "adamw_update" not in verdict and "adamw_update" in listed and "all_reduce_naive" in listed
    assert "all_reduce_ring" not in listed and "check_schedule" not in listed
    assert listed.index("adamw_update") < listed.index("all_reduce_naive")  # the learner's own first


@pytest.mark.parametrize(
    ("solved", "old", "new", "command", "words"),
    [
        (["all_gather_ring"], "range(size - 1)", "range(size - 2)", "verify dp=3,algorithm=ring",
         ["NO", "first differs after step 0", "dp=3,algorithm=ring calls, where the cause may be: all_gather_ring."]),
        (["all_reduce_ring"], "    chunks = chunks_of(flat, group.size)", "    chunks = 1 / 0",
         "train --dp=2 --algorithm=ring", ["ZeroDivisionError", 'ch03_collectives.py", line {line}']),
        # AdamW with a rounding of its own changes the bits of every layout: no ring is to blame, and it is said once
        long(["adamw_update", "all_gather_ring"], "data -=", "data *= np.float32(1 + 2**-20)\n    data -=",
             "verify dp=2,algorithm=ring dp=3,algorithm=ring",
             ["dp=2,algorithm=ring dp=3,algorithm=ring", "that all of them call: adamw_update, all_gather_ring."]),
    ],
)  # fmt: skip
def test_a_bug_in_an_answer_is_found(solved, old, new, command, words, folder, capsys):
    place = folder(*solved, old=old, new=new)
    lines = (place / "ch03_collectives.py").read_text().splitlines()
    name, *arguments = command.split()
    assert main([name, "--impl", str(place), *SMALL, *arguments]) == (1 if name == "verify" else 2)
    shown = " ".join("".join(capsys.readouterr()).split())
    line = lines.index(new) + 1 if new in lines else 0
    assert all(word.format(line=line) in shown for word in words) and shown.count("first differs") <= 1, shown


@pytest.mark.long
def test_the_reference_runs_without_overrides_and_none_outlives_its_run(ranks):
    config = TrainConfig(layers=1, heads=2, width=16, context=8, global_batch=8, micro_batch=1, steps=2)
    function = training_on(implementations_of("solutions"))
    one, two = verify_layouts([Layout(2)], config, rank_function=function)
    assert one.ranks[0].override_calls == {} and two.ranks[0].override_calls["adamw_update"] > 0
    assert run(ranks(2), config, Layout(2), rank_function=function).ranks[0].override_calls["adamw_update"] > 0
    assert run(ranks(2), config, Layout(2)).ranks[0].override_calls == {}  # the same ranks, afterwards


def test_train_compares_with_the_library(folder, capsys):
    """Same bits, or the first difference: here a ring that forgets its last step."""
    assert train(folder("all_reduce_ring", "adamw_update"), "--dp=3", "--algorithm=ring") == 0
    shown = capsys.readouterr().out
    assert "2 of the 9 functions" in shown and "verdict: same bits as the library in dp=3,algorithm=ring" in shown
    mine = folder("all_gather_ring", old="range(size - 1)", new="range(size - 2)")
    assert train(mine, "--dp=3", "--algorithm=ring", "--json=-") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["same_as_library"] is False
    assert "the bits differ from the library's" in printed.err and "first differs after step 0" in printed.err


def test_an_override_is_looked_up_at_each_call_and_a_name_is_taken_once():
    @overrides.overridable
    def double(x):
        return 2 * x

    try:
        overrides.override({"double": lambda x: 3 * x})
        assert double(1) == 3 and overrides.calls["double"] == 1
        overrides.override({})
        assert double(1) == 2
    finally:
        del overrides.OVERRIDABLE["double"]

    def all_reduce_ring():
        pass

    with pytest.raises(ValueError, match=r"test_implementations\.all_reduce_ring and minidist\.comm\.algorithms"):
        overrides.overridable(all_reduce_ring)  # an override would replace both
