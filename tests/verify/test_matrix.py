"""The whole matrix, small: every pair of settings in some run, each on the bits of one process in its precision."""

import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from unittest import mock

import numpy as np
import pytest

from minidist.analysis.pairs import triangle
from minidist.cli import main as cli
from minidist.comm import Deadlock, RankFailed
from minidist.nn.memory.recompute import MODES
from minidist.nn.precision.loss_scaling import GradScaler
from minidist.nn.precision.policy import POLICIES
from minidist.parallel.context import KINDS
from minidist.show.figures import grid
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees, first_difference
from minidist.verify.matrix import (
    KEYS,
    Combination,
    Outcome,
    covering,
    covering_set,
    every_combination,
    pairs_of,
    run_all,
)

SMALL = TrainConfig(
    layers=4, heads=2, width=8, context=12, global_batch=4, micro_batch=1, steps=2, warmup=1, lr=1e-2, clip=0.5,
    dropout=0.1,
)  # fmt: skip
TILES = {"attention": "tiled", "attention_tile": 5}
CHUNKS = {"context": 24, "sequence_chunks": 4}
EXPERTS = {"experts": 4, "expert_hidden": 16, "top_k": 2, "aux_loss": 0.01, "bias_rate": 0.01}
ODD = replace(SMALL, layers=3, heads=3, width=15, context=9, global_batch=12, micro_batch=2, steps=2, dropout=0.0)
SMALL_ONES = (
    SMALL, *(replace(SMALL, layers=2, **settings) for settings in (TILES, CHUNKS, EXPERTS)), ODD,
)  # fmt: skip

WIDE = replace(SMALL, heads=4, width=16)  # more heads to split
LAMB = [replace(config, optimizer="lamb") for config in (SMALL_ONES[3], SMALL_ONES[2])]
SGD = [replace(config, optimizer="sgd") for config in (SMALL_ONES[3], SMALL_ONES[2])]
TILED, CHUNKED, SPARSE = (replace(WIDE, **settings) for settings in (TILES, CHUNKS, EXPERTS))


def chosen(config: TrainConfig, max_ranks: int) -> list[Combination]:
    return covering_set(every_combination(config, max_ranks))


@pytest.fixture(scope="module")
def one_process(ranks):
    """``one_process(config)`` is the run on one process, the same one in every test."""
    return cache(lambda config: run(ranks(1), config, Layout(), RunOptions(step_digests=True)))


@pytest.mark.parametrize(
    ("config", "max_ranks", "count"),  # the first of a covering set have the most pairs
    [
        pytest.param(SMALL, 4, 3, id="a few on 4 ranks"),
        pytest.param(SMALL_ONES[1], 4, 1, id="one with tiled attention"),
        pytest.param(SMALL_ONES[2], 4, 1, id="one with context parallelism"),
        pytest.param(SMALL_ONES[3], 4, 1, id="one with experts"),
        pytest.param(TILED, 4, None, marks=pytest.mark.long, id="all on 4 ranks with tiled attention"),
        pytest.param(CHUNKED, 4, None, marks=pytest.mark.long, id="all on 4 ranks with context parallelism"),
        pytest.param(SPARSE, 4, None, marks=pytest.mark.long, id="all on 4 ranks, with and without experts"),
        pytest.param(ODD, 3, None, marks=pytest.mark.long, id="all on 3 ranks"),
        pytest.param(LAMB[0], 4, 1, id="one with LAMB"),
        pytest.param(LAMB[0], 4, None, marks=pytest.mark.long, id="all on 4 ranks with LAMB, with and without experts"),
        pytest.param(LAMB[1], 4, 12, marks=pytest.mark.long, id="twelve with LAMB and context parallelism"),
        pytest.param(SGD[0], 4, 1, id="one with SGD"),
        pytest.param(SGD[0], 4, None, marks=pytest.mark.long, id="all on 4 ranks with SGD, with and without experts"),
        pytest.param(SGD[1], 4, 12, marks=pytest.mark.long, id="twelve with SGD and context parallelism"),
    ],
)
def test_every_pair_of_settings_keeps_the_bits(ranks, one_process, config, max_ranks, count):
    for combination in chosen(config, max_ranks)[:count]:
        size = combination.layout.world_size
        own = combination.config(config)
        assert agrees(one_process(own), run(ranks(size), own, combination.layout)), combination


