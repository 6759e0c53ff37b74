"""One training step of minidist against the same step in PyTorch, one thread each, in turns.

    python benchmarks/train_step.py --pairs 30

A step is forward, backward, gradient clipping and AdamW. PyTorch runs eagerly, with its fused
``scaled_dot_product_attention``. The two take turns, so that a machine that slows down slows both; the ratio is the
median over the pairs.
"""

import argparse
import statistics
import time

import minidist.backend  # noqa: F401, isort: skip (first: it pins the BLAS to one thread before NumPy loads it)
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from minidist.nn.clip import clip_grad_norm
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.optim import AdamW, average_gradients

SIZES = {"small": (64, 2, 64), "medium": (128, 4, 128)}  # width, layers, context
BATCH, HEADS = 8, 4


class TorchBlock(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv, self.out = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)
        self.fc, self.proj = nn.Linear(config.width, 4 * config.width), nn.Linear(4 * config.width, config.width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, D)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.proj(nn.functional.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class TorchGPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(config.vocab, config.width), nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(TorchBlock(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position.weight
        logits = self.norm(self.blocks(x)) @ self.token.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def minidist_step(config: GPTConfig):
    model = GPT(config)
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def step(tokens: np.ndarray, targets: np.ndarray) -> None:
        model(tokens, targets).backward()
        average_gradients(optimizer.parameters, 1)
        clip_grad_norm(optimizer.parameters, 1.0)
        optimizer.step()
        model.zero_grad()

    return step


def torch_step(config: GPTConfig):
    model = TorchGPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def step(tokens: np.ndarray, targets: np.ndarray) -> None:
        model(torch.from_numpy(tokens), torch.from_numpy(targets)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step, tokens: np.ndarray, targets: np.ndarray) -> float:
    begin = time.perf_counter()
    step(tokens, targets)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="timed pairs of steps for each size (default: 30)")
    parser.add_argument("--size", choices=SIZES, action="append", help="only this size; may be given twice")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    table = Table("size", "width", "layers", "context", "minidist ms", "torch ms", "ratio", title="one training step")
    for size in arguments.size or SIZES:
        width, layers, context = SIZES[size]
        config = GPTConfig(context=context, layers=layers, heads=HEADS, width=width)
        ours, theirs = minidist_step(config), torch_step(config)
        random = np.random.default_rng(0)
        pairs = []
        for _ in range(arguments.pairs + 3):  # the first three warm up
            tokens, targets = random.integers(0, config.vocab, (2, BATCH, context))
            pairs.append((seconds(ours, tokens, targets), seconds(theirs, tokens, targets)))
        pairs = pairs[3:]
        medians = [f"{1000 * statistics.median(column):.2f}" for column in zip(*pairs, strict=True)]
        ratio = statistics.median(a / b for a, b in pairs)
        table.add_row(size, str(width), str(layers), str(context), *medians, f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
