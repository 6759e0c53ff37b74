"""Runs whose ranks die go on, in what is left, and end on the fingerprint of the run that was never interrupted."""

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from clusters import RUN_SECONDS, PatientCluster
from multiprocess import active_children

import minidist as md
from minidist.cli.main import main as command_line
from minidist.train.checkpoint.commit import committed
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.folder import own_folder
from minidist.train.checkpoint.peers import PeerCopies
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import Elasticity, run_elastic
from minidist.train.resilience.faults import Fault
from minidist.train.resilience.interruption import kind_of
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank

STEPS = 7
CONFIG = TrainConfig(
    layers=1, heads=2, width=16, context=8, global_batch=12, micro_batch=2, steps=STEPS, warmup=2, dropout=0.2, seed=3
)
references = {}
long = pytest.mark.long


@pytest.fixture(autouse=True)
def nothing_is_left(ranks):
    """No process and no shared memory of an attempt outlives it. (``ranks`` loads what ranks import.)"""
    for size in (1, 2, 3):
        ranks(size).run(lambda world: None)  # the tests' own, which stay
    before = len(active_children()), segments()
    yield
    assert (len(active_children()), segments()) == before


def segments() -> set[str]:
    where = Path("/dev/shm")
    return {path.name for path in where.glob(f"minidist-{os.getpid()}-*")} if where.is_dir() else set()


def reference(ranks, config=CONFIG):
    """The fingerprint of the run on one rank that nothing interrupts."""
    if config not in references:
        references[config] = run(ranks(1), config, Layout()).fingerprint
    return references[config]


def elastic(folder, layout, *faults, config=CONFIG, every=2, rank_function=None, **how):
    options = RunOptions(saving=Saving(str(folder), every), faults=tuple(map(Fault.parse, faults)))
    how = Elasticity(**{"patience": RUN_SECONDS} | how)
    return run_elastic(
        config, Layout.parse(layout), options, how, start=PatientCluster, rank_function=rank_function
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "step", "resumed"),
    [
        ("kill", 0, 0),
        ("raise", 1, 0),
        ("kill", 3, 2),
        ("raise", 6, 6),
        *(pytest.param(*one, marks=long) for one in (("raise", 0, 0), ("kill", 1, 0), ("raise", 3, 2), ("kill", 6, 6))),
    ],
)
def test_a_rank_that_dies_in_any_step(ranks, tmp_path, kind, step, resumed):
    """Before the first checkpoint, between two, in the last step."""
    result, [interruption] = elastic(tmp_path, "dp=3", f"rank=1,step={step},kind={kind}", every=2)
    assert result.fingerprint == reference(ranks) and len(result.losses) == STEPS
    assert (interruption.step, interruption.ranks) == (step, (1,))
    assert interruption.resumed <= resumed  # a save behind training may not have been committed yet
    assert result.layout == interruption.after == Layout(dp=2)
    assert interruption.why.startswith("rank 1 of 3 " + {"kill": "was killed", "raise": "failed: OrderedFault"}[kind])
    assert min(interruption.detect, interruption.restart, interruption.recompute) >= 0 < interruption.restart


@pytest.mark.long
@pytest.mark.parametrize("step", [pytest.param(0, marks=long), 3, pytest.param(6, marks=long)])
def test_a_rank_that_hangs_is_found_by_its_silence(ranks, tmp_path, step):
    result, [interruption] = elastic(tmp_path, "dp=3", f"rank=2,step={step},kind=hang", patience=2.0)
    assert result.fingerprint == reference(ranks)
    assert (interruption.step, interruption.ranks) == (step, (2,)) and result.layout == Layout(dp=2)
    assert interruption.why.startswith("rank 2 hangs: it waits for no other, and no rank has reported anything for 2 s")
    assert interruption.detect >= 2.0


