"""What happens to the ranks of a torch group when one of them dies, is late or calls something else."""

import os
import signal
import time
from pathlib import Path

import pytest
from torch_ranks import TorchRanks

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

pytestmark = pytest.mark.long  # torch takes seconds to start

SECONDS = 3.0  # the groups' timeout here
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def fragile(tmp_path):
    """``fragile(n)`` is n ranks of their own, whose groups have a timeout of 3 seconds."""
    started = []

    def ranks(size: int) -> TorchRanks:
        started.append(TorchRanks(size, tmp_path, seconds=SECONDS))
        return started[-1]

    yield ranks
    for each in started:
        each.close()


def segments(ranks: TorchRanks) -> list[str]:
    """The shared memory that has a name and that one of these processes has created."""
    names = [path.name for path in SHARED_MEMORY.iterdir()] if SHARED_MEMORY.is_dir() else []
    return [name for name in names for process in ranks.processes if name.startswith(f"minidist-{process.pid}-")]


def outcome(call) -> str:
    """How a call ends."""
    try:
        call()
        return "done"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def reduce_once(groups) -> str:
    return outcome(lambda: dist.all_reduce(torch.ones(3)))


def killed_during(groups, prepare) -> list[str]:
    """The last rank is killed while the others wait for it."""
    call = prepare()
    if groups.rank == groups.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [outcome(call), outcome(call), outcome(dist.destroy_process_group)]


def an_all_reduce():
    return lambda: dist.all_reduce(torch.ones(3))


def a_backward_pass():
    net = DistributedDataParallel(torch.nn.Linear(3, 3))

    def step() -> None:
        net(torch.ones(2, 3)).sum().backward()

    step()
    return step


@pytest.mark.long
@pytest.mark.parametrize("prepare", [an_all_reduce, a_backward_pass])
def test_a_rank_that_is_killed_holds_the_others_up_for_the_timeout_only(fragile, prepare):
    ranks = fragile(2)
    assert ranks(reduce_once) == ["done"] * 2
    assert segments(ranks) == []  # already now: the memory has no name
    ranks.send(killed_during, prepare)
    first, second, destroyed = ranks.receive(0)
    assert "all_reduce: not done after 3 s, which is this group's timeout. rank 0 waits for rank 1; " in first
    assert "rank 1 waits for nobody: it computes, or it is gone" in first
    assert second.startswith("RuntimeError") and destroyed == "done"
    assert segments(ranks) == []


@pytest.mark.long
def test_a_rank_that_is_killed_before_all_have_met_leaves_nothing(tmp_path):
    """Rank 0 has created the memory, and waits for a rank that never comes."""
    ranks = TorchRanks(2, tmp_path, seconds=60.0)
    ranks.processes[1].kill()
    deadline = time.monotonic() + 60
    while not segments(ranks):
        assert time.monotonic() < deadline, "rank 0 creates no shared memory"
        time.sleep(0.05)
    ranks.processes[0].kill()
    while segments(ranks):
        assert time.monotonic() < deadline, "it stays behind"
        time.sleep(0.05)
    ranks.close()


def late(groups) -> str:
    time.sleep(SECONDS + 2 if groups.rank == 1 else 0)
    return reduce_once(groups)


def receives(groups) -> str:
    return outcome(lambda: dist.recv(torch.empty(3), 1) if groups.rank == 0 else time.sleep(SECONDS + 1))


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (late, ("not done after 3 s", "another rank of this group has failed or given up")),
        (receives, ("recv from rank 1: not done after 3 s", "done")),
    ],
)
def test_a_rank_that_is_late_hears_that_the_group_has_ended(fragile, function, words):
    for expected, found in zip(words, fragile(2)(function), strict=True):
        assert expected in found


def different(groups) -> list[str]:
    x = torch.ones(3)
    calls = [lambda: dist.broadcast(x, 1), lambda: dist.all_reduce(x), lambda: dist.all_reduce(x)]
    return [outcome(call) for call in calls[groups.rank :][:2]]


@pytest.mark.long
def test_ranks_that_call_different_collectives_are_told_which(fragile):
    found = [how for each in fragile(2)(different) for how in each]
    ours, theirs = "all_reduce(SUM, float32 (3,), ring), collective 1", "broadcast(src=1, float32 (3,), ring)"
    assert any(ours in how and theirs in how for how in found)
    assert all("Mismatch" in how or how == "done" or "another rank" in how for how in found)
    assert found[-1] != "done"
