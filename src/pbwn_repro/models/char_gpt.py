"""A character-level GPT: a plain pre-norm transformer, for comparisons on text."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pbwn_repro.errors import UsageError
from pbwn_repro.models.checks import positive
from pbwn_repro.models.family import Family


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A pre-norm residual block: attention, then two linear layers with GELU between them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class CharGPT(nn.Module):
    """A GPT that scores the next character at each position of a sequence.

    About a million parameters by default. As in GPT-2, weights are initialised normally with standard deviation 0.02,
    divided by the square root of the number of additions for layers that add to the residual stream.

    >>> CharGPT(num_classes=10, context=16, width=32, depth=2)(torch.zeros(3, 16, dtype=torch.long)).shape
    torch.Size([3, 16, 10])
    """

    def __init__(
        self, *, num_classes: int = 96, context: int = 128, width: int = 128, depth: int = 5, heads: int = 4
    ) -> None:
        super().__init__()
        positive("char-gpt", num_classes=num_classes, context=context, width=width, depth=depth, heads=heads)
        if width % heads:
            raise UsageError(f"char-gpt: width {width} is not divisible by {heads} heads: choose a multiple of {heads}")
        self.context = context
        self.characters = nn.Embedding(num_classes, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                additions = 2 * depth if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(parameter, std=0.02 / additions**0.5)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.context:
            raise ValueError(f"char-gpt: built for sequences of {self.context}, got a batch of shape {tuple(x.shape)}")
        positions = torch.arange(x.shape[1], device=x.device)
        scores: Tensor = self.head(self.norm(self.blocks(self.characters(x) + self.places(positions))))
        return scores


FAMILIES = (
    Family(
        pattern=r"char-gpt",
        members=("char-gpt",),
        constructor=CharGPT,
        task="language",
        work="linear",
        layers={"output_layer": "head"},  # embeddings are never constrained
        recipe={
            "data": {"name": "sentences", "context": 128},
            "optimizer": {"kind": "adamw", "lr": 0.001, "betas": [0.9, 0.99], "weight_decay": 0.1},
            "schedule": {"kind": "cosine", "warmup_steps": 100, "final": 0.1},
            "steps": 2_000,
            "batch_size": 32,
            "evaluate_every": 250,
            "checkpoint_every": 250,
            "log_every": 10,
        },
    ),
)
