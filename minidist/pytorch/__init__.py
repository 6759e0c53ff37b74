"""minidist's collectives as a backend of ``torch.distributed``: DDP and FSDP2 train on a ring that one wrote oneself.

    import torch.distributed as dist
    import minidist.pytorch

    minidist.pytorch.register(algorithm="ring", impl="exercises")
    dist.init_process_group("minidist")

Read process_group.py first: the methods that torch calls. docs/pytorch.md says how a backend is put together.
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("minidist.pytorch needs PyTorch: pip install 'minidist[torch]'") from error

from minidist.pytorch.registration import register

__all__ = ["register"]