def test_the_folder_is_claimed_from_the_first_attempt_to_the_last(tmp_path):
    """Else another run gets in while this one goes back, and its checkpoints are removed as newer ones."""
    refused = []

    def on_interruption(_):
        with pytest.raises(ValueError, match="another run is saving in"), own_folder(str(tmp_path), None):
            pass
        refused.append(True)

    options = RunOptions(saving=Saving(str(tmp_path), 1, mode="sync"), faults=(Fault.parse("rank=0,step=4,kind=kill"),))
    run_elastic(CONFIG, Layout(dp=2), options, start=PatientCluster, on_interruption=on_interruption)
    assert refused


def test_a_file_system_without_locks_is_no_reason_to_stop(ranks, tmp_path, monkeypatch):
    """As some NFS: "[Errno 37] No locks available"."""

    def flock(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    notes = []
    options = RunOptions(saving=Saving(str(tmp_path), 10))
    run(ranks(1), CONFIG, Layout(), options, on_event=lambda rank, event: notes.append(event))
    assert ("note", f"{tmp_path} cannot be claimed (No locks available): let no other run save there") in notes
    assert len(committed(Disk(), tmp_path)) == 1


def test_what_was_saved_synchronously_is_not_computed_again(ranks, tmp_path):
    options = RunOptions(saving=Saving(str(tmp_path), 1, mode="sync"), faults=(Fault.parse("rank=0,step=4,kind=kill"),))
    seen = []
    result, [interruption] = run_elastic(
        CONFIG, Layout(dp=2), options, start=PatientCluster, on_step=lambda step, loss: seen.append(step)
    )
    assert interruption.resumed == 4 and Path(interruption.source).name == "step-000004"
    assert seen == list(range(STEPS)) and interruption.recompute == 0.0
    assert result.fingerprint == reference(ranks) and result.steps_here == 3


@pytest.mark.long
def test_one_failure_after_another_until_one_rank_works_alone(ranks, tmp_path):
    result, interruptions = elastic(
        tmp_path, "dp=4,algorithm=ring,zero=1", "rank=3,step=2,kind=kill", "rank=0,step=3,kind=raise",
        "rank=1,step=5,kind=kill",
    )  # fmt: skip
    assert result.fingerprint == reference(ranks)
    assert [str(it.after) for it in interruptions] == [
        "dp=3,algorithm=ring,zero=1", "dp=2,algorithm=ring,zero=1", "algorithm=ring"
    ]  # fmt: skip
    assert [it.before for it in interruptions[1:]] == [it.after for it in interruptions[:-1]]


def test_two_ranks_die_in_one_step(ranks, tmp_path):
    """The second may die before or after the first failure is told: then it dies of the next attempt."""
    result, interruptions = elastic(tmp_path, "dp=5", "rank=1,step=3,kind=kill", "rank=4,step=3,kind=kill")
    assert result.fingerprint == reference(ranks)
    assert sum(len(it.ranks) for it in interruptions) in (1, 2)
    assert result.layout.world_size in (3, 4)


def test_nobody_is_left(tmp_path):
    with pytest.raises(RuntimeError, match=r"^rank 0 of 1 was killed by SIGKILL.*, and no rank is left to go on with$"):
        elastic(tmp_path, "dp=1", "rank=0,step=3,kind=kill")


@pytest.mark.long
def test_restart_keeps_the_layout(ranks, tmp_path):
    result, interruptions = elastic(
        tmp_path, "dp=3", "rank=1,step=2,kind=kill", "rank=1,step=5,kind=raise", on_failure="restart"
    )
    assert result.fingerprint == reference(ranks) and result.layout == Layout(dp=3)
    assert [it.after for it in interruptions] == [Layout(dp=3)] * 2


EXPERTS = {"experts": 4, "expert_hidden": 8, "bias_rate": 0.01}


@pytest.mark.parametrize(
    ("layout", "after", "settings"),
    [
        ("zero=3,dp=3", "dp=2,zero=3", {}),
        pytest.param("dp=4,ep=2", "dp=3", EXPERTS, marks=pytest.mark.long),
        pytest.param("dp=4,ep=4,zero=2", "dp=3,zero=2", EXPERTS, marks=pytest.mark.long),
        ("pp=2,dp=2,schedule=gpipe", "dp=3", {"layers": 2}),
        pytest.param("tp=2,cp=2,sp=1", "dp=3", {"sequence_chunks": 2}, marks=pytest.mark.long),
    ],
)
def test_every_axis_shrinks(ranks, tmp_path, layout, after, settings):
    config = replace(CONFIG, **settings)
    result, _ = elastic(tmp_path, layout, "rank=1,step=4,kind=kill", config=config)
    assert result.fingerprint == reference(ranks, config)
    assert str(result.layout) == after


@pytest.mark.long
def test_a_loss_scale_that_moves_goes_on_where_it_was(ranks, tmp_path):
    """At a high learning rate the gradients overflow once, and the scale is halved."""
    config = replace(CONFIG, precision="fp16", steps=12, lr=0.1)
    result, [interruption] = elastic(tmp_path, "dp=3", "rank=1,step=9,kind=kill", config=config, every=1)
    untouched = run(ranks(1), config, Layout())
    assert result.fingerprint == untouched.fingerprint and interruption.resumed > 0
    first = result.ranks[0]
    assert first.skipped_steps == untouched.ranks[0].skipped_steps > 0
    assert first.loss_scale == untouched.ranks[0].loss_scale


def fails_in(step, error):
    """A rank function with a bug: every rank raises in this step, whatever its machine."""

    def rank_function(world, config, layout, options):
        from minidist.train import share, trainer

        whole = share.train_step
        taken = [0]

        def train_step(*arguments):
            if taken[0] + (int(options.resume[-6:]) if options.resume else 0) == step:
                raise error
            taken[0] += 1
            return whole(*arguments)

        share.train_step = train_step
        return trainer.train_rank(world, config, layout, options)

    return rank_function


def test_an_error_that_comes_again_is_no_machines_fault(tmp_path):
    seen = []
    options = RunOptions(saving=Saving(str(tmp_path), 2))
    with pytest.raises(md.RankFailed, match="KeyError: 'bug'"):
        run_elastic(
            CONFIG, Layout(dp=4), options, rank_function=fails_in(3, KeyError("bug")), start=PatientCluster,
            on_interruption=seen.append,
        )  # fmt: skip
    assert [it.step for it in seen] == [3]  # once, it might have been


@pytest.mark.parametrize("error", [FloatingPointError("diverged"), MemoryError("none"), ValueError("no")])
def test_errors_that_no_new_start_cures(tmp_path, error):
    seen = []
    options = RunOptions(saving=Saving(str(tmp_path), 2))
    with pytest.raises(md.RankFailed, match=f"{type(error).__name__}: .*{error}"):
        run_elastic(
            CONFIG, Layout(dp=2), options, rank_function=fails_in(1, error), start=PatientCluster,
            on_interruption=seen.append,
        )  # fmt: skip
    assert seen == []


def test_there_is_a_limit(tmp_path):
    with pytest.raises(RuntimeError, match="has gone on after 1 failures already, and --max-restarts allows no more"):
        elastic(tmp_path, "dp=3", "rank=1,step=2,kind=kill", "rank=1,step=4,kind=kill", max_restarts=1)


def corrupts(verified, named, marker):
    """A rank function whose first attempt finds corrupted numbers after five steps."""

    def rank_function(world, config, layout, options):
        again = marker.exists()
        md.barrier(world)
        marker.touch()
        if again:
            return train_rank(world, config, layout, options)
        train_rank(world, replace(config, steps=5), layout, options)
        if verified is not None:
            world.report(("verified", verified))
        raise CorruptedNumbers(f"{named} holds other numbers after step 4. Rank 0 has others")

    return rank_function


class CorruptedNumbers(RuntimeError):
    pass


@pytest.mark.long
@pytest.mark.parametrize(
    ("named", "gone", "verified", "resumed"),
    [
        ("rank 1", (1,), 1, 2),
        ("one of ranks 1, 2", (), 2, 2),
        ("rank 1", (1,), None, 0),
        pytest.param("rank 1", (1,), 2, 2, marks=long),
        pytest.param("one of ranks 1, 2", (), 1, 2, marks=long),
        pytest.param("one of ranks 1, 2", (), None, 0, marks=long),
    ],
)
def test_corrupted_numbers_go_back_to_where_all_was_well(tmp_path, verified, resumed, named, gone):
    """And the checkpoints since then are gone: nobody can rely on them."""
    options = RunOptions(saving=Saving(str(tmp_path / "run"), 2, keep=0, mode="sync"))
    seen = []

    def on_interruption(it):
        seen.append((it.ranks, it.resumed, committed(Disk(), tmp_path / "run")))

    result, _ = run_elastic(
        CONFIG, Layout(dp=3), options, start=PatientCluster,
        rank_function=corrupts(verified, named, tmp_path / "again"),
        on_interruption=on_interruption,
    )  # fmt: skip
    assert seen == [(gone, resumed, ["step-000002"] if resumed else [])]
    assert result.layout == Layout(dp=3 - len(gone))


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "memory"),
    [
        ("weights", False),
        ("moments", True),
        ("gradients", False),
        *(pytest.param(*one, marks=long) for one in (("weights", True), ("moments", False), ("gradients", True))),
    ],
)
def test_a_rank_that_dies_before_a_check_could_find_a_flipped_bit(ranks, tmp_path, place, memory):
    """What was saved since the last check holds the wrong number, and nobody can tell any longer."""
    config = replace(CONFIG, steps=9)
    options = RunOptions(
        saving=None if memory else Saving(str(tmp_path), 1, mode="sync"),
        peer_copies=PeerCopies(1) if memory else None,
        check_replicas=4,
        faults=(Fault.parse(f"rank=0,step=4,kind=flip:{place}"), Fault.parse("rank=2,step=7,kind=kill")),
    )
    result, [interruption] = run_elastic(config, Layout(dp=3), options, start=PatientCluster)
    assert (interruption.step, interruption.resumed) == (7, 4)
    assert result.fingerprint == reference(ranks, config)


