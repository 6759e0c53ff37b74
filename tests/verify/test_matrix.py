"""The promise: every layout ends on the bits of one process, whatever is set. And ``minidist verify --matrix``."""

import itertools
import json
import random
from collections import Counter
from dataclasses import fields, replace

import pytest
from clusters import PatientCluster
from parallel.faults import one_overflow
from verify.sameness import difference
from verify.settings import HAS_TOKENIZERS, with_every_pair, with_every_value

from minidist.cli import main as cli
from minidist.comm import RankFailed
from minidist.comm.runtime.clusters import WarmClusters
from minidist.nn.precision.policy import POLICIES, PRODUCTS
from minidist.nn.recompute import MODES
from minidist.parallel.context import KINDS
from minidist.show.figures import grid
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees
from minidist.verify.interruption import Interruption, covering_interruptions
from minidist.verify.matrix import KEYS, Combination, Outcome, covering, every_combination, pairs_of, run_all, triangle

SMALL = TrainConfig(
    layers=4, heads=2, width=8, context=12, global_batch=4, micro_batch=1, steps=2, warmup=1, lr=1e-2, clip=0.5,
    dropout=0.1,
)  # fmt: skip
WIDE = replace(SMALL, heads=4, width=16)  # more heads to split
CHUNKED = replace(WIDE, context=24, sequence_chunks=4)
SPARSE = replace(WIDE, experts=4, expert_hidden=16, top_k=2, aux_loss=0.01, bias_rate=0.01)
PARTS = 8
ONE_LAYER = [
    "--layers=1", "--heads=2", "--width=4", "--context=4", "--global-batch=2", "--micro-batch=1", "--steps=1",
]  # fmt: skip

# All settings that may stand together: settings.py draws them


def test_every_value_of_every_setting_keeps_the_bits(ranks, tmp_path):
    cases = with_every_value(3000)
    wrong = {str(case): difference(ranks, case, tmp_path / str(number)) for number, case in enumerate(cases)}
    assert not {case: what for case, what in wrong.items() if what}
    for kind, name in ((Layout, "layout"), (TrainConfig, "config")):  # no setting has been forgotten
        fixed = {"text", "backend", "reduce_dtype"} | ({"tokenizer"} if not HAS_TOKENIZERS else set())
        settings = {field.name for field in fields(kind)} - fixed
        assert {key for key in settings if len({getattr(getattr(case, name), key) for case in cases}) < 2} == set()


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_of_settings_keeps_the_bits(ranks, tmp_path, part):
    cases = with_every_pair(4000)[part::PARTS]
    wrong = {str(case): difference(ranks, case, tmp_path / str(number)) for number, case in enumerate(cases)}
    assert not {case: what for case, what in wrong.items() if what}


@pytest.mark.long
def test_ranks_that_are_threads_keep_the_bits(ranks, tmp_path):
    cases = with_every_value(5000)
    with WarmClusters(lambda size: PatientCluster(size, start_method="thread")) as threads:
        wrong = {str(case): difference(threads, case, tmp_path / str(number)) for number, case in enumerate(cases)}
        assert not {case: what for case, what in wrong.items() if what}
        assert agrees(run(ranks(1), SPARSE, Layout()), run(threads(4), SPARSE, Layout.parse("dp=2,ep=2,tp=2")))


# Precisions


def test_an_overflow_that_one_rank_sees_is_agreed_by_all(ranks):
    """Two of the layouts, without agreement, are in the table of faults."""
    config = replace(SMALL, precision="fp16")
    one = run(ranks(1), config, Layout(), rank_function=one_overflow)
    for text in ("dp=2,zero=1", "tp=2", "pp=2", "dp=2,zero=3,recompute=full"):
        found = run(ranks(2), config, Layout.parse(text), rank_function=one_overflow)
        assert agrees(one, found), text
        assert {(rank.skipped_steps, rank.loss_scale) for rank in one.ranks + found.ranks} == {(1, 2.0**15)}


def test_a_scale_chosen_by_hand_stays_and_a_run_that_diverges_says_so(ranks):
    (rank,) = run(ranks(1), replace(SMALL, precision="fp16", loss_scale=2.0**40), Layout()).ranks
    assert (rank.loss_scale, rank.skipped_steps) == (2.0**40, SMALL.steps)  # far too large
    with pytest.raises(RankFailed, match=r"training diverged in step \d+: the loss is (nan|inf)"):
        run(ranks(1), replace(SMALL, precision="fp16", lr=1e6, clip=1e9, steps=20), Layout())


