"""What is constrained, what is left alone and why, and every wish that cannot be met."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import pbwn
from pbwn.layout import sharing


class Everything(nn.Module):
    """A model that mixes the layer types, good and bad."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8, padding_idx=0)
        self.bag = nn.EmbeddingBag(10, 8)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.grouped = nn.ConvTranspose2d(6, 4, 3, groups=2)
        self.batch_norm = nn.BatchNorm2d(4)
        self.layer_norm = nn.LayerNorm((4, 8))
        self.packed = nn.MultiheadAttention(8, 2, add_bias_kv=True)
        self.separate = nn.MultiheadAttention(8, 2, kdim=4, vdim=4)
        self.lstm = nn.LSTM(5, 6, num_layers=2, bidirectional=True, proj_size=3)
        self.cell = nn.GRUCell(3, 4)
        self.bilinear = nn.Bilinear(3, 4, 5)
        self.weight_normed = parametrizations.weight_norm(nn.Linear(3, 4))
        self.spectral_normed = parametrizations.spectral_norm(nn.Linear(3, 4))
        self.pruned = prune.random_unstructured(nn.Linear(3, 4), "weight", amount=0.5)
        self.frozen = nn.Linear(3, 4).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(8))
        self.experts = nn.Parameter(torch.randn(2, 3, 4))
        self.complex = nn.Linear(3, 4, dtype=torch.complex64)
        self.head = nn.Linear(8, 3)


pytestmark = pytest.mark.filterwarnings("ignore:.*neuron axes are unknown")


class ThreeLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.other = nn.Linear(4, 3)


def small():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def reasons(selection):
    return {left.name: str(left.reason) for left in selection.left_alone}


def names(selection):
    return [weight.name for weight in selection.constrained]


def test_a_model_of_all_layer_types_is_sorted_out_rightly():
    selection = pbwn.select(Everything())
    lstm = [
        f"lstm.weight_{kind}_l{layer}{way}"
        for layer in (0, 1)
        for way in ("", "_reverse")
        for kind in ("ih", "hh", "hr")
    ]
    attention = [f"separate.{which}_proj_weight" for which in "qkv"]
    assert names(selection) == [
        "depthwise.weight",
        "grouped.weight",
        "packed.in_proj_weight",
        "packed.out_proj.weight",
        *attention,
        "separate.out_proj.weight",
        *lstm,
        "cell.weight_ih",
        "cell.weight_hh",
        "bilinear.weight",
    ]
    expected = {
        "embedding.weight": "embedding",
        "bag.weight": "embedding",
        "batch_norm.weight": "normalisation layer",
        "batch_norm.bias": "normalisation layer",
        "layer_norm.weight": "normalisation layer",
        "packed.bias_k": "bias",
        "packed.in_proj_bias": "bias",
        "lstm.bias_ih_l0": "bias",
        "weight_normed.parametrizations.weight.original0": "parametrized",
        "weight_normed.parametrizations.weight.original1": "parametrized",
        "spectral_normed.parametrizations.weight.original": "parametrized",
        "pruned.weight_orig": "parametrized",
        "frozen.weight": "frozen",
        "scale": "1-d parameter",
        "experts": "neuron axes unknown: pass axes={'experts': ...}",
        "complex.weight": "dtype complex64 is not supported",
        "head.weight": "output layer",
    }
    found = reasons(selection)
    assert {name: found[name][: len(reason)] for name, reason in expected.items()} == expected
    total = len(list(Everything().parameters()))
    assert len(selection.constrained) + len(selection.left_alone) == total


def test_the_printed_table_shows_both_lists():
    printed = str(pbwn.select(Everything()))
    assert "grouped.weight          " in printed
    rows = {line.split("  ")[0]: line.split() for line in printed.splitlines()}
    assert rows["grouped.weight"][1:] == ["ConvTranspose2d", "6x2x3x3", "4", "27", "(1,),", "groups=2"]
    assert rows["depthwise.weight"][1:] == ["Conv2d", "4x1x3x3", "4", "9", "(0,)"]
    assert "output layer: 'head' (by its name)" in printed
    assert "batch_norm.{weight, bias}" in printed


