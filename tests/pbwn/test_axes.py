"""Every layer type, its neurons enumerated by hand."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import pbwn
from pbwn import Axes
from twins import neurons_of, projected


class Conv1D(nn.Module):
    """Stands in for transformers' Conv1D, which stores (in, out)."""

    def __init__(self, n_out, n_in):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))


Conv1D.__module__ = "transformers.pytorch_utils"


# layer, weight, dimensions that index neurons, groups; both written down independently of the library's own table.
INCOMING = [
    (nn.Linear(5, 4), "weight", (0,), 1),
    (nn.Bilinear(3, 2, 4), "weight", (0,), 1),
    (nn.Conv1d(4, 6, 3), "weight", (0,), 1),
    (nn.Conv2d(4, 6, 3), "weight", (0,), 1),
    (nn.Conv2d(4, 6, 3, groups=2), "weight", (0,), 1),
    (nn.Conv2d(4, 4, 3, groups=4), "weight", (0,), 1),
    (nn.Conv3d(2, 3, 2), "weight", (0,), 1),
    (nn.ConvTranspose1d(4, 6, 3), "weight", (1,), 1),
    (nn.ConvTranspose1d(4, 6, 3, groups=2), "weight", (1,), 2),
    (nn.ConvTranspose2d(4, 6, 3), "weight", (1,), 1),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), "weight", (1,), 2),
    (nn.ConvTranspose2d(4, 4, 3, groups=4), "weight", (1,), 4),
    (nn.ConvTranspose3d(2, 4, 2, groups=2), "weight", (1,), 2),
    (nn.MultiheadAttention(4, 2), "in_proj_weight", (0,), 1),
    (nn.MultiheadAttention(4, 2), "out_proj.weight", (0,), 1),
    (nn.MultiheadAttention(4, 2, kdim=3, vdim=5), "q_proj_weight", (0,), 1),
    (nn.MultiheadAttention(4, 2, kdim=3, vdim=5), "k_proj_weight", (0,), 1),
    (nn.MultiheadAttention(4, 2, kdim=3, vdim=5), "v_proj_weight", (0,), 1),
    (nn.RNN(3, 4, num_layers=2), "weight_ih_l1", (0,), 1),
    (nn.LSTM(3, 4, bidirectional=True, proj_size=2), "weight_ih_l0", (0,), 1),
    (nn.LSTM(3, 4, bidirectional=True, proj_size=2), "weight_hh_l0_reverse", (0,), 1),
    (nn.LSTM(3, 4, bidirectional=True, proj_size=2), "weight_hr_l0_reverse", (0,), 1),
    (nn.GRU(3, 4), "weight_hh_l0", (0,), 1),
    (nn.RNNCell(3, 4), "weight_ih", (0,), 1),
    (nn.LSTMCell(3, 4), "weight_hh", (0,), 1),
    (nn.GRUCell(3, 4), "weight_ih", (0,), 1),
    (nn.Embedding(5, 3), "weight", (0,), 1),
    (nn.EmbeddingBag(5, 3), "weight", (0,), 1),
    (Conv1D(4, 3), "weight", (1,), 1),
]
OUTGOING = [
    (nn.Linear(5, 4), "weight", (1,), 1),
    (nn.Conv2d(4, 6, 3), "weight", (1,), 1),
    (nn.Conv2d(4, 6, 3, groups=2), "weight", (1,), 2),
    (nn.Conv1d(4, 4, 3, groups=4), "weight", (1,), 4),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), "weight", (0,), 1),
    (nn.ConvTranspose3d(2, 4, 2), "weight", (0,), 1),
    (Conv1D(4, 3), "weight", (0,), 1),
]


def identifier(value):
    return re.sub(r"\s+", "", f"{value}")[:60] if isinstance(value, nn.Module) else None


@pytest.mark.parametrize(("layer", "name", "dims", "groups"), INCOMING, ids=identifier)
def test_the_incoming_weights_of_every_neuron_are_projected(layer, name, dims, groups):
    check_projection(layer, name, dims, groups, "incoming")


@pytest.mark.parametrize(("layer", "name", "dims", "groups"), OUTGOING, ids=identifier)
def test_the_outgoing_weights_of_every_neuron_are_projected(layer, name, dims, groups):
    check_projection(layer, name, dims, groups, "outgoing")


def check_projection(layer, name, dims, groups, direction):
    weight = layer.get_parameter(name)
    neurons = neurons_of(tuple(weight.shape), dims, groups)
    expected = projected(weight, neurons)
    selection = pbwn.project_(layer, output_layer=None, also=["*"], direction=direction)
    torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-6, atol=1e-7)
    [row] = [row for row in selection.constrained if row.name == name]
    assert (row.neurons, row.fan_in) == (len(neurons), len(neurons[0]))


