"""Which weights are scale-invariant: a zoo of small models with known answers, and what asking leaves behind."""

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

import pbwn
from pbwn.axes import Axes
from pbwn.functional import scale_rows_

FREE, WHOLE, ON, MEANS, NONE = "each neuron free", "layer as a whole", "passes on", "has meaning", "no effect"
ROWS, IMAGES, TOKENS = (lambda: torch.randn(16, 6)), (lambda: torch.randn(4, 3, 8, 8)), (lambda: torch.randn(4, 5, 8))
WORDS, PIXELS = (lambda: torch.randint(0, 11, (4, 5))), (lambda: torch.randint(0, 256, (4, 3, 8, 8)).float())


class Add(nn.Module):
    """x + f(x), with what comes after it."""

    def __init__(self, branch, after=None):
        super().__init__()
        self.branch, self.after = branch, after or nn.Identity()

    def forward(self, x):
        return self.after(x + self.branch(x))


class Attention(nn.Module):
    """Queries and keys that are normalised, or not."""

    def __init__(self, norm):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.q_norm, self.k_norm = norm(8), norm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        scores = self.q_norm(self.q(x)) @ self.k_norm(self.k(x)).transpose(1, 2)
        return self.out(x + self.o(scores.softmax(-1) @ self.v(x)))


class Tied(nn.Module):
    """One weight under two names: into batch normalisation, and as the output layer."""

    def __init__(self, *, both_normalised):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.norm, self.last = nn.BatchNorm1d(6), nn.BatchNorm1d(6) if both_normalised else nn.Identity()
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.last(self.second(self.norm(self.first(x)).relu())))


class Shared(nn.Module):
    """A layer that is called twice, and normalised once."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.norm(self.layer(x)).relu() + self.layer(x))


class Unused(nn.Module):
    """A layer that these inputs do not reach."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.used(x)


class Scaled(nn.Module):
    """A residual branch behind a gain that starts at zero."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.gain = nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Parameter(torch.zeros(6))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(x + self.gain * self.norm(self.inner(x)))


class Words(nn.Module):
    """An embedding with a layer normalisation right behind it, or with positions in between."""

    def __init__(self, *, positions, std=0.0):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.pos_embed = nn.Parameter(torch.randn(1, 9, 8) * std, requires_grad=positions)

    def forward(self, x):
        return self.head(self.norm(self.embed(x) + self.pos_embed[:, : x.shape[1]]))


class Positions(Words):
    """The same with a table of positions that is looked up, and added in place."""

    def __init__(self):
        super().__init__(positions=False)
        self.place = small(nn.Embedding(9, 8))

    def forward(self, x):
        embedded = self.embed(x)
        embedded += self.place(torch.arange(x.shape[1]))
        return self.head(self.norm(embedded))


class Leaky(nn.Module):
    """A hundredth of what goes into batch normalisation goes past it."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x):
        hidden = self.layer(x)
        return self.head(self.norm(hidden) + 0.01 * hidden)


class Loss(nn.Module):
    """Returns a single number, which may stay the same by chance."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x, y):
        return functional.cross_entropy(self.layers(x), y)


def cold(module):
    """Biases and gains as a fresh network may have them: at values that hide what they do."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    return module


def zero_gain():
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 2))
    nn.init.zeros_(model[1].weight)
    return model


def conv_bn(**options):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, **options), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)
    )