def test_a_fan_in_of_one_is_pointed_out():
    model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 2))
    assert "0.weight has a fan-in of 1" in str(pbwn.select(model))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_older_hook_based_weight_norm_is_recognised():
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 4), nn.Linear(4, 2))
    found = reasons(pbwn.select(model))
    assert found["0.weight_g"].startswith("parametrized")
    assert found["0.weight_v"].startswith("parametrized")


def test_patterns_name_parameters_and_modules():
    model = Everything()
    assert "embedding.weight" in names(pbwn.select(model, also=["emb*"]))
    assert not any(name.startswith("lstm") for name in names(pbwn.select(model, skip=["lstm"])))
    assert reasons(pbwn.select(model, skip=["*_proj_weight"]))["separate.q_proj_weight"] == "skipped by '*_proj_weight'"
    assert "head.weight" in names(pbwn.select(model, also=["head"]))
    assert "experts" in names(pbwn.select(model, axes={"experts": (0, 1)}))


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"also": ["embed"]}, r"also='embed' matches nothing: did you mean 'embedding'"),
        ({"skip": ["backbone.*"]}, r"skip='backbone\.\*' matches nothing"),
        ({"also": ["batch_norm"]}, r"matches nothing that can be constrained \(batch_norm.weight: normalisation"),
        ({"also": ["experts"]}, r"pass axes=\{'experts': \.\.\.\}"),
        ({"axes": {"expert": (0, 1)}}, r"axes=\{'expert': \.\.\.\} matches nothing: did you mean 'experts'"),
        ({"axes": {"experts": (0, 1), "exp*": (0,)}}, r"weight 'experts' is given conflicting axes: \(0, 1\), \(0,\)"),
        ({"axes": {"experts": (0, 5)}}, r"axes \(0, 5\) need 6 dimensions or more, the weight has 3"),
        ({"axes": {"experts": (0, 1, 2)}}, r"leave no weights to normalise"),
        ({"axes": {"experts": pbwn.Axes((1,), groups=3)}}, r"do not split into 3 groups"),
        ({"axes": {"frozen.weight": (0,)}}, r"frozen"),
        ({"axes": {"experts": (0,)}, "skip": ["experts"]}, r"drop one of them"),
        ({"direction": "sideways"}, r'direction is "incoming" or "outgoing"; found \'sideways\''),
        ({"strict": True}, r"strict=True, and 1 weight could not be placed: experts"),
    ],
)
def test_a_wish_that_cannot_be_met_is_an_error_that_says_why(wishes, words):
    with pytest.raises(ValueError, match=words):
        pbwn.select(Everything(), **wishes)


def test_a_bare_string_instead_of_a_list_of_patterns_is_refused():
    with pytest.raises(TypeError, match=r"write skip=\['head'\]"):
        pbwn.select(Everything(), skip="head")
    with pytest.raises(TypeError, match=r"torch\.nn\.Module; found list"):
        pbwn.select([nn.Linear(2, 2)])


def test_lazy_parameters_are_refused_with_advice():
    with pytest.raises(ValueError, match=r"'0\.weight' is lazy .* forward pass"):
        pbwn.select(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)))


def test_a_model_without_values_has_a_table_but_cannot_be_projected():
    model = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.Linear(4, 2))
    assert names(pbwn.select(model)) == ["0.weight"]
    with pytest.raises(ValueError, match=r"'0\.weight' is on the meta device"):
        pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"'0\.weight' is on the meta device"):
        pbwn.project_(model)


def test_weights_that_no_optimizer_holds_are_listed_as_such():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    selection = pbwn.select(model, optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1))
    assert names(selection) == ["0.weight"]
    assert reasons(selection)["1.weight"] == "not in the given optimizers"