# The combinations of the command


@pytest.mark.long
def test_every_legal_combination_is_found():
    """Nothing else is: settings drawn at random are judged by the library one by one."""
    values = {
        "precision": POLICIES, "dp": range(1, 6), "zero": range(4), "shard": (0, 2), "tp": range(1, 6), "sp": (0, 1),
        "ep": (1, 2, 3, 4), "cp": (1, 1, 2, 3, 4), "cp_kind": KINDS, "pp": range(1, 6),
        "schedule": ("naive", "gpipe", "1f1b", "interleaved", "zb-h1"), "virtual": (1, 2), "recompute": MODES,
    }  # fmt: skip
    for config in (WIDE, CHUNKED, SPARSE):
        draws, legal = random.Random(0), Counter()
        everything = every_combination(config, 5)
        found = {(c.precision, c.layout) for c in everything if c.experts != 0}
        for _ in range(100_000):
            row = {key: draws.choice(list(value)) for key, value in values.items()}
            row["ep"] = row["ep"] if config.experts else 1
            precision = row.pop("precision")
            if row["cp"] == 1:
                row["cp_kind"] = Layout.cp_kind
            if row["shard"] == row["dp"] * row["cp"]:
                continue  # the same as 0
            try:
                layout = Layout(**row)
                config.check(layout)
            except ValueError:
                continue
            if layout.world_size <= 5:
                legal[layout.cp] += 1
                assert (precision, layout) in found
        assert legal[1] > 50 and (config is not CHUNKED or (legal[2] > 20 and legal[4] > 2))
        assert (config is SPARSE) == any(layout.ep > 1 for _, layout in found)
        for precision, layout in found:
            config.check(layout)
            assert layout.world_size <= 5 and precision in POLICIES
        assert len(found) * len(PRODUCTS) == sum(c.experts != 0 for c in everything)
        assert any(c.layout.servers and not c.experts for c in everything)  # only a dense model has servers


def test_a_covering_set_has_every_pair():
    rows = [combination.settings for combination in every_combination(WIDE, 4)]
    places, met, gains = covering(rows), set(), []
    for place in places:
        gains.append(len(pairs_of(rows[place]) - met))
        met |= pairs_of(rows[place])
    assert met == set().union(*map(pairs_of, rows))
    assert len(set(places)) == len(places) < len(rows) / 10
    assert gains == sorted(gains, reverse=True) and gains[-1] > 0  # greedy: none is for nothing
    for sizes in ((1,), (2, 3), (3, 4, 2), (2,) * 6):  # of full products
        chosen = covering([dict(enumerate(row)) for row in itertools.product(*map(range, sizes))])
        largest, second = sorted((1, *sizes))[-2:]
        least = second * largest if len(sizes) > 1 else 0  # one setting has nothing to meet
        assert least <= len(chosen) <= 2 * least, sizes
    settings = Combination("bf16", Layout()).settings  # those without a meaning meet nothing
    assert set(settings) == set(KEYS)
    nothing = {key for key, value in settings.items() if value is None}
    assert nothing == set(KEYS) - {"precision", "products", "dp", "tp", "pp", "recompute"}


# The command and its picture


def test_the_grid_shows_where_bits_differ():
    outcomes = [
        Outcome(Combination("fp32", Layout.parse(text)), text != "tp=2,recompute=full", 0.1, 10, 5)
        for text in ("dp=2", "dp=2,recompute=full", "tp=2,recompute=full", "tp=2")
    ]
    values, rows = triangle(outcomes)
    cell = {frozenset((values[y], values[x])): rows[y][x] for y in range(len(values)) for x in range(y)}
    assert cell[frozenset((("tp", 2), ("recompute", "full")))] == "different"
    assert cell[frozenset((("tp", 2), ("recompute", "none")))] == "same"
    assert cell[frozenset((("dp", 2), ("recompute", "full")))] == "same"
    assert cell[frozenset((("dp", 2), ("tp", 2)))] == "impossible"
    assert grid.as_text(outcomes).splitlines()[-1].split() == ["node_size=0", *"XXX+++XXX+X"]


def seed_by_rank_count(world, config, layout, options):
    """A fault of layouts with two data-parallel ranks."""
    return train_rank(world, replace(config, seed=config.seed + (layout.dp == 2)), layout, options)


