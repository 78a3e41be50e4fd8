"""A GPT trained like nanoGPT: AdamW with weight decay, and the same loop with fixed norms and no decay.

The loop has two parameter groups, warm-up and cosine decay of the learning rate, accumulated micro-batches, and
clipped gradients.

python examples/nanogpt.py
"""

import argparse as some_text
import inspect
import math
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional

import pbwn

STEPS, WARMUP, MICRO_BATCHES, BATCH, CONTEXT, WIDTH, HEADS, LAYERS = 120, 12, 2, 8, 48, 64, 4, 2
device = "cuda" if torch.cuda.is_available() else "cpu"
autocast = torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()

text = inspect.getsource(some_text)  # yours: a data set
letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
data = torch.tensor([letters[letter] for letter in text], device=device)
train_data, test_data = data.split([int(0.9 * len(data)), len(data) - int(0.9 * len(data))])


class Block(nn.Module):
    """Attention and an MLP, each after a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.c_fc, self.mlp_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.c_attn(self.ln_1(x)).unflatten(-1, (3, HEADS, -1)).transpose(1, -2).unbind(-3)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.c_proj(mixed)
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    """A transformer from tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(letters), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(letters), bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        return self.lm_head(self.ln_f(self.blocks(x)))


def loss_of(model: nn.Module, source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    starts = torch.randint(len(source) - CONTEXT - 1, (BATCH,), generator=generator).tolist()
    tokens = torch.stack([source[start : start + CONTEXT + 1] for start in starts])
    with autocast:
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def report(projection: pbwn.NormProjection | None) -> str:
    """Return what is constrained, and whether it is on the sphere."""
    return "" if projection is None else f"{projection}\n\n{projection.check()}"


def train(peak_rate: float, weight_decay: float, **options: object) -> tuple[float, str]:
    """Train, constrained if options of `attach` are given; return the test loss and a report."""
    torch.manual_seed(0)
    model = GPT().to(device)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak_rate, betas=(0.9, 0.95))
    projection = pbwn.attach(model, optimizer, **options) if options else None  # the added line
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        rate = peak_rate * min((step + 1) / WARMUP, 0.5 + 0.5 * math.cos(math.pi * step / STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate
        for _ in range(MICRO_BATCHES):
            (loss_of(model, train_data, generator) / MICRO_BATCHES).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        return sum(loss_of(model, test_data, generator).item() for _ in range(16)) / 16, report(projection)


baseline, _ = train(3e-3, weight_decay=0.1)
# Matrices keep their initial norm, and each step turns them by the learning rate, in radians.
constraint = pbwn.UnitNorm(radius="initial")
loss, summary = train(2e-2, weight_decay=0.0, constraint=constraint, per="matrix", step="angle")
print(summary)
print("\none seed each, at learning rates that were not searched: a comparison needs `pbwn sweep`")
print(f"test loss: {baseline:.3f} with AdamW and decay, {loss:.3f} with fixed norms")