class Tied(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second, self.head = first, second, nn.Linear(4, 2)
        self.second.weight = self.first.weight


def test_tied_weights_are_one_weight():
    selection = pbwn.select(Tied(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert names(selection) == ["first.weight"]


def test_what_is_left_alone_under_one_name_is_left_alone_under_the_other():
    tied = Tied(nn.Linear(4, 4), nn.Embedding(4, 4))
    assert names(pbwn.select(tied)) == []
    selection = pbwn.select(tied, output_layer=None)
    assert names(selection) == ["head.weight"]
    assert reasons(selection)["first.weight"].startswith("tied to second.weight: embedding")
    assert names(pbwn.select(tied, also=["second"])) == ["first.weight"]


def test_a_weight_shared_by_layers_with_conflicting_axes_is_an_error():
    tied = Tied(nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3))
    with pytest.raises(ValueError, match=r"conflicting neuron axes \(first.weight: \(0,\), second.weight: \(1,\)\)"):
        pbwn.select(tied)
    assert names(pbwn.select(tied, axes={"second.weight": (0,)})) == ["first.weight"]


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        lambda model: torch.compile(model, backend="eager"),
        torch.optim.swa_utils.AveragedModel,
        lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
    ],
    ids=["data parallel", "compiled", "averaged", "data parallel of compiled"],
)
def test_names_are_those_of_the_model_inside_its_wrappers(wrap):
    assert names(pbwn.select(wrap(ThreeLayers()))) == ["first.weight", "other.weight"]
    asked = type("Asked", (ThreeLayers,), {"get_classifier": lambda model: model.first})
    assert pbwn.select(wrap(asked())).output_layer.startswith("'first' (from get_classifier())")


def test_an_attribute_that_happens_to_be_called_module_keeps_its_name():
    model = nn.Module()
    model.module = small()
    assert names(pbwn.select(model)) == ["module.0.weight"]


def test_weights_that_lost_their_rows_are_refused_with_advice():
    class FullyShardedDataParallel(nn.Sequential):
        pass

    with pytest.raises(ValueError, match="fully_shard"):
        pbwn.select(FullyShardedDataParallel(nn.Linear(3, 3), nn.Linear(3, 3)))
    for name in ("weight", "_flat_param"):  # inside a wrapper that is not part of the model
        flat = nn.Linear(3, 3)
        flat.register_parameter(name, nn.Parameter(torch.zeros(9)))
        with pytest.raises(ValueError, match=r"FullyShardedDataParallel.*fully_shard"):
            pbwn.select(nn.Sequential(flat, nn.Linear(3, 3)))
    model = small()
    model[0].weight.data = torch.empty(0)
    model[0].weight.ds_id = 0
    with pytest.raises(ValueError, match=r"'0\.weight' is partitioned by DeepSpeed ZeRO stage 3"):
        pbwn.select(model)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"output_layer": nn.Linear(2, 2)}, "names of modules"),
        ({"output_layer": [3]}, "names of modules"),
        ({"skip": None}, "skip is a list of patterns"),
        ({"also": [0]}, "also is a list of patterns"),
    ],
)
def test_wishes_of_the_wrong_kind_are_refused(wishes, words):
    with pytest.raises(TypeError, match=words):
        pbwn.select(ThreeLayers(), **wishes)


def test_a_name_with_brackets_is_taken_as_it_is():
    model = nn.Sequential()
    model.add_module("a[0]", nn.Linear(3, 3))
    model.add_module("b", nn.Linear(3, 3))
    model.add_module("head", nn.Linear(3, 2))
    assert names(pbwn.select(model, skip=["a[0]"])) == ["b.weight"]


def test_a_complex_weight_cannot_be_given_axes():
    with pytest.raises(ValueError, match="dtype complex64 is not supported"):
        pbwn.select(Everything(), axes={"complex.weight": (0,)})