ZOO = {
    "plain MLP": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2)),
        ROWS,
        {"0": ON, "2": ON, "4": MEANS},
    ),
    "leaky": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 2)), ROWS, {"0": ON, "2": MEANS}),
    "tanh": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), ROWS, {"0": MEANS, "2": MEANS}),
    "GELU": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)), ROWS, {"0": MEANS}),
    "two linear layers": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2)), ROWS, {"0": ON, "1": MEANS}),
    "BN": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), ROWS, {"0": FREE, "2": MEANS}),
    "BN with a convolution": (conv_bn, IMAGES, {"0": FREE, "4": MEANS}),
    "BN with a gain of zero": (zero_gain, ROWS, {"0": FREE, "2": MEANS}),
    "BN at the end": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), ROWS, {"0": FREE}),
    "BN before": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8)), ROWS, {"1": MEANS}),
    "bias and ReLU before BN, as in Inception": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)),
        IMAGES,
        {"0": MEANS, "4": MEANS},
    ),
    "the same with biases that start at zero": (
        lambda: cold(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten())),
        IMAGES,
        {"0": MEANS},
    ),
    "ReLU before BN without a bias": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten()),
        IMAGES,
        {"0": FREE},
    ),
    "LN": (
        lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.LayerNorm(8), nn.Linear(8, 2)),
        ROWS,
        {"0": WHOLE, "2": MEANS},
    ),
    "LN with a bias": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 2)), ROWS, {"0": MEANS}),
    "LN with a bias of zero": (lambda: cold(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8))), ROWS, {"0": MEANS}),
    "RMSNorm": (lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.RMSNorm(8, 1e-6)), ROWS, {"0": WHOLE}),
    "LN after ReLU": (
        lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.LayerNorm(8)),
        ROWS,
        {"0": WHOLE},
    ),
    "GN": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(2, 8), nn.Flatten()),
        IMAGES,
        {"0": WHOLE},
    ),
    "GN with a bias": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), IMAGES, {"0": MEANS}),
    "GN of single channels": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(8, 8)), IMAGES, {"0": FREE}),
    "InstanceNorm": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8)), IMAGES, {"0": FREE}),
    "post-activation residual": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            Add(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)), nn.ReLU()),
            nn.Flatten(),
        ),
        IMAGES,
        {"0": FREE, "2.branch.0": FREE},
    ),
    "pre-activation residual": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            Add(
                nn.Sequential(
                    nn.BatchNorm2d(4),
                    nn.ReLU(),
                    nn.Conv2d(4, 4, 3, padding=1),
                    nn.BatchNorm2d(4),
                    nn.ReLU(),
                    nn.Conv2d(4, 4, 3, padding=1),
                )
            ),
            nn.BatchNorm2d(4),
            nn.Flatten(),
        ),
        IMAGES,
        {"0": MEANS, "1.branch.2": FREE, "1.branch.5": MEANS},
    ),
    "a small branch added before LN": (
        lambda: Add(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), small(nn.Linear(16, 8))), nn.LayerNorm(8)),
        TOKENS,
        {"branch.0": ON, "branch.2": MEANS},
    ),
    "attention": (lambda: Attention(nn.Identity), TOKENS, {"q": MEANS, "k": MEANS, "v": ON, "o": MEANS, "out": MEANS}),
    "attention with q and k normalised": (
        lambda: Attention(lambda size: nn.RMSNorm(size, 1e-6)),
        TOKENS,
        {"q": WHOLE, "k": WHOLE, "v": ON, "o": MEANS, "out": MEANS},
    ),
    "packed attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        TOKENS,
        {"self_attn.in_proj": MEANS, "self_attn.out_proj": MEANS, "linear1": ON, "linear2": MEANS},
    ),
    "tied, normalised once": (lambda: Tied(both_normalised=False), ROWS, {"first": ON, "head": MEANS}),
    "tied, normalised twice": (lambda: Tied(both_normalised=True), ROWS, {"first": FREE, "second": FREE}),
    "shared": (Shared, ROWS, {"layer": MEANS}),
    "unused": (Unused, ROWS, {"used": MEANS, "unused": NONE}),
    "a gain of zero": (Scaled, ROWS, {"inner": FREE, "head": MEANS}),
    "an all-zero weight": (
        lambda: nn.Sequential(zero(nn.Linear(6, 8)), nn.BatchNorm1d(8), nn.Linear(8, 2)),
        ROWS,
        {"0": FREE},
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2)),
        ROWS,
        {"0": MEANS, "4": MEANS},  # the mask falls on the bias as well
    ),
    "dropout without a bias": (
        lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2)),
        ROWS,
        {"0": FREE},
    ),
    "recurrent": (lambda: nn.LSTM(8, 4), TOKENS, {"weight_ih_l0": MEANS, "weight_hh_l0": MEANS}),
    "transposed and grouped": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 6, 2, groups=3), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, groups=6)),
        IMAGES,
        {"0": FREE, "2": MEANS},
    ),
    "depthwise after ReLU": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.Tanh()),
        IMAGES,
        {"0": ON, "2": MEANS},
    ),
    "words right before LN": (lambda: Words(positions=False), WORDS, {"embed": FREE, "head": MEANS}),
    "words and positions before LN": (lambda: Words(positions=True), WORDS, {"embed": MEANS}),
    "words and small positions": (lambda: Words(positions=True, std=0.01), WORDS, {"embed": MEANS}),
    "words and small positions from a table": (Positions, WORDS, {"embed": MEANS, "place": MEANS}),
    "pixels from 0 to 255, a bias, ReLU and BN": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)),
        PIXELS,
        {"0": MEANS, "4": MEANS},
    ),
    "pixels from 0 to 255, a bias and LN": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8)),
        PIXELS,
        {"1": MEANS},
    ),
    "pixels from 0 to 255, a bias and BN": (conv_bn, PIXELS, {"0": FREE, "4": MEANS}),
    "saturated attention": (
        lambda: Attention(nn.Identity),
        lambda: 30 * torch.randn(8, 5, 8),
        {"q": MEANS, "k": MEANS},
    ),
    "a leak past BN": (Leaky, ROWS, {"layer": MEANS}),
    "a single neuron": (lambda: nn.Sequential(nn.Linear(6, 1), nn.BatchNorm1d(1)), ROWS, {"0": FREE}),
}


