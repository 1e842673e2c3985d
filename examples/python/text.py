# SPDX-License-Identifier: Apache-2.0
"""A small transformer learns to write as the documentation of Lockstep is written.

    python examples/python/text.py
    torchrun --nproc-per-node 2 examples/python/text.py

The text is that of docs/*.md. Activations are checkpointed, and two backward passes make one step
(no_sync), as in trainers of large models.
"""

import argparse
import contextlib
import glob
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from lockstep.torch import DistributedDataParallel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 64


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        rows, length, _ = x.shape
        parts = self.mix(self.before(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.wide(self.after(x))


class Writer(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters, bias=False)
        self.head.weight = self.letters.weight  # Tied.
        nn.init.normal_(self.letters.weight, std=0.05)

    def forward(self, x):
        x = self.letters(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(self.norm(x))


def read():
    """The text as numbers, and the letters."""
    text = ""
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))):
        with open(path, encoding="utf-8") as file:
            text += file.read()
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    return torch.tensor([number[letter] for letter in text]), letters


def main():
    parser = argparse.ArgumentParser(description="Trains a transformer on text.")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    text, letters = read()
    model, rank, size = Writer(len(letters)), 0, 1
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        total = 0.0
        for half in range(2):
            only_add = half == 0 and size > 1
            with model.no_sync() if only_add else contextlib.nullcontext():
                first = torch.randint(0, len(text) - LENGTH - 1, (8,), generator=generator)
                rows = torch.stack([text[i:i + LENGTH + 1] for i in first])
                guesses = model(rows[:, :-1])
                loss = nn.functional.cross_entropy(guesses.flatten(0, 1), rows[:, 1:].flatten())
                (loss / 2).backward()
            total += loss.item() / 2
        optimizer.step()
        if rank == 0 and (step % 50 == 0 or step in (1, options.steps)):
            print(f"step {step}: loss {total:.3f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