def test_an_empty_weight_is_left_alone():
    with pytest.warns(UserWarning, match="zero-element"):
        empty = nn.Linear(0, 5)
    model = nn.Sequential(nn.Linear(3, 3), empty, nn.Linear(3, 2))
    assert reasons(pbwn.select(model))["1.weight"] == "empty"


def test_a_module_that_holds_itself_is_no_trouble():
    model = ThreeLayers()
    model.first.parent = model
    assert names(pbwn.select(model)) == ["first.weight", "other.weight"]


def test_the_reasons_of_a_module_are_told_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 4, proj_size=2), nn.Linear(3, 3))
    printed = str(pbwn.select(model, direction="outgoing"))
    assert printed.count("outgoing weights of LSTM are not defined") == 1


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("recompute", "suffixes"),
    [
        (nn.utils.weight_norm, ["_g", "_v"]),
        (nn.utils.spectral_norm, ["_orig"]),
        (lambda layer, name: prune.l1_unstructured(layer, name, amount=0.5), ["_orig"]),
    ],
)
@pytest.mark.parametrize("weight", ["weight_hh_l0", "weight_ih_l0_reverse"])
def test_what_a_recurrent_weight_is_computed_from_is_left_alone_as_on_other_layers(weight, recompute, suffixes):
    layer = nn.LSTM(4, 6, bidirectional=True)
    recompute(layer, weight)
    selection = pbwn.select(nn.ModuleList([layer, nn.Linear(6, 2)]))
    assert len(names(selection)) == 3
    for suffix in suffixes:
        reason = reasons(selection)[f"0.{weight}{suffix}"]
        assert reason == "parametrized: the layer's weight is computed from it"


def test_a_tied_weight_is_included_by_any_of_its_names():
    tied = Tied(nn.Embedding(4, 4), nn.Linear(4, 4))
    for pattern in ("first", "second", "second.weight", "sec*"):
        assert names(pbwn.select(tied, also=[pattern])) == ["first.weight"]
    tied.first.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"also='second' matches nothing .* \(first\.weight: frozen"):
        pbwn.select(tied, also=["second"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_inside_a_model_is_left_alone():
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 2))
    selection = pbwn.select(model)
    assert names(selection) == ["0.weight"]
    assert reasons(selection)["1.weight"] == "scripted modules are not supported"
    with pytest.raises(ValueError, match="scripted modules are not supported"):
        pbwn.select(model, axes={"1.weight": (0,)})
    with pytest.raises(ValueError, match=r"strict=True.*1\.weight"):
        pbwn.select(model, strict=True)