@pytest.mark.long
def test_what_is_not_to_be_relied_on_stays_so_when_going_back_fails_too(tmp_path, monkeypatch):
    """A rank dies while the survivors are asked what they hold."""
    from minidist.train.resilience import going_back as module

    asked = module.survey
    failures = [md.RankFailed("rank 0 of 2 died", 0, "died")]

    def survey(*arguments):
        if failures:
            raise failures.pop()
        return asked(*arguments)

    monkeypatch.setattr(module, "survey", survey)
    options = RunOptions(
        saving=Saving(str(tmp_path / "run"), 2, keep=0, mode="sync"), peer_copies=PeerCopies(100), check_replicas=100
    )
    seen = []
    run_elastic(
        CONFIG, Layout(dp=3), options, Elasticity("restart"), start=PatientCluster, on_interruption=seen.append,
        rank_function=corrupts(1, "rank 1", tmp_path / "again"),
    )  # fmt: skip
    assert [it.resumed for it in seen] == [2]


@pytest.mark.long
def test_a_trained_model_may_be_run_for_longer_than_the_patience(ranks, tmp_path):
    """Only one rank runs it, and the others wait for nobody."""
    options = RunOptions(saving=Saving(str(tmp_path), 10), validate=True, sample=100)
    events = []
    result, interruptions = run_elastic(
        CONFIG, Layout(dp=2), options, start=PatientCluster, on_event=lambda rank, event: events.append((rank, event))
    )
    assert events.count((0, ("evaluating",))) > 100 and not interruptions
    assert result.fingerprint == reference(ranks)


