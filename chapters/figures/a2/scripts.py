"""Variants of the appendix's script and of a solution, made by replacing lines that must be there once."""

SHARDED = """\
model = torch.nn.Sequential(*layers)
for layer in layers:
    fully_shard(layer)
fully_shard(model)"""
OF_FSDP = {  # a line of ddp.py -> of fsdp.py
    "model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=2)": SHARDED,
    "from torch.nn.parallel import DistributedDataParallel": "from torch.distributed.fsdp import fully_shard",
    "p.grad.reshape(-1)": "p.grad.full_tensor().reshape(-1)",
    'overrides.calls["all_reduce_ring"]': "calls",
    "log = trace.stop()": "log, calls = trace.stop(), dict(overrides.calls)",
}


def fsdp(ddp: str) -> str:
    """Return the script ddp.py with FSDP2 in place of DDP."""
    for old, new in OF_FSDP.items():
        ddp = _replaced(ddp, old, new)
    return ddp


def without_addition(solution: str) -> str:
    """Return chapter 3's answers with a ring that forgets to add what arrives."""
    return _replaced(solution, "        combine(mine, arrived, out=mine)", "        pass")


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"expected once, found {text.count(old)} times: {old}"
    return text.replace(old, new)
