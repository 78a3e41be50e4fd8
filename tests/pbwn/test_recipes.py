"""What people train with elsewhere, as one line here: each against its formulas, written out."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import pbwn


def make(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 12, bias=False), nn.Tanh(), nn.Linear(12, 12, bias=False), nn.Tanh(), nn.Linear(12, 3)]
    return nn.Sequential(*layers).double()


def backward(model, optimizer, step):
    batch = torch.randn(16, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    optimizer.zero_grad()
    (model(batch) - batch[:, :3].sin()).square().mean().backward()


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class MuonAndAdam:
    """Muon for the hidden matrices, Adam for the rest, as it is used."""

    def __init__(self, model):
        hidden = [model[0].weight, model[2].weight]
        rest = [parameter for parameter in model.parameters() if all(parameter is not one for one in hidden)]
        self.optimizers = [
            torch.optim.Muon(hidden, lr=0.02, weight_decay=0.0),
            torch.optim.Adam(rest, lr=0.01),
        ]

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def unit(weight, dim=None):
    return weight / weight.norm(dim=dim, keepdim=dim is not None)


def hyperball(lr):
    """W <- R N(W + lr R N(u)), R the initial Frobenius norm of each matrix (Wen et al. 2026)."""

    def rule(old, new, start):
        radius = start.norm()
        return radius * unit(old + lr * radius * unit(new - old))

    return rule


def rotational(lr):
    """Each neuron turns by the same angle in every step (Kosson et al. 2024): unit rows, unit update of each."""

    def rule(old, new, start):
        update = new - old
        return unit(old + lr * unit(update, 1), 1)

    return rule


def oblique(old, new, start):
    """The update's part along the neuron is taken out before the retraction (ObliqueSGD, and what AdamP aims at)."""
    update = new - old
    return unit(old + update - (old * update).sum(1, keepdim=True) * old / old.square().sum(1, keepdim=True), 1)


def by_row(old, new, start):
    """nGPT, SimbaV2: rows along the embedding dimension are normalised after each step."""
    return unit(new, 1)


def edm2(old, new, start):
    """Forced weight normalisation (Karras et al. 2024): rows of norm sqrt(fan-in)."""
    return unit(new, 1) * new.shape[1] ** 0.5


INITIAL = pbwn.UnitNorm("initial")
RECIPES = {
    "hyperball on Adam": (adam, hyperball(0.01), {"per": "matrix", "step": "angle", "constraint": INITIAL}),
    "hyperball on Muon": (MuonAndAdam, hyperball(0.02), {"per": "matrix", "step": "angle", "constraint": INITIAL}),
    "rotational AdamW": (adamw, rotational(0.01), {"step": "angle"}),
    "oblique Adam": (adam, oblique, {"step": "tangent"}),
    "nGPT and SimbaV2": (adam, by_row, {}),
    "EDM2": (sgd, edm2, {"constraint": pbwn.UnitNorm("sqrt-fan-in")}),
}


@pytest.mark.parametrize("name", RECIPES)
def test_fifty_steps_equal_the_formulas(name):
    if "Muon" in name and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch.optim.Muon came with torch 2.9")
    make_optimizer, rule, options = RECIPES[name]
    model, twin = make(), make()
    optimizer, plain = make_optimizer(model), make_optimizer(twin)
    pbwn.attach(model, optimizer.optimizers[:1] if isinstance(optimizer, MuonAndAdam) else optimizer, **options)
    starts = [twin[index].weight.detach().clone() for index in (0, 2)]
    if options.get("constraint") != INITIAL:
        with torch.no_grad():
            for index, start in zip((0, 2), starts, strict=True):
                twin[index].weight.copy_(edm2(None, start, None) if name == "EDM2" else unit(start, 1))
    for step in range(50):
        backward(model, optimizer, step)
        optimizer.step()
        backward(twin, plain, step)
        olds = [twin[index].weight.detach().clone() for index in (0, 2)]
        plain.step()
        with torch.no_grad():
            for index, old, start in zip((0, 2), olds, starts, strict=True):
                twin[index].weight.copy_(rule(old, twin[index].weight, start))
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


def test_a_sparse_autoencoder_keeps_unit_columns_and_sees_tangent_gradients():
    """The decoder's columns, one for each feature, have norm 1; the gradient along them is taken out."""

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 20), nn.Linear(20, 8)

        def forward(self, x):
            return self.decoder(functional.relu(self.encoder(x)))

    torch.manual_seed(0)
    model = Autoencoder().double()
    twin = Autoencoder().double()
    twin.load_state_dict(model.state_dict())
    optimizer, plain = adam(model), adam(twin)
    pbwn.attach(model, optimizer, only=["decoder"], direction="outgoing", gradient="riemannian")
    with torch.no_grad():
        twin.decoder.weight.copy_(unit(twin.decoder.weight, 0))
    for step in range(50):
        batch = torch.randn(32, 8, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for each, its_optimizer in ((model, optimizer), (twin, plain)):
            its_optimizer.zero_grad()
            (each(batch) - batch).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            columns, gradient = twin.decoder.weight, twin.decoder.weight.grad
            gradient -= (gradient * columns).sum(0, keepdim=True) * columns
            plain.step()
            columns.copy_(unit(columns, 0))
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        query, key, value = (part[:, None] for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(functional.scaled_dot_product_attention(query, key, value, is_causal=True)[:, 0])


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return self.c_proj(functional.silu(self.c_fc(x)))


class GPT(nn.Module):
    """One block, with nanoGPT's names."""

    def __init__(self, *, tied, width=8):
        super().__init__()
        block = nn.ModuleDict({"attn": Attention(width), "mlp": MLP(width)})
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(11, width), "h": nn.ModuleList([block])})
        self.lm_head = nn.Linear(width, 11, bias=False)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight

    def forward(self, tokens):
        x = self.transformer.wte(tokens)
        for block in self.transformer.h:
            x = x + block.attn(x)
            x = x + block.mlp(x)
        return self.lm_head(x)


@pytest.mark.parametrize("tied", [False, True], ids=["separate head", "tied head"])
def test_a_gpt_is_normalised_along_the_embedding_dimension_as_in_ngpt(tied):
    torch.manual_seed(0)
    model = GPT(tied=tied).double()
    twin = copy.deepcopy(model)
    optimizer, plain = adam(model), adam(twin)
    # Matrices that write to the residual stream have the embedding dimension as their output: columns.
    pbwn.attach(model, optimizer, only=["*.wte", "lm_head", "*.c_attn", "*.c_fc"])
    pbwn.attach(model, optimizer, only=["*.c_proj"], direction="outgoing")

    def normalise(gpt):
        for name, weight in gpt.named_parameters():
            weight.data = unit(weight.data, 0 if "c_proj" in name else 1)

    normalise(twin)
    for step in range(5):
        tokens = torch.randint(0, 11, (4, 9), generator=torch.Generator().manual_seed(step))
        for gpt, each in ((model, optimizer), (twin, plain)):
            each.zero_grad()
            functional.cross_entropy(gpt(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            each.step()
        normalise(twin)
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
