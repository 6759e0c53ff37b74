"""DistributedDataParallel and FSDP2 train on minidist as on gloo. test_readme.py trains on the ring of an exercise."""

import hashlib

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import minidist.pytorch  # noqa: E402

pytestmark = pytest.mark.long  # torch takes seconds to start

STEPS = 3


def model() -> "torch.nn.Module":
    """Return a model whose gradients fill more than one bucket: DDP's first one takes 1 MiB."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(37, 600), torch.nn.GELU(), torch.nn.LayerNorm(600), torch.nn.Linear(600, 500),
        torch.nn.GELU(), torch.nn.Linear(500, 5),
    )  # fmt: skip


def train(net, groups, after_step) -> tuple[list[float], list[str]]:
    """Train on batches that differ between ranks; return the losses, and hashes of the bits of ``after_step()``."""
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    data = torch.Generator().manual_seed(groups.rank)
    losses, hashes = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = net(torch.randn(16, 37, generator=data)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        hashes += [hashlib.sha256(each.detach().numpy().tobytes()).hexdigest() for each in after_step()]
    return losses, hashes


def ddp(groups, group):
    net = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.1)
    return train(net, groups, lambda: [each for p in net.parameters() for each in (p, p.grad)])


def fsdp2(groups, group, **policy):
    net, mesh = model(), DeviceMesh.from_group(group, "cpu")
    for layer in (net[0], net[3], net[5], net):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))
    return train(net, groups, lambda: [each.full_tensor() for p in net.parameters() for each in (p, p.grad)])


def fsdp2_in_bfloat16(groups, group):
    return fsdp2(groups, group, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def fsdp1(groups, group):
    """The first FSDP frees its parameters by resizing their storage."""
    net = FullyShardedDataParallel(model(), group, device_id=torch.device("cpu"))
    return train(net, groups, lambda: list(net.parameters()))


def on_both(groups, trained):
    """Whether minidist and gloo give the same losses and bits; and the hashes of minidist's."""
    ours, theirs = (trained(groups, group) for group in groups.both)
    return ours == theirs, ours[1]


@pytest.mark.parametrize("trained", [ddp, fsdp2, fsdp2_in_bfloat16, fsdp1])
def test_it_has_the_bits_of_gloo(torch_ranks, trained):
    """A sum over two ranks has two terms, and a + b has the bits of b + a. So there is one right answer."""
    first, second = torch_ranks(2)(on_both, trained)
    assert first[0] and second[0]
    assert trained is fsdp1 or first[1] == second[1]


@pytest.mark.parametrize("size", [3, 4])
def test_ddp_leaves_the_same_bits_on_every_rank(torch_ranks, size):
    _, hashes = zip(*torch_ranks(size)(on_both, ddp), strict=True)
    assert hashes == (hashes[0],) * size


def tensor_parallel(groups):
    """The largest difference between gradients of a model that is split by columns and rows, and of the full one."""
    split, full = model(), model()
    parallelize_module(split, init_device_mesh("cpu", (groups.size,)), {"3": ColwiseParallel(), "5": RowwiseParallel()})
    batch = torch.randn(4, 37, generator=torch.Generator().manual_seed(0))
    for net in (split, full):
        net(batch).square().mean().backward()
    pairs = [(split[i].weight.grad.full_tensor(), full[i].weight.grad) for i in (3, 5)]
    return max((ours - theirs).abs().max().item() for ours, theirs in pairs)


def power_sgd(groups):
    """A hook whose callbacks start further all-reduces."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    net = DistributedDataParallel(model())
    state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    net.register_comm_hook(state, power.powerSGD_hook)
    return train(net, groups, lambda: [p.grad for p in net.parameters()])[-1]


def test_tensor_parallel_layers_and_hooks_that_start_collectives(torch_ranks):
    assert max(torch_ranks(2)(tensor_parallel)) < 1e-6
    first, second = torch_ranks(2)(power_sgd)
    assert first == second


def test_answers_that_are_none_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder, words in (("nowhere", "there is no such folder"), ("empty", "no collective in .* is solved yet")):
        with pytest.raises(ValueError, match=words):
            minidist.pytorch.register(impl=str(tmp_path / folder))
    with pytest.raises(ValueError, match=r"unknown algorithm 'rings'; choose auto, .*ring"):
        minidist.pytorch.register("rings")
