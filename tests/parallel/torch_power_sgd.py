"""Steps of torch's own PowerSGD hook, in a process of their own: ``python torch_power_sgd.py FOLDER``.

It writes FOLDER/steps.npz. Of step i that holds x.i and y.i (the input, and the gradient of the output), error.i and
q.i (the hook's state before the step; no q before the first compressed one), gradient.i (what the hook leaves in the
weight) and left.i (its new error).
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

STEPS, BATCH, COLUMNS, ROWS, RANK = 6, 5, 9, 14, 2


def record(folder: Path) -> None:
    address = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    torch.manual_seed(0)
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False).double()
    replicas = torch.nn.parallel.DistributedDataParallel(linear)
    state = PowerSGDState(None, RANK, start_powerSGD_iter=2, min_compression_rate=0.1, orthogonalization_epsilon=0)
    replicas.register_comm_hook(state, powerSGD_hook)

    numbers, steps = np.random.default_rng(0), {}
    for step in range(STEPS):
        steps[f"x.{step}"] = numbers.standard_normal((BATCH, COLUMNS))
        steps[f"y.{step}"] = numbers.standard_normal((BATCH, ROWS))
        for name, kept in (("error", state.error_dict), ("q", state.q_memory_dict)):
            if kept:
                steps[f"{name}.{step}"] = next(iter(kept.values())).numpy().copy()
        linear.weight.grad = None
        output = replicas(torch.from_numpy(steps[f"x.{step}"]))
        (output * torch.from_numpy(steps[f"y.{step}"])).sum().backward()
        steps[f"gradient.{step}"] = linear.weight.grad.numpy().copy()
        if state.error_dict:
            steps[f"left.{step}"] = next(iter(state.error_dict.values())).numpy().copy()
    np.savez(folder / "steps.npz", **steps)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    # gloo's threads run the hook's callbacks. With torch 2.13 a thread outside Python once aborted the process at about
    # the time when they end. So they are not ended: the numbers are on disk.
    os._exit(0)