def small(layer):
    with torch.no_grad():
        layer.weight.mul_(1e-2)
    return layer


def zero(layer):
    nn.init.zeros_(layer.weight)
    return layer


def asked(make, inputs, **options):
    return pbwn.invariance(make(), inputs(), **options)


@pytest.mark.parametrize("animal", ZOO)
@pytest.mark.filterwarnings("ignore:.*output layer.*")
def test_the_scale_of_each_weight_means_what_is_known_of_it(animal):
    make, inputs, expected = ZOO[animal]
    found = asked(make, inputs)
    assert {name: found[weight_name(found, name)].scale for name in expected} == expected


def weight_name(found, name):
    names = [each for weight in found.weights for each in (weight.name, *weight.others)]
    return next(full for full in names if full in (name, f"{name}.weight", f"{name}_weight"))


@pytest.mark.parametrize("animal", ZOO)
@pytest.mark.filterwarnings("ignore:.*output layer.*")
def test_a_weight_that_is_called_free_can_be_rescaled_where_the_model_stands(animal):
    make, inputs, _ = ZOO[animal]
    model, x = make().double().train(), inputs()
    x = x.double() if x.is_floating_point() else x
    for weight in pbwn.invariance(model, x).weights:
        if weight.scale != FREE:
            continue
        rescaled = copy.deepcopy(model)
        parameter = rescaled.get_parameter(weight.name)
        axes = Axes((1,), groups=3) if "transposed" in animal else Axes((0,))
        factors = torch.rand(axes.neuron_shape(tuple(parameter.shape)), dtype=torch.float64) + 1
        scale_rows_(parameter, axes, factors)
        with torch.no_grad():
            torch.manual_seed(1)
            before = copy.deepcopy(model)(x)
            torch.manual_seed(1)
            torch.testing.assert_close(rescaled(x), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_answers_do_not_depend_on_the_precision(dtype):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    found = pbwn.invariance(model.to(dtype), torch.randn(32, 6, dtype=dtype))
    assert [weight.scale for weight in found.weights] == [FREE, ON, MEANS]


def test_half_precision_does_not_hide_a_leak_of_a_hundredth():
    found = pbwn.invariance(Leaky().bfloat16(), torch.randn(16, 6, dtype=torch.bfloat16))
    assert found["layer.weight"].scale == MEANS


def branches():
    """Small residual branches, as in a deep transformer: each changes less of the output than half precision rounds."""
    torch.manual_seed(0)
    mixers = [Attention(nn.Identity), Attention(lambda size: nn.RMSNorm(size, 1e-6))]
    mlps = [
        nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), kind(), small(nn.Linear(16, 8))) for kind in (nn.GELU, nn.ReLU)
    ]
    for mixer in mixers:
        mixer.out = small(nn.Linear(8, 8))
    return nn.Sequential(*map(Add, (*mixers, *mlps)), nn.LayerNorm(8), nn.Linear(8, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("by_autocast", [False, True])
def test_half_precision_gives_the_answers_of_float32_and_keeps_its_own_bits(dtype, by_autocast):
    expected = [weight.scale for weight in pbwn.invariance(branches(), TOKENS()).weights]
    assert {MEANS, ON, WHOLE} == set(expected)
    model, x = branches(), TOKENS()
    if not by_autocast:
        model, x = model.to(dtype), torch.cat([x, x]).to(dtype)[::2]  # a view
    model(x).sum().backward()
    given = [x, *model.parameters(), *(parameter.grad for parameter in model.parameters())]
    before = [(one.detach().clone(), one.data_ptr(), one.stride()) for one in given]
    with torch.autocast("cpu", dtype, enabled=by_autocast), torch.inference_mode(mode=not by_autocast):
        found = pbwn.invariance(model, x)
    assert [weight.scale for weight in found.weights] == expected
    for one, (value, pointer, strides) in zip(given, before, strict=True):
        assert torch.equal(one, value)
        assert (one.dtype, one.data_ptr(), one.stride()) == (value.dtype, pointer, strides)


def test_a_model_that_casts_by_itself_is_refused_with_the_reason():
    class Cast(nn.Linear):
        def forward(self, x):
            return super().forward(x.bfloat16())

    with pytest.raises(ValueError, match=r"refuses these inputs .* half precision is computed in float32 here"):
        pbwn.invariance(Cast(6, 3).bfloat16(), ROWS())


def test_an_effect_that_rounding_hides_makes_no_weight_free():
    class Rounded(nn.Module):
        """Returns a small part of its output in half precision."""

        def __init__(self):
            super().__init__()
            self.layer, self.small, self.head = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x):
            return (self.head(x) + 0.1 * self.small(self.layer(x).tanh())).bfloat16()

    for seed in range(10):
        torch.manual_seed(seed)
        found = pbwn.invariance(Rounded(), ROWS())
        assert {weight.scale for weight in found.weights} <= {MEANS, NONE}
        assert found["head.weight"].scale == MEANS


def test_a_single_number_that_stays_the_same_by_chance_makes_no_weight_free():
    scales = set()
    for seed in range(40):
        torch.manual_seed(seed)
        found = pbwn.invariance(Loss(), ROWS(), torch.randint(0, 4, (16,)))
        scales |= {weight.scale for weight in found.weights}
    assert scales == {MEANS}


def test_a_batch_normalisation_that_trains_in_evaluation_mode_frees_nothing():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    model[1].eval()
    assert pbwn.invariance(model, ROWS())["0.weight"].scale == MEANS
    assert pbwn.invariance(model.eval(), ROWS())["0.weight"].scale == FREE


def test_the_epsilon_of_a_normalisation_does_not_hide_that_it_frees_a_weight_and_is_put_back():
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.LayerNorm(8, eps=1e-5), nn.Linear(8, 2))
    nn.init.normal_(model[0].weight, std=0.04)  # a variance of 0.01
    assert pbwn.invariance(model, ROWS())["0.weight"].scale == WHOLE
    assert model[1].eps == 1e-5


