"""One training step of minidist on a GPU compared with the same step in PyTorch eager, in turns.

    python benchmarks/gpu.py                    # needs CuPy, PyTorch and an NVIDIA GPU
    python benchmarks/gpu.py --backend numpy --width 64    # the same on a CPU, to try the script

A step is forward, backward, gradient clipping and AdamW. float32 products use no TF32 on either side. In bf16 PyTorch
runs under ``torch.autocast`` and minidist under its own: on both sides the weights are float32 and are rounded where
they are used, and the products of linear layers and attention run in the tensor cores. minidist rounds every activation
to 16 bits; PyTorch leaves LayerNorm's output and the residual stream in float32, and fuses attention into one kernel.

A step ends when the GPU has done it. A ratio is the median over the turns. "kept" is what minidist keeps for backward
at the peak of a step. Below the table: where minidist's time on the host goes.
"""

import argparse
import cProfile
import pstats
import statistics
import time
from contextlib import nullcontext

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from train_step import TorchGPT, minidist_step

from minidist import backend, ledger
from minidist.nn.gpt import GPTConfig
from minidist.nn.precision.policy import autocast

WIDTHS = (256, 1024, 2048)
LAYERS, CONTEXT, BATCH, HEAD_WIDTH = 4, 512, 8, 64
WARM_UP = 3  # steps: kernels are compiled, memory pools filled
LINES = 12  # of the profile


def torch_step(config: GPTConfig, device: str, precision: str):
    model = TorchGPT(config, nn.functional.scaled_dot_product_attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)

    def step(tokens, targets) -> None:
        with torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext():
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10, help="timed steps of each (default: 10)")
    parser.add_argument("--width", type=int, action="append", help="only this width; may be given twice")
    parser.add_argument("--backend", choices=("numpy", "cupy"), default="cupy")
    arguments = parser.parse_args()
    backend.use(arguments.backend)
    device = "cuda" if arguments.backend == "cupy" else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()  # of the whole device, so also for CuPy's work

    def seconds(step, *batch) -> float:
        wait()
        begin = time.perf_counter()
        step(*batch)
        wait()
        return time.perf_counter() - begin

    table = Table("width", "precision", title="one training step, ms")
    for name in ("minidist", "torch", "minidist / torch", "kept, MiB"):
        table.add_column(name, justify="right")
    console, random = Console(width=110), np.random.default_rng(0)
    profiles = {}
    for width in arguments.width or WIDTHS:
        config = GPTConfig(context=CONTEXT, layers=LAYERS, heads=width // HEAD_WIDTH, width=width)
        for precision in ("fp32", "bf16"):
            with autocast(precision):
                ours, theirs = minidist_step(config), torch_step(config, device, precision)
                turns = []
                for turn in range(arguments.turns + WARM_UP):
                    batch = random.integers(0, config.vocab, (2, BATCH, CONTEXT))
                    on_device = [backend.from_host(part) for part in batch]
                    if turn == 0:
                        memory = ledger.start()
                        ours(*on_device)
                        ledger.stop()
                    if turn == WARM_UP:
                        profile = profiles[width, precision] = cProfile.Profile()
                        profile.runcall(seconds, ours, *on_device)
                    turns.append((seconds(ours, *on_device), seconds(theirs, *torch.from_numpy(batch).to(device))))
            mine, other = (statistics.median(column) for column in zip(*turns[WARM_UP:], strict=True))
            ratio = statistics.median(a / b for a, b in turns[WARM_UP:])
            times = f"{1000 * mine:.2f}", f"{1000 * other:.2f}", f"{ratio:.2f}"
            table.add_row(str(width), precision, *times, f"{memory.peaks['activations'] / 2**20:.0f}")
            console.print(f"width {width}, {precision}: {ratio:.2f}")
    console.print(table)
    for (width, precision), profile in profiles.items():
        console.print(f"\nwidth {width}, {precision}: where the host's time goes")
        pstats.Stats(profile).sort_stats("tottime").print_stats(LINES)


if __name__ == "__main__":
    main()
