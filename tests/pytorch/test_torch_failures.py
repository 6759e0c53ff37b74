"""What happens to the ranks of a torch group when one of them dies, is late or calls something else."""

import os
import signal
import time

import pytest
from scripts import segments_of, until
from torch_ranks import TorchRanks

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

pytestmark = pytest.mark.long  # torch takes seconds to start

SECONDS = 3.0  # the groups' timeout here


@pytest.fixture
def fragile(tmp_path_factory):
    """``fragile(n)`` is n ranks of their own, whose groups have a timeout of 3 seconds."""
    started = []

    def ranks(size: int) -> TorchRanks:
        started.append(TorchRanks(size, tmp_path_factory.mktemp("ranks"), seconds=SECONDS))
        return started[-1]

    yield ranks
    for each in started:
        each.close()


def segments(ranks: TorchRanks) -> list[str]:
    """The shared memory that has a name and that one of these processes has created."""
    return [name for each in ranks.processes for name in segments_of(each.pid)]


def outcome(call) -> str:
    """Return how a call ends."""
    try:
        call()
        return "done"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def reduce_once(groups) -> str:
    return outcome(lambda: dist.all_reduce(torch.ones(3)))


def killed_during(groups, backward: bool) -> list[str]:
    """The last rank is killed while the others wait for it, in an all-reduce or in a backward pass."""
    if backward:
        net = DistributedDataParallel(torch.nn.Linear(3, 3))
        call = lambda: net(torch.ones(2, 3)).sum().backward()  # noqa: E731
        call()
    else:
        call = lambda: dist.all_reduce(torch.ones(3))  # noqa: E731
    if groups.rank == groups.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [outcome(call), outcome(call), outcome(dist.destroy_process_group)]


@pytest.mark.parametrize("backward", [False, True])
def test_a_rank_that_is_killed_holds_the_others_up_for_the_timeout_only(fragile, backward):
    ranks = fragile(2)
    assert ranks(reduce_once) == ["done"] * 2
    assert segments(ranks) == []  # already now: the memory has no name
    ranks.send(killed_during, backward)
    first, second, destroyed = ranks.receive(0)
    assert "all_reduce: not done after 3 s, which is this group's timeout. rank 0 waits for rank 1; " in first
    assert "rank 1 waits for no rank: it is computing, or has ended" in first
    assert second.startswith("RuntimeError") and destroyed == "done"
    assert segments(ranks) == []


def test_a_rank_that_is_killed_before_all_have_met_leaves_nothing(tmp_path):
    """Rank 0 has created the memory, and waits for a rank that never comes."""
    ranks = TorchRanks(2, tmp_path, seconds=60.0)
    for place, left in ((1, True), (0, False)):
        ranks.processes[place].kill()
        until(lambda left=left: bool(segments(ranks)) == left)
    ranks.close()


def late(groups) -> str:
    time.sleep(SECONDS + 2 if groups.rank == 1 else 0)
    return reduce_once(groups)


def different(groups) -> list[str]:
    x = torch.ones(3)
    calls = [lambda: dist.broadcast(x, 1), lambda: dist.all_reduce(x), lambda: dist.all_reduce(x)]
    return [outcome(call) for call in calls[groups.rank :][:2]]


def test_ranks_that_are_late_or_call_different_collectives_are_told(fragile):
    early, too_late = fragile(2)(late)
    assert "not done after 3 s" in early and "another rank of this group has failed or given up" in too_late
    outcomes = [how for each in fragile(2)(different) for how in each]
    ours, theirs = "all_reduce(SUM, float32 (3,), ring), collective 1", "broadcast(src=1, float32 (3,), ring)"
    assert any(ours in how and theirs in how for how in outcomes)
    assert all("Mismatch" in how or how == "done" or "another rank" in how for how in outcomes)
    assert outcomes[-1] != "done"