def test_the_epsilon_of_another_normalisation_does_not_make_a_scale_matter():
    first = nn.Linear(8, 8, bias=False)
    nn.init.normal_(first.weight, std=0.005)  # a variance of 0.0002, next to an epsilon of 0.00001
    model = nn.Sequential(first, nn.LayerNorm(8), Attention(lambda size: nn.RMSNorm(size, 1e-6)))
    found = pbwn.invariance(model, TOKENS())
    assert [found[f"2.{name}.weight"].scale for name in "qkv"] == [WHOLE, WHOLE, ON]
    assert found["0.weight"].scale == MEANS


def test_asking_leaves_weights_buffers_modes_gradients_and_random_states_as_they_were():
    model = conv_bn()
    model[1].eval()
    x = IMAGES()
    model(x).sum().backward()
    state, gradients = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    pbwn.invariance(model, x)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    assert all(map(torch.equal, gradients, (p.grad for p in model.parameters())))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state


class Halved(nn.Module):
    def forward(self, x):
        return x.mul_(0.5)


class Multiplied(nn.Module):
    """Takes a sparse matrix."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.register_buffer("features", torch.randn(16, 6))

    def forward(self, adjacency):
        return self.norm(self.layer(adjacency @ self.features))


class Averaged(nn.Module):
    """Keeps a running mean in a buffer that each pass replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return (x - self.mean) / x.std(0)


@pytest.mark.parametrize(
    ("make", "inputs", "scale"),
    [
        (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 8), nn.BatchNorm1d(8)), ROWS, FREE),
        (lambda: nn.Sequential(Halved(), nn.Linear(6, 8), nn.BatchNorm1d(8)), ROWS, FREE),
        (lambda: nn.Sequential(nn.Linear(6, 8, bias=False), Averaged()), ROWS, FREE),
        (lambda: nn.Sequential(nn.Embedding(11, 8, max_norm=0.5), nn.LayerNorm(8)), WORDS, FREE),
        (Multiplied, lambda: torch.eye(16).to_sparse(), FREE),
    ],
)
def test_a_pass_may_write_to_inputs_buffers_and_embeddings_and_all_is_put_back(make, inputs, scale):
    model, x = make(), inputs()
    before, given = copy.deepcopy(model.state_dict()), x.clone()
    assert pbwn.invariance(model, x).weights[0].scale == scale
    assert torch.equal(x.to_dense(), given.to_dense())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_mixed_precision_does_not_hide_that_a_weight_changes():
    with torch.autocast("cpu", torch.bfloat16):
        found = asked(ZOO["BN"][0], ROWS)
    assert [weight.scale for weight in found.weights] == [FREE, MEANS]