def test_a_checkpoint_that_was_damaged_is_not_resumed_from(ranks, tmp_path):
    """The fault strikes once two are there; the newer one is damaged before the run goes on."""

    def on_event(rank, event):
        if event == ("saved", "step-000004", ""):
            file = tmp_path / "step-000004" / "rank-0.safetensors"
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)

    options = RunOptions(saving=Saving(str(tmp_path), 2, mode="sync"), faults=(Fault.parse("rank=0,step=5,kind=kill"),))
    result, [interruption] = run_elastic(CONFIG, Layout(dp=2), options, start=PatientCluster, on_event=on_event)
    assert interruption.resumed == 2 and result.fingerprint == reference(ranks)


def test_the_checkpoint_that_the_run_began_with_counts(ranks, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    run(ranks(2), CONFIG, Layout(dp=2), RunOptions(saving=Saving(str(first), 3, mode="sync"), stop_after=2))
    origin = str(first / committed(Disk(), first)[-1])
    options = RunOptions(saving=Saving(str(second), 2), resume=origin, faults=(Fault.parse("rank=0,step=3,kind=kill"),))
    result, [interruption] = run_elastic(CONFIG, Layout(dp=2), options, start=PatientCluster)
    assert (interruption.resumed, interruption.source) == (3, origin)
    assert result.fingerprint == reference(ranks)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="--on-failure must be one of shrink, restart, but is wait"):
        Elasticity("wait")
    with pytest.raises(ValueError, match="--max-restarts must not be negative, but is -1"):
        Elasticity(max_restarts=-1)
    with pytest.raises(ValueError, match="--patience must be more than 0 seconds"):
        Elasticity(patience=0)
    with pytest.raises(ValueError, match="goes on from checkpoints or from copies: add --save DIR"):
        run_elastic(CONFIG, Layout(dp=2), RunOptions())