def tied_by_memory(weight):
    """A model whose second layer has a parameter of its own on the first one's memory."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].weight = nn.Parameter(weight(model[0].weight.data))
    return model


def test_parameters_that_are_the_same_memory_are_tied():
    assert len(pbwn.select(tied_by_memory(lambda weight: weight)).constrained) == 2
    skipped = pbwn.select(tied_by_memory(lambda weight: weight), skip=["1"])
    assert reasons(skipped)["0.weight"] == "skipped by '1'"
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3), nn.Linear(3, 2))
    model[1].weight = nn.Parameter(model[0].weight.data)
    assert reasons(pbwn.select(model))["0.weight"].startswith("embedding")
    assert "0.weight (= 1.weight)" in str(pbwn.select(model))
    assert [weight.name for weight in pbwn.select(model, also=["0"]).constrained] == ["0.weight", "1.weight"]


def test_each_of_two_parameters_in_one_memory_has_its_gradient_made_tangent():
    model = tied_by_memory(lambda weight: weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, gradient="riemannian")
    before = model[0].weight.detach().clone()
    model(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()
    for layer in model[:2]:
        assert float((layer.weight.grad * before).sum(1).abs().max()) < 1e-5
    assert projection.check().ok


@pytest.mark.parametrize("view", [lambda weight: weight, torch.t], ids=["same", "transposed"])
def test_a_view_that_nothing_trains_does_not_keep_a_weight_from_being_constrained(view):
    model = tied_by_memory(view)
    model[1].weight.requires_grad_(False)
    assert [weight.name for weight in pbwn.select(model).constrained] == ["0.weight"]
    model[1].weight.requires_grad_(True)
    optimizer = torch.optim.SGD([model[0].weight, *model[2].parameters()], lr=0.1)
    assert [weight.name for weight in pbwn.select(model, optimizer=optimizer).constrained] == ["0.weight"]


def test_a_weight_and_its_transpose_in_one_memory_are_refused_until_one_is_skipped():
    model = tied_by_memory(torch.t)
    with pytest.raises(ValueError, match=r"0.weight and 1.weight share memory, .* skip=\['1.weight'\]"):
        pbwn.select(model)
    assert [weight.name for weight in pbwn.select(model, skip=["1.weight"]).constrained] == ["0.weight"]


def test_weights_that_lie_in_one_memory_side_by_side_share_nothing():
    memory = torch.randn(4, 8)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].weight, model[1].weight = nn.Parameter(memory[:, :4]), nn.Parameter(memory[:, 4:])
    assert len(pbwn.select(model).constrained) == 2
    for one, other, expected in (
        (memory[:, :4], memory[:, 4:], False),
        (memory[:, :5], memory[:, 4:], True),
        (memory, memory.t(), True),
        (memory, memory.clone(), False),
        (memory, memory.view(torch.int16), True),
        (memory[:, ::2], memory[:, 1::2], False),
    ):
        assert bool(sharing([one, other])) is bool(sharing([other, one])) is expected
    assert sharing([memory[:, :4], memory.clone(), memory[:, 3:5], memory[:, 5:]]) == {(0, 2)}


def test_all_names_of_a_tied_weight_are_shown():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(7)))
    for layer in model[1:6]:
        layer.weight = model[0].weight
    assert "0.weight (= 1.weight, 2.weight, 3 more)" in str(pbwn.select(model))
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    assert "0.weight (= 1.weight)  Embedding" in str(pbwn.select(model))


def test_a_frozen_embedding_is_an_embedding_first():
    model = nn.Sequential(nn.Embedding(3, 4).requires_grad_(False), nn.Linear(4, 4), nn.Linear(4, 2))
    assert reasons(pbwn.select(model))["0.weight"].startswith("embedding")


def test_a_name_that_contains_the_word_is_no_bias():
    model = nn.Linear(4, 4)
    model.debias_projection = nn.Parameter(torch.randn(4, 4))
    model.in_proj_bias = nn.Parameter(torch.randn(4, 4))
    model.bias1 = nn.Parameter(torch.randn(1, 4))
    found = reasons(pbwn.select(model, output_layer=None))
    assert found["debias_projection"].startswith("neuron axes unknown")
    assert found["in_proj_bias"] == found["bias1"] == "bias"


def test_parameters_in_containers_are_named_by_axes_alone():
    model = nn.ModuleDict({"some": nn.ParameterList([torch.randn(3, 3)]), "head": nn.Linear(3, 2)})
    assert reasons(pbwn.select(model))["some.0"] == "neuron axes unknown: pass axes={'some.0': ...}"


def test_sparse_and_empty_weights_are_not_constrained():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].weight = nn.Parameter(torch.eye(4).to_sparse())
    assert reasons(pbwn.select(model))["0.weight"] == "layout sparse_coo is not supported"
    model.empty = nn.Parameter(torch.empty(3, 0))
    with pytest.raises(ValueError, match="the weight is empty"):
        pbwn.select(model, axes={"empty": (0,)})


def test_fabrics_wrapper_does_not_show():
    model = nn.Module()
    model._forward_module = model._original_module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    [weight] = pbwn.select(model).constrained
    assert (weight.name, weight.others) == ("0.weight", ())