def test_it_tells_what_each_run_cost_and_where_the_bits_differ(monkeypatch, capsys, tmp_path):
    outcomes = []

    def kept(*arguments):
        for outcome in run_all(*arguments, rank_function=seed_by_rank_count):
            outcomes.append(outcome)
            yield outcome

    assert cli.main(["verify", "--matrix", *ONE_LAYER, "--max-ranks=1"]) == 0
    monkeypatch.setattr("minidist.cli.verify_matrix.run_all", kept)
    paths = [tmp_path / name for name in ("m.json", "m.png")]
    sizes = ["--layers=2", "--width=8", "--context=8", "--max-ranks=2"]
    assert cli.main(["verify", "--matrix", *ONE_LAYER, *sizes, f"--json={paths[0]}", f"--png={paths[1]}"]) == 1
    assert "NO" in capsys.readouterr().out and paths[1].stat().st_size > 20_000
    result = json.loads(paths[0].read_text())
    config = TrainConfig(layers=2, heads=2, width=8, context=8, global_batch=2, micro_batch=1, steps=1)
    assert result["legal"] == len(every_combination(replace(config, sequence_chunks=4, experts=4), 2))
    for key, values in (("precision", POLICIES), ("products", PRODUCTS)):
        assert {run["settings"][key] for run in result["runs"]} == set(values)
    same = [outcome.combination.layout.dp != 2 for outcome, *_ in outcomes]
    assert not result["all_same"] and [run["same"] for run in result["runs"]] == same and 0 < sum(same) < len(same)
    for outcome, found, reference in outcomes:
        assert reference.layout == Layout()
        assert outcome.memory == max(rank.memory["peak"] for rank in found.ranks)
        assert outcome.traffic == max(rank.traffic.as_dict()["bytes_sent"] for rank in found.ranks)
        assert outcome.seconds == max(rank.seconds for rank in found.ranks)
    assert max(outcome.traffic for outcome, *_ in outcomes) > 0


# Runs that go on in another layout


def test_interruptions_let_every_two_settings_meet_and_leave_and_enter_every_layout():
    layouts = [Layout(), Layout(dp=2), Layout(tp=2), Layout(recompute="full"), Layout(pp=2), Layout(dp=2, tp=2)]
    for some, steps in ((layouts[:2], 2), (layouts[:4], 2), (layouts[2:4], 9), (layouts, 9)):
        every = [Interruption(a, b, n) for a in some for b in some for n in {1, steps // 2, steps - 1} if a != b]
        chosen = covering_interruptions(some, steps)
        assert set(chosen) <= set(every)
        assert {one.before for one in chosen} == {one.after for one in chosen} == set(some)
        met, all_of_them = (set().union(*(pairs_of(one.settings) for one in several)) for several in (chosen, every))
        assert met == all_of_them


def test_it_tells_which_interrupted_runs_end_on_other_bits(monkeypatch, capsys, tmp_path):
    results, path = [], tmp_path / "runs.json"

    def broken(cluster, config, layout, options=None):
        """Runs that go on in two data-parallel ranks have a fault."""
        fault = seed_by_rank_count if options and options.resume else None
        results.append(run(cluster, config, layout, options or RunOptions(), rank_function=fault))
        return results[-1]

    for how, layouts, expected in ((run, ["tp=2", "dp=2"], 0), (broken, ["tp=2", "dp=2", "recompute=full"], 1)):
        monkeypatch.setattr("minidist.verify.interruption.run", how)
        assert cli.main(["verify", "--interrupt", *ONE_LAYER, "--steps=3", f"--json={path}", *layouts]) == expected
        shown, told = capsys.readouterr().out, json.loads(path.read_text())
        rows = [(one["before"], one["after"], one["step"]) for one in told["runs"]]
        interruptions = covering_interruptions([*map(Layout.parse, layouts)], 3)
        assert Counter(rows) == Counter((str(one.before), str(one.after), one.step) for one in interruptions)
        same = [how is run or after != "dp=2" for _, after, _ in rows]
        assert [one["same"] for one in told["runs"]] == same and told["all_same"] == all(same)
        assert shown.count("  yes") == sum(same) and shown.count("  NO") == same.count(False)
        assert shown.count(told["fingerprint"][:8]) == 1 + sum(same) + all(same)
    assert f"{same.count(False)} of {len(rows)} interrupted runs end on other bits" in shown
    whole, *later = [one for one in results if len(one.losses) == 3]
    assert (whole.layout, whole.steps_here) == (Layout(), 3)
    assert [(str(one.layout), 3 - one.steps_here) for one in later] == [row[1:] for row in rows]