@pytest.mark.parametrize(
    "layer", [nn.Bilinear(3, 2, 4), nn.MultiheadAttention(4, 2, bias=False), nn.LSTM(3, 4), nn.GRUCell(3, 4)]
)
def test_layers_without_a_meaning_for_outgoing_weights_are_left_alone_in_that_direction(layer):
    model = nn.Sequential(nn.Linear(3, 3), layer, nn.Linear(3, 3))
    selection = pbwn.select(model, direction="outgoing")
    assert {weight.name for weight in selection.constrained} <= {"0.weight", "1.out_proj.weight"}
    reasons = {str(left.reason) for left in selection.left_alone if left.name.startswith("1.") and len(left.shape) > 1}
    assert f"outgoing weights of {type(layer).__name__} are not defined" in reasons


def test_the_rows_of_two_neurons_of_a_grouped_transposed_convolution_are_not_mixed():
    layer = nn.ConvTranspose2d(4, 2, 1, groups=2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([3.0, 4.0, 5.0, 12.0]).view(4, 1, 1, 1))
    pbwn.project_(layer, output_layer=None)
    assert layer.weight.flatten().tolist() == pytest.approx([3 / 5, 4 / 5, 5 / 13, 12 / 13])


@pytest.mark.parametrize(
    ("axes", "groups", "words"),
    [
        ((0.5,), 1, "counted from 0"),
        ((-1,), 1, "counted from 0"),
        ((0, 0), 1, "each dimension once"),
        ((0,), 2, "splits dimension 0"),
        ((1,), 0, "positive integer"),
    ],
)
def test_axes_that_make_no_sense_are_refused(axes, groups, words):
    with pytest.raises(ValueError, match=words):
        Axes(axes, groups=groups)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(2, 3, 4))


class DerivedExperts(Experts):
    pass


class GroupedColumns(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.randn(4, 3))


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("pbwn.axes._KNOWN", dict(pbwn.axes._KNOWN))


@pytest.mark.usefixtures("registry")
def test_a_registered_layer_and_what_derives_from_it_are_known():
    pbwn.register(Experts, w1=(0, 1))
    for layer in (Experts(), DerivedExperts()):
        pbwn.project_(layer, output_layer=None)
        torch.testing.assert_close(layer.w1.norm(dim=2), torch.ones(2, 3))


@pytest.mark.usefixtures("registry")
def test_axes_may_depend_on_the_settings_of_the_registered_layer():
    pbwn.register(GroupedColumns, weight=lambda module: Axes((1,), groups=module.groups))
    layer = GroupedColumns(groups=2)
    pbwn.project_(layer, output_layer=None)
    torch.testing.assert_close(layer.weight.view(2, 2, 3).norm(dim=1), torch.ones(2, 3))


@pytest.mark.usefixtures("registry")
def test_a_registered_layer_can_be_the_output_layer():
    pbwn.register(Experts, w1=(0, 1))
    selection = pbwn.select(nn.Sequential(nn.Linear(4, 4), Experts(), nn.Embedding(3, 4)))
    assert [weight.name for weight in selection.constrained] == ["0.weight"]
    assert selection.output_layer == "'1' (the last layer, of type Experts)"


class Ensemble(nn.Linear):
    """Several linear layers, stored (member, out, in)."""

    def __init__(self):
        super().__init__(4, 8)
        self.weight = nn.Parameter(torch.randn(3, 8, 4))