def test_a_pass_that_fails_on_the_way_leaves_the_weights_as_they_were():
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 4), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 6:
                raise RuntimeError("no more")
            return self.layer(x)

    model = Fragile()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="no more"):
        pbwn.invariance(model, torch.randn(2, 4))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_frozen_weights_are_examined_and_stay_frozen():
    model = conv_bn()
    model[0].weight.requires_grad_(False)
    found = pbwn.invariance(model, IMAGES())
    assert (found["0.weight"].scale, found["0.weight"].constrained) == (FREE, False)
    assert not model[0].weight.requires_grad


def test_what_is_constrained_comes_from_the_selection_where_one_is_given():
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.LayerNorm(8), nn.Linear(8, 2))
    by_row = pbwn.invariance(model, ROWS())
    whole = pbwn.invariance(model, ROWS(), selection=pbwn.select(model, per="matrix"))
    assert not by_row["0.weight"].projection_is_free
    assert whole["0.weight"].projection_is_free
    nothing = pbwn.invariance(model, ROWS(), selection=pbwn.select(model, skip=["0"], output_layer=None))
    assert [weight.constrained for weight in nothing.weights] == [False, True]


def test_a_model_may_take_dictionaries_and_return_objects():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

        def forward(self, features, scale=1.0):
            hidden = self.layer(features * scale)
            return {"logits": self.head(self.norm(hidden)), "past_key_values": hidden, "hidden": [hidden]}

    inputs = {"features": ROWS(), "scale": 2.0}
    assert pbwn.invariance(Model(), inputs)["layer.weight"].scale == MEANS  # its product is returned too
    found = pbwn.invariance(Model(), inputs, output=lambda out: out["logits"])
    assert found["layer.weight"].scale == FREE


def test_the_table_says_what_follows():
    text = str(asked(ZOO["BN"][0], ROWS))
    assert "0.weight  8x6    each neuron free  changes nothing" in text
    assert "has meaning       not constrained" in text
    assert "PBWN-Riem equals PBWN, and weight decay only sets the rate" in text
    assert "initial projection" not in text
    changed = asked(ZOO["LN"][0], ROWS)
    assert 'radius="initial"' in str(changed)
    assert max(map(len, str(changed).splitlines())) <= 88
    assert 'per="matrix"' in str(changed)
    assert "<table>" in changed._repr_html_()
    assert repr(changed) == "<Invariance: 2 weights: 1 layer as a whole, 1 has meaning>"
    with pytest.raises(KeyError, match=r"no weight 'x'.*0\.weight"):
        changed["x"]


def test_progress_is_shown_where_it_is_asked_for(capsys):
    asked(ZOO["BN"][0], ROWS, progress=True)
    assert "2 of 2 weights" in capsys.readouterr().err
    asked(ZOO["BN"][0], ROWS)
    assert not capsys.readouterr().err


class Sampled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.generator = nn.Linear(6, 3), torch.Generator().manual_seed(0)

    def forward(self, x):
        return self.layer(x) + torch.rand(3, generator=self.generator)


class Chosen(nn.Linear):
    def forward(self, x):
        return super().forward(x).argmax(-1)


@pytest.mark.parametrize(
    ("make", "inputs", "message"),
    [
        (ZOO["BN"][0], lambda: torch.randn(16, 7), "refuses these inputs in training mode .RuntimeError"),
        (ZOO["BN"][0], lambda: torch.randn(1, 6), "several examples"),
        (ZOO["BN"][0], lambda: torch.randn(2, 6), "two values per channel.*several examples"),
        (lambda: nn.BatchNorm1d(6), ROWS, "no weight that could be constrained"),
        (lambda: nn.LazyLinear(3), ROWS, "'weight' is lazy and has no shape yet: call the model once"),
        (lambda: nn.LazyBatchNorm1d(affine=False), ROWS, "'running_mean' is lazy and has no shape yet"),
        (lambda: nn.Linear(6, 3, device="meta"), ROWS, "'weight' is on the meta device"),
        (Sampled, ROWS, "differs from pass to pass"),
        (lambda: Chosen(6, 3), ROWS, "no floating-point tensor: pass output="),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_bad_input_is_refused_with_what_to_do(make, inputs, message):
    with pytest.raises(ValueError, match=message):
        pbwn.invariance(make(), inputs())


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got function"):
        pbwn.invariance(functional.relu, torch.randn(2))
