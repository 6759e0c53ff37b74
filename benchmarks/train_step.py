"""One training step of minidist compared with the same step in PyTorch, one thread each, in turns.

    python benchmarks/train_step.py --turns 30
    python benchmarks/train_step.py --arch llama    # beside transformers' model, whose heads also share keys

A step is forward, backward, gradient clipping and AdamW. PyTorch runs eagerly, once with attention in plain operations
and once with its fused ``scaled_dot_product_attention``. All take turns, so a machine that slows down slows all of
them; a ratio is the median over the turns.
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

from minidist.nn.gpt import GPTConfig
from minidist.nn.models import MODELS, model_of
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import AdamW, average_gradients

SIZES = {"small": (64, 2, 64), "medium": (128, 4, 128)}  # width, layers, context
BATCH, HEADS = 8, 4


def plain_attention(q, k, v, is_causal):
    """Causal attention written by hand: (B, H, T, D) each."""
    length, head_width = q.shape[-2:]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-2, -1) * head_width**-0.5).masked_fill(later, -torch.inf)  # (B, H, T, T)
    return scores.softmax(-1) @ v


class TorchBlock(nn.Module):
    def __init__(self, config: GPTConfig, attention) -> None:
        super().__init__()
        self.attention = attention
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv, self.out = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)
        self.fc, self.proj = nn.Linear(config.width, 4 * config.width), nn.Linear(4 * config.width, config.width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = self.attention(q, k, v, is_causal=True)  # (B, H, T, D)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.proj(nn.functional.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class TorchGPT(nn.Module):
    def __init__(self, config: GPTConfig, attention) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(config.vocab, config.width), nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(TorchBlock(config, attention) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position.weight
        logits = self.norm(self.blocks(x)) @ self.token.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def minidist_step(config: GPTConfig):
    model = model_of(config)
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def step(tokens: np.ndarray, targets: np.ndarray) -> None:
        model(tokens, targets).backward()
        average_gradients(optimizer.parameters, 1)
        clip_grad_norm(optimizer.parameters, 1.0)
        optimizer.step()
        model.zero_grad()

    return step


class TorchLlama(nn.Module):
    """The model of transformers."""

    def __init__(self, config: GPTConfig, attention) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        from minidist.train.checkpoint.hugging_face import config_json

        super().__init__()
        kind = "eager" if attention is plain_attention else "sdpa"
        self.model = LlamaForCausalLM(LlamaConfig(**config_json(config), attn_implementation=kind, use_cache=False))

    def forward(self, tokens, targets):
        return nn.functional.cross_entropy(self.model(tokens).logits.flatten(0, 1), targets.flatten())


def torch_step(config: GPTConfig, attention):
    model = {"gpt2": TorchGPT, "llama": TorchLlama}[config.arch](config, attention)
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
    parser.add_argument("--turns", type=int, default=30, help="timed steps of each for each size (default: 30)")
    parser.add_argument("--size", choices=SIZES, action="append", help="only this size; may be given twice")
    parser.add_argument("--arch", choices=MODELS, default="gpt2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    table = Table("size", "width", "layers", "context", title="one training step: ms (minidist's time / this time)")
    for name in ("minidist", "torch, plain attention", "torch, fused attention"):
        table.add_column(name, justify="right")
    for size in arguments.size or SIZES:
        width, layers, context = SIZES[size]
        shared = {"kv_heads": HEADS // 2} if arguments.arch == "llama" else {}
        config = GPTConfig(context=context, layers=layers, heads=HEADS, width=width, arch=arguments.arch, **shared)
        fused = nn.functional.scaled_dot_product_attention
        steps = [minidist_step(config), torch_step(config, plain_attention), torch_step(config, fused)]
        random = np.random.default_rng(0)
        turns = []
        for _ in range(arguments.turns + 3):  # the first three warm up
            tokens, targets = random.integers(0, config.vocab, (2, BATCH, context))
            turns.append([seconds(step, tokens, targets) for step in steps])
        columns = list(zip(*turns[3:], strict=True))  # (steps, turns)
        ratios = [statistics.median(a / b for a, b in zip(columns[0], column, strict=True)) for column in columns]
        cells = [
            f"{1000 * statistics.median(column):.2f} ({ratio:.2f})"
            for column, ratio in zip(columns, ratios, strict=True)
        ]
        table.add_row(size, str(width), str(layers), str(context), *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