class Mixture(nn.Conv2d):
    """Several convolutions, stored (expert, out, in, height, width)."""

    def __init__(self):
        super().__init__(3, 8, 3)
        self.weight = nn.Parameter(torch.randn(4, 8, 3, 3, 3))


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(("layer", "words"), [(Ensemble, "3 dimensions instead of 2"), (Mixture, "5 .* instead of 4")])
def test_a_derived_layer_that_stores_a_stack_of_weights_is_unknown_until_somebody_says(layer, words):
    model = nn.Sequential(layer(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=words):
        pbwn.select(model, strict=True)
    with pytest.warns(UserWarning, match=r"neuron axes are unknown: '0\.weight'"):
        assert not pbwn.select(model).constrained
    assert [weight.name for weight in pbwn.select(model, axes={"0.weight": (0, 1)}).constrained] == ["0.weight"]
    pbwn.register(layer, weight=(0, 1))
    [weight] = pbwn.select(model, strict=True).constrained
    assert weight.axes == Axes((0, 1))


class Heads(nn.MultiheadAttention):
    """Queries by head, stored (head, out, in)."""

    def __init__(self):
        super().__init__(8, 2, kdim=4, vdim=4)
        self.q_proj_weight = nn.Parameter(torch.randn(2, 4, 8))


@pytest.mark.usefixtures("registry")
def test_axes_that_somebody_registers_hold_where_the_base_knows_the_weight_by_a_pattern():
    pbwn.register(Heads, q_proj_weight=(0, 1))
    names = [weight.name for weight in pbwn.select(nn.Sequential(Heads(), nn.Linear(8, 2)), strict=True).constrained]
    assert names == ["0.q_proj_weight", "0.k_proj_weight", "0.v_proj_weight", "0.out_proj.weight"]
    stacked = Heads()
    stacked.k_proj_weight = nn.Parameter(torch.randn(2, 4, 4))  # which is not registered
    with pytest.raises(ValueError, match=r"0\.k_proj_weight .* 3 dimensions instead of 2"):
        pbwn.select(nn.Sequential(stacked, nn.Linear(8, 2)), strict=True)


class Language(nn.Module):
    """A model with an output matrix of its own beside its layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(4, 4)
        self.out = nn.Parameter(torch.randn(7, 4))


@pytest.mark.usefixtures("registry")
def test_what_a_registered_output_layer_holds_is_constrained():
    pbwn.register(Language, out=(0,))
    names = [weight.name for weight in pbwn.select(Language()).constrained]
    assert names == ["layers.weight_ih_l0", "layers.weight_hh_l0"]


@pytest.mark.parametrize("layer", [nn.Module, nn.ParameterList, nn.Sequential])
def test_what_every_model_may_be_made_of_cannot_be_registered(layer):
    with pytest.raises(TypeError, match=f"{layer.__name__} is a container, not a layer"):
        pbwn.register(layer, weight=(0,))


def test_registering_needs_a_module_type_and_a_weight():
    with pytest.raises(TypeError, match="module type"):
        pbwn.register(Experts(), w1=(0,))
    with pytest.raises(ValueError, match="name the weights of Experts"):
        pbwn.register(Experts)
    with pytest.raises(TypeError, match="tuple of dimensions"):
        pbwn.register(Experts, w1="0")


class Adapted(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.debias_w = nn.Parameter(torch.randn(2, 4))
        self.proj = nn.Linear(4, 4)
        self.proj_v = nn.Parameter(torch.randn(3, 4))


@pytest.mark.usefixtures("registry")
def test_a_registered_layer_keeps_what_its_base_is_known_for():
    pbwn.register(Adapted, debias_w=(0,), proj_v=(0,))
    model = nn.Sequential(nn.Linear(4, 4), Adapted(), nn.Linear(4, 2))
    found = {weight.name for weight in pbwn.select(model).constrained}
    assert found == {"0.weight", "1.weight", "1.debias_w", "1.proj_v", "1.proj.weight"}
    assert "1.weight" in {weight.name for weight in pbwn.select(model, direction="outgoing").constrained}


@pytest.mark.usefixtures("registry")
def test_a_registered_linear_layer_can_still_be_the_output_layer():
    class Head(nn.Linear):
        pass

    pbwn.register(Head, weight=(0,))
    assert pbwn.select(nn.Sequential(nn.Linear(3, 3), Head(3, 2))).output_layer.startswith("'1'")


def test_a_bare_number_is_no_axes():
    with pytest.raises(TypeError, match=r"write \(0,\)"):
        Axes(0)


class InFirst(nn.Linear):
    """A linear layer that stores (in, out), as kernels of other libraries do."""

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.weight = nn.Parameter(torch.randn(in_features, out_features))


class InFirstConvolution(nn.Conv2d):
    """A grouped convolution that stores (in, out / groups, height, width)."""

    def __init__(self):
        super().__init__(4, 6, 3, groups=2)
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))


class OutFirstTransposed(nn.ConvTranspose1d):
    """A transposed convolution that stores (out, in / groups, length)."""

    def __init__(self):
        super().__init__(4, 6, 3, groups=2)
        self.weight = nn.Parameter(torch.randn(6, 2, 3))


@pytest.mark.parametrize(
    ("layer", "incoming", "outgoing"),
    [
        (InFirst(5, 3), Axes((1,)), Axes((0,))),
        (InFirstConvolution(), Axes((1,), groups=2), Axes((0,))),
        (OutFirstTransposed(), Axes((0,)), Axes((1,), groups=2)),
        (nn.Linear(3, 3), Axes((0,)), Axes((1,))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_a_derived_layer_that_is_stored_the_other_way_round_is_known_by_its_sizes(layer, incoming, outgoing):
    for direction, expected in (("incoming", incoming), ("outgoing", outgoing)):
        [weight] = pbwn.select(layer, output_layer=None, direction=direction).constrained
        assert weight.axes == expected


@pytest.mark.parametrize(
    ("kind", "sizes"), [(nn.Linear, "out_features=6 nor in_features=4"), (nn.Conv1d, "out_channels=6")]
)
def test_a_weight_that_fits_none_of_its_layers_sizes_is_unusual(kind, sizes):
    layer = kind(4, 6) if kind is nn.Linear else kind(4, 6, 3)
    layer.weight = nn.Parameter(torch.randn(12, *layer.weight.shape[1:]))
    with pytest.raises(ValueError, match=f"unusual {kind.__name__}: shape 12x4 fits neither {sizes}"):
        pbwn.select(layer, output_layer=None, strict=True)


# The experts of transformers that are stacked in one parameter, and the axes of their weights.
OUT_FIRST, IN_FIRST = {"gate_up_proj": (0, 1), "down_proj": (0, 1)}, {"gate_up_proj": (0, 2), "down_proj": (0, 2)}
EXPERTS = {
    "mixtral.MixtralExperts": OUT_FIRST,
    "deepseek_v3.DeepseekV3Experts": OUT_FIRST,
    "qwen3_moe.Qwen3MoeExperts": OUT_FIRST,
    "gpt_oss.GptOssExperts": IN_FIRST,
    "llama4.Llama4TextExperts": IN_FIRST,
    "nemotron_h.NemotronHExperts": {"up_proj": (0, 1), "down_proj": (0, 1)},
}
SETTINGS = {
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 2),
    **{
        "hidden_act": "silu",
        "mlp_hidden_act": "relu2",
        "swiglu_alpha": 1.7,
        "swiglu_limit": 7.0,
        "moe_latent_size": None,
    },
}


def experts(path, *, hidden, intermediate):
    """One layer of two experts, or a skipped test where this version of transformers has none such."""
    package, name = path.split(".")
    module = pytest.importorskip(f"transformers.models.{package}.modeling_{package}")
    kind = getattr(module, name, None)
    if kind is None:
        pytest.skip(f"{package} has no {name}")
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "moe_intermediate_size": intermediate}
    return kind(SimpleNamespace(**SETTINGS, **sizes))


@pytest.mark.parametrize("path", EXPERTS)
@pytest.mark.parametrize("hidden", [8, 16])
def test_the_stacked_experts_of_transformers_are_known(path, hidden):
    expected = EXPERTS[path]
    model = nn.ModuleDict({"experts": experts(path, hidden=hidden, intermediate=12)})
    found = {weight.name: weight.axes.neurons for weight in pbwn.select(model, also=["experts"]).constrained}
    assert found == {f"experts.{name}": axes for name, axes in expected.items()}
    outgoing = pbwn.select(model, also=["experts"], direction="outgoing").constrained
    assert {weight.axes.neurons for weight in outgoing} == {(0, 3 - axes[1]) for axes in expected.values()}


def test_a_neuron_of_an_expert_is_what_its_layer_computes_one_output_from():
    """In the layer's own forward code, the output of a neuron is the one that changes with its weights."""
    layer = experts("mixtral.MixtralExperts", hidden=6, intermediate=4)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    [_, down] = pbwn.select(nn.ModuleDict({"experts": layer}), also=["experts"]).constrained
    layer.config._experts_implementation = "eager"
    inputs = torch.randn(5, 6), torch.zeros(5, 1, dtype=torch.long), torch.ones(5, 1)
    before = layer(*inputs)
    with torch.no_grad():
        down.axes.rows(down.tensor)[0, 3] *= 2  # neuron 3 of expert 0
    changed = (layer(*inputs) / before - 1).abs() > 1e-6
    assert changed.any(0).tolist() == [index == 3 for index in range(6)]


def test_experts_whose_sizes_do_not_tell_are_unknown():
    square = experts("llama4.Llama4TextExperts", hidden=12, intermediate=12)
    with pytest.raises(ValueError, match=r"the axes of 1 weight are unknown: experts\.down_proj"):
        pbwn.select(nn.ModuleDict({"experts": square}), also=["experts.gate_up_proj"], strict=True)
    told = experts("gpt_oss.GptOssExperts", hidden=12, intermediate=12)
    selection = pbwn.select(nn.ModuleDict({"experts": told}), also=["experts"])  # it says so itself
    assert {weight.axes.neurons for weight in selection.constrained} == {(0, 2)}