@pytest.mark.long
def test_each_precision_has_bits_of_its_own(one_process):
    configs = [replace(config, precision=precision) for config in SMALL_ONES for precision in POLICIES]
    assert len({one_process(config).fingerprint for config in configs}) == 5 * len(POLICIES)


def test_losses_of_16_bits_stay_near(one_process):
    for precision in ("bf16", "fp16", "fp8"):
        losses = np.array([one_process(replace(ODD, precision=name)).losses for name in ("fp32", precision)])
        # three steps: what rounding to 8 bits of mantissa, or 4 in fp8's products, does to a loss of 5.5; a wrong
        # format or a missing scale is off by tenths
        assert np.abs(losses[0] - losses[1]).max() < 0.02, precision


# The combinations


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(WIDE, id="one chunk"),
        pytest.param(CHUNKED, id="four chunks"),
        pytest.param(SPARSE, id="experts"),
    ],
)
def test_every_legal_combination_is_found(config):
    values = {
        "precision": POLICIES, "dp": range(1, 6), "zero": range(4), "shard": (0, 2), "tp": range(1, 6), "sp": (0, 1),
        "ep": (1, 2, 3, 4) if config.experts else (1,),
        "cp": (1, 1, 2, 3, 4), "cp_kind": KINDS, "pp": range(1, 6),
        "schedule": ("naive", "gpipe", "1f1b", "interleaved", "zb-h1"), "virtual": (1, 2), "recompute": MODES,
    }  # fmt: skip
    draws = random.Random(0)
    found = {(c.precision, c.layout) for c in every_combination(config, 5) if c.experts != 0}
    legal = Counter()
    for _ in range(100_000):
        row = {key: draws.choice(list(value)) for key, value in values.items()}
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
    everything = every_combination(config, 5)
    dense = [c.layout for c in everything if c.experts == 0 and not c.layout.servers]  # servers have no experts
    assert len(found) == sum(c.experts != 0 for c in everything)
    assert len(dense) == (sum(layout.ep == 1 for _, layout in found) if config is SPARSE else 0)


def test_a_covering_set_has_every_pair():
    everything = every_combination(WIDE, 4)
    rows = [combination.settings for combination in everything]
    places = covering(rows)
    possible = set().union(*map(pairs_of, rows))
    assert set().union(*(pairs_of(rows[i]) for i in places)) == possible
    assert len(set(places)) == len(places) < len(rows) / 10
    gains, met = [], set()
    for place in places:
        gains.append(len(pairs_of(rows[place]) - met))
        met |= pairs_of(rows[place])
    assert gains == sorted(gains, reverse=True) and gains[-1] > 0  # greedy: none is for nothing


@pytest.mark.parametrize("sizes", [(1,), (2, 3), (3, 4, 2), (2,) * 6])
def test_covering_sets_of_full_products(sizes):
    rows = [dict(enumerate(row)) for row in itertools.product(*map(range, sizes))]
    places = covering(rows)
    largest, second = sorted((1, *sizes))[-2:]
    if len(sizes) > 1:
        assert second * largest <= len(places) <= 2 * second * largest
    else:
        assert places == []  # nothing to meet


def test_settings_without_a_meaning_meet_nothing():
    settings = Combination("bf16", Layout()).settings
    assert set(settings) == set(KEYS)
    nothing = {key for key, value in settings.items() if value is None}
    assert nothing == {"experts", "ep", "zero", "shard", "sp", "cp", "cp_kind", "schedule", "virtual", "node_size"} | {
        "sync",
        "compress",
    }


# The command and its picture