@pytest.mark.long
def test_the_command_line(ranks, tmp_path, capsys):
    import json

    arguments = [
        "train", "--dp", "3", "--steps", "7", "--layers", "1", "--heads", "2", "--width", "16", "--context", "8",
        "--global-batch", "12", "--warmup", "2", "--dropout", "0.2", "--seed", "3", "--json",
        str(tmp_path / "run.json"), "--save", str(tmp_path / "run"), "--save-every", "2",
    ]  # fmt: skip
    assert command_line([*arguments, "--fault", "rank=2,step=3,kind=kill", "--elastic"]) == 0
    shown = capsys.readouterr()
    assert reference(ranks) in shown.out and "interruptions, and the seconds that each cost" in shown.out
    assert re.search(r"step 3: rank 2 of 3 was killed by SIGKILL .*; going on in dp=2 from ", shown.err)
    document = json.loads((tmp_path / "run.json").read_text())
    [interruption] = document["interruptions"]
    assert document["layout"] == interruption["after"] == "dp=2" and interruption["ranks"] == [2]
    assert command_line([*arguments[:-4], "--elastic"]) == 2
    assert "--elastic goes on from checkpoints or from copies: add --save DIR" in capsys.readouterr().err
    assert command_line([*arguments[:-4], "--on-failure", "restart"]) == 2
    assert "add --elastic" in capsys.readouterr().err


@pytest.mark.long
def test_patience_of_a_cluster(ranks):
    """One rank computes, one waits for it, one has finished. The run that reports in time goes on."""

    def main(world, reports):
        if world.rank == 0:
            for _ in range(reports):
                time.sleep(0.3)
                world.report("alive")
            time.sleep(60 if not reports else 0)
        if world.rank < 2:
            md.barrier(world.new_group([0, 1]))
        return world.rank

    with pytest.raises(md.Hang) as caught:
        ranks(3).run(main, 0, patience=1.5)
    text = str(caught.value)
    assert caught.value.ranks == (0,) and kind_of(caught.value) == "Hang"
    assert text.startswith("rank 0 hangs: it waits for no other, and no rank has reported anything for 1.5 s:")
    assert f"rank 0 is at test_elastic.py:{main.__code__.co_firstlineno + 5} in main" in text
    assert "rank 1 is in barrier()" in text and "rank 2" not in text
    assert ranks(3).run(main, 10, patience=1.5) == [0, 1, 2]