@pytest.mark.long
def test_verify_matrix(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("m.json", "m.png")]
    sizes = ["--layers=2", "--heads=2", "--width=8", "--context=8", "--global-batch=2", "--micro-batch=1", "--steps=1"]
    assert cli.main(["verify", "--matrix", "--max-ranks=2", *sizes, "--json", paths[0], "--png", paths[1]]) == 0
    out = " ".join(capsys.readouterr().out.split())
    result = json.loads((tmp_path / "m.json").read_text())
    config = TrainConfig(layers=2, heads=2, width=8, context=8, global_batch=2, micro_batch=1, steps=1)
    legal = every_combination(replace(config, sequence_chunks=4, experts=4), 2)
    assert result["all_same"] and result["legal"] == len(legal)
    assert f"{len(legal):,} combinations of settings are legal on up to 2 ranks. Running" in out
    assert f"which cover all {result['pairs']} legal pairs of settings" in out
    assert f" of the {len(legal):,} legal combinations on up to 2 ranks: each matches the single-process run" in out
    assert {run["settings"]["precision"] for run in result["runs"]} == set(POLICIES)
    assert all(run["same"] and run["memory"] > 0 and run["seconds"] > 0 for run in result["runs"])
    assert (tmp_path / "m.png").stat().st_size > 20_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dp=2"], "--matrix chooses the layouts itself"),
        (["--impl", "solutions"], "--matrix chooses the layouts itself"),
        (["--interrupt"], "remove layouts, --all, --impl and --interrupt"),
        (["--precision", "bf16"], "--matrix runs every precision"),
        (["--loss-scale", "8", "--precision", "fp16"], "remove --precision and --loss-scale"),
        (["--max-ranks", "0"], "--max-ranks must be from 1 to 64, got 0"),
        (["--max-ranks", "3000"], "--max-ranks must be from 1 to 64, got 3000"),
        (["--layers", "0"], "layers must be a whole number of at least 1, not 0"),
    ],
)
def test_what_matrix_refuses(arguments, message, capsys):
    assert cli.main(["verify", "--matrix", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--png", "x.png"], ["--max-ranks", "4"]])
def test_flags_that_need_the_matrix(flag, capsys):
    assert cli.main(["verify", "dp=2", *flag]) == 2
    assert "add --matrix" in capsys.readouterr().err


@pytest.mark.usefixtures("readable_figures")
def test_the_grid_shows_where_bits_differ():
    layouts = ["dp=2", "dp=2,recompute=full", "tp=2,recompute=full", "tp=2"]
    outcomes = [
        Outcome(Combination("fp32", Layout.parse(text)), text != "tp=2,recompute=full", 0.1, 10, 5) for text in layouts
    ]
    values, rows = triangle(outcomes)
    cell = {frozenset((values[y], values[x])): rows[y][x] for y in range(len(values)) for x in range(y)}
    assert cell[frozenset((("tp", 2), ("recompute", "full")))] == "different"
    assert cell[frozenset((("tp", 2), ("recompute", "none")))] == "same"
    assert cell[frozenset((("dp", 2), ("recompute", "full")))] == "same"
    assert cell[frozenset((("dp", 2), ("tp", 2)))] == "impossible"
    assert grid.as_text(outcomes).splitlines()[-2].split() == ["recompute=full", *"XX+++XXX."]
    assert grid.as_text(outcomes).splitlines()[-1].split() == ["node_size=0", *"XX+++XXX+X"]
    figure = grid.draw(outcomes, "title")
    whole, seconds, *_ = figure.axes
    assert [label.get_text() for label in whole.get_yticklabels()] == [f"{key}={value}" for key, value in values]
    assert [bar.get_width() for bar in seconds.patches] == [0.1] * 4


def seed_by_rank_count(world, config, layout, options):
    """A fault of layouts with two data-parallel ranks."""
    return train_rank(world, replace(config, seed=config.seed + (layout.dp == 2)), layout, options)


TINY = replace(SMALL, layers=1, heads=2, width=4, context=4, global_batch=2, steps=1)
FEW = [Combination("fp32", Layout.parse(text)) for text in ("dp=2", "recompute=full")]


def test_run_all_tells_what_it_cost_and_where_the_bits_differ():
    outcomes = list(run_all(FEW, TINY, rank_function=seed_by_rank_count))
    assert [str(outcome.combination.layout) for outcome, *_ in outcomes] == ["dp=1", "recompute=full", "dp=2"]
    assert [outcome.same for outcome, *_ in outcomes] == [True, True, False]
    for outcome, result, reference in outcomes:
        assert reference.layout == Layout()
        assert outcome.memory == max(rank.memory["peak"] for rank in result.ranks)
        assert outcome.traffic == max(rank.traffic.as_dict()["bytes_sent"] for rank in result.ranks)
        assert outcome.seconds == max(rank.seconds for rank in result.ranks)
    assert outcomes[-1][0].traffic > 0


def test_the_command_says_so(monkeypatch, capsys, tmp_path):
    from minidist.cli import verify_matrix as command

    monkeypatch.setattr(command, "every_combination", lambda config, most: FEW)
    monkeypatch.setattr(command, "covering_set", lambda everything: everything[:2])
    monkeypatch.setattr(command, "run_all", partial(run_all, rank_function=seed_by_rank_count))
    path = str(tmp_path / "m.json")
    sizes = ["--layers=1", "--heads=2", "--width=4", "--context=4", "--global-batch=2", "--micro-batch=1", "--steps=1"]
    assert cli.main(["verify", "--matrix", *sizes, "--json", path]) == 1
    assert "NO" in capsys.readouterr().out
    result = json.loads((tmp_path / "m.json").read_text())
    assert not result["all_same"] and [run["same"] for run in result["runs"]] == [True, True, False]


# Planted faults


def rounding_cut_off(world, config, layout, options):
    """Truncation in place of rounding."""

    def truncated(values):
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    with mock.patch("minidist.nn.precision.formats.bfloat16_bits", truncated):
        return train_rank(world, config, layout, options)


def no_master_weights(world, config, layout, options):
    """The optimizer trains what the model computes with, so that small updates vanish."""
    from minidist.nn.precision.master_weights import MasterWeights

    sync_params = MasterWeights.sync_params

    def rounded(self):
        sync_params(self)
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.data[...] = parameter.data

    with mock.patch.object(MasterWeights, "sync_params", rounded):
        return train_rank(world, config, layout, options)


def dropout_redrawn(world, config, layout, options):
    """Recomputed blocks get new random numbers."""
    from minidist import flops
    from minidist.nn.random import DropoutRNG

    by_name = DropoutRNG.generator

    def generator(self, layer, place, *block):
        return by_name(self, layer, place + (" again" if flops._phase == "recompute" else ""), *block)

    with mock.patch.object(DropoutRNG, "generator", generator):
        return train_rank(world, config, layout, options)


def scale_not_taken_out(world, config, layout, options):
    from minidist.nn.precision.loss_scaling import GradScaler

    with mock.patch.object(GradScaler, "unscale", lambda *arguments: False):
        return train_rank(world, config, layout, options)


@pytest.mark.parametrize(
    ("fault", "precision", "text"),
    [
        (rounding_cut_off, "bf16", "dp=2"),
        (no_master_weights, "bf16", "dp=2"),
        (dropout_redrawn, "fp32", "recompute=full"),
        (dropout_redrawn, "fp32", "recompute=selective"),
        (scale_not_taken_out, "fp16", "dp=2"),
    ],
)
def test_verify_finds(ranks, one_process, fault, precision, text):
    config, layout, options = replace(SMALL, precision=precision), Layout.parse(text), RunOptions(step_digests=True)
    reference = one_process(config)
    found = run(ranks(layout.world_size), config, layout, options, rank_function=fault)
    assert not agrees(reference, found)
    assert first_difference(reference, found, rank_function=fault) is not None
    assert agrees(reference, run(ranks(layout.world_size), config, layout, options))  # the fault is gone, not hidden


def vanished(config: TrainConfig, ranks, rank_function) -> float:
    """The share of the weights that one small step leaves as they were."""
    arrays = [
        run(ranks(1), replace(config, lr=lr), Layout(), RunOptions(stop_after=0), rank_function=rank_function)
        .ranks[0]
        .arrays
        for lr in (1e-30, 1e-5)
    ]
    weights = [name for name in arrays[0] if name.endswith("weight") and not name.startswith("exp_avg")]
    same = sum(int((arrays[0][name] == arrays[1][name]).sum()) for name in weights)
    return same / sum(arrays[0][name].size for name in weights)


def test_updates_vanish_without_master_weights(ranks):
    config = replace(SMALL, precision="bf16", warmup=0, weight_decay=0.0)
    # not all move in float32 either: rows of bytes that the batch has not
    assert vanished(config, ranks, no_master_weights) > vanished(config, ranks, None) + 0.3


def one_overflow(world, config, layout, options):
    """No fault: in the second step one gradient overflows, of a parameter that rank 0 alone holds in these layouts."""
    unscale, steps = GradScaler.unscale, []

    def overflowing(self, parameters, all_max):
        steps.append(None)
        if len(steps) == 2 and world.rank == 0:
            (bias,) = [parameter for parameter in parameters if parameter.name == "blocks.0.attention.qkv.bias"]
            bias.grad.reshape(-1)[0] = np.inf
        return unscale(self, parameters, all_max)

    with mock.patch.object(GradScaler, "unscale", overflowing):
        return train_rank(world, config, layout, options)


def overflow_not_agreed(world, config, layout, options):
    """Every rank looks at its own gradients alone."""
    unscale = GradScaler.unscale
    with mock.patch.object(GradScaler, "unscale", lambda self, parameters, all_max: unscale(self, parameters)):
        return one_overflow(world, config, layout, options)


@pytest.mark.parametrize(
    "text",
    [
        "dp=2,zero=1",
        *(pytest.param(text, marks=pytest.mark.long) for text in ("tp=2", "pp=2", "dp=2,zero=3,recompute=full")),
    ],
)
def test_an_overflow_that_one_rank_sees_is_agreed_by_all(ranks, text):
    config, layout = replace(SMALL, precision="fp16"), Layout.parse(text)
    one = run(ranks(1), config, Layout(), rank_function=one_overflow)
    assert (one.ranks[0].skipped_steps, one.ranks[0].loss_scale) == (1, 2.0**15)
    found = run(ranks(layout.world_size), config, layout, rank_function=one_overflow)
    assert agrees(one, found)
    assert {(rank.skipped_steps, rank.loss_scale) for rank in found.ranks} == {(1, 2.0**15)}
    with pytest.raises(
        (RankFailed, Deadlock), match=r"disagree|wait"
    ):  # one rank has gone on to the norm, the other to the next step
        run(ranks(layout.world_size), config, layout, rank_function=overflow_not_agreed)


# A scale that is chosen by hand


@pytest.mark.parametrize("scale", [3.0, -2.0, 2.0**200, 2.0**-200, float("inf"), float("nan")])
def test_unusable_scales(scale):
    with pytest.raises(ValueError, match=r"loss_scale must be a power of two from 2\^-24 to 2\^64"):
        TrainConfig(precision="fp16", loss_scale=scale)


def test_a_scale_is_for_fp16():
    with pytest.raises(ValueError, match="loss_scale 8 is for precision fp16; bf16 needs none"):
        TrainConfig(precision="bf16", loss_scale=8.0)


def test_a_scale_chosen_by_hand_stays(ranks):
    config = replace(SMALL, precision="fp16", loss_scale=2.0**40)
    (rank,) = run(ranks(1), config, Layout()).ranks
    assert (rank.loss_scale, rank.skipped_steps) == (2.0**40, config.steps)  # far too large


def test_a_run_that_diverges_says_so(ranks):
    with pytest.raises(RankFailed, match=r"training diverged in step \d+: the loss is"):
        run(ranks(1), replace(SMALL, precision="fp16", lr=1e6, clip=1e9, steps=20), Layout())


@pytest.mark.long
def test_the_command_tells_the_scale(capsys):
    sizes = ["--layers=1", "--heads=2", "--width=4", "--context=4", "--global-batch=2", "--micro-batch=1", "--steps=2"]
    assert cli.main(["train", "--precision", "fp16", "--loss-scale", str(2.0**40), "--tables", *sizes]) == 0
    out = capsys.readouterr().out
    assert "loss scale: 1.09951e+12 at the end, 2 of 2 steps skipped after an overflow" in out
    assert "matrix products of rank 0, one step: " in out and "MFLOP forward" in out
