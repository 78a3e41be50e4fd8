"""What is constrained, what is left alone and why, and every wish that cannot be met."""

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrizations, prune
from torch.utils._python_dispatch import TorchDispatchMode

import pbwn
from counting import Counting
from pbwn.layout import sharing
from pbwn.selection.names import matches, suggestion
from pbwn.selection.table import folded
from pbwn.selection.zeros import _are_zero


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
        ({"direction": "sideways"}, r'direction must be "incoming" or "outgoing"; got \'sideways\''),
        ({"strict": True}, r"strict=True, and the axes of 1 weight are unknown: experts"),
    ],
)
def test_a_wish_that_cannot_be_met_is_an_error_that_says_why(wishes, words):
    with pytest.raises(ValueError, match=words):
        pbwn.select(Everything(), **wishes)


def test_patterns_may_come_from_any_iterable():
    model = deep()
    assert names(pbwn.select(model, only=(name for name in ["1"]))) == ["1.weight"]
    assert names(pbwn.select(model, skip=iter(["1"]))) == ["0.weight"]
    with pytest.raises(TypeError, match=r"also must be a list of patterns.*got 3"):
        pbwn.select(model, also=3)


def test_a_bare_string_instead_of_a_list_of_patterns_is_refused():
    with pytest.raises(TypeError, match=r"write skip=\['head'\]"):
        pbwn.select(Everything(), skip="head")
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got list"):
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
    with pytest.raises(ValueError, match="skip='secnd' matches nothing: did you mean 'second'"):
        pbwn.select(tied, skip=["secnd"])  # which is what would have settled it


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
        ({"skip": None}, "skip must be a list of patterns"),
        ({"also": [0]}, "also must be a list of patterns"),
        ({"optimizer": 3}, r"optimizer must be a torch\.optim\.Optimizer, or a list of them; got 3"),
        ({"optimizer": ["Adam"]}, "or a list of them; got 'Adam'"),
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


def test_weights_that_were_made_in_inference_mode_are_left_alone():
    with torch.inference_mode():
        model = small()
    assert reasons(pbwn.select(model))["0.weight"].startswith("made in inference mode")
    with pytest.raises(ValueError, match=r"nothing to project(.|\n)*made in inference mode"):
        pbwn.project_(model)


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


def test_a_scripted_module_inside_a_model_is_left_alone():
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 2))
    selection = pbwn.select(model)
    assert names(selection) == ["0.weight"]
    assert reasons(selection)["1.weight"] == "scripted modules are not supported"
    with pytest.raises(ValueError, match="scripted modules are not supported"):
        pbwn.select(model, axes={"1.weight": (0,)})
    with pytest.raises(ValueError, match=r"strict=True.*1\.weight"):
        pbwn.select(model, strict=True)


def test_a_model_that_is_scripted_as_a_whole_is_left_alone_with_the_reason():
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    assert reasons(pbwn.select(model))["0.weight"] == "scripted modules are not supported"


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
    assert "0.weight (= 1.weight)  Embedding  3x4    tied to output layer" in str(pbwn.select(model))


class TiedEmbedding(nn.Module):
    """A language model's ends, whichever comes first."""

    def __init__(self, names):
        super().__init__()
        for name in names:
            self.add_module(name, nn.Embedding(5, 4) if name == "wte" else nn.Linear(4, 5, bias=False))
        self.hidden = nn.Linear(4, 4)
        self.lm_head.weight = self.wte.weight


@pytest.mark.parametrize("names", [("wte", "lm_head"), ("lm_head", "wte")], ids=str)
def test_an_embedding_that_is_tied_to_the_output_layer_is_told_as_such_also_where_it_is_constrained(names):
    model = TiedEmbedding(names)
    left_alone = pbwn.select(model)
    assert reasons(left_alone) == {f"{names[0]}.weight": "tied to output layer", "hidden.bias": "bias"}
    assert str(left_alone).endswith("note: also=[...] constrains embeddings")  # output_layer=None would not
    constrained = pbwn.select(model, also=["wte"])
    tied = f"{names[0]}.weight (= {names[1]}.weight)"
    assert constrained.output_layer == f"'lm_head' (by its name), constrained on request: {tied}"


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


def test_also_adds_and_only_restricts():
    model = Everything()
    default = names(pbwn.select(model))
    assert names(pbwn.select(model, also=["embedding"])) == ["embedding.weight", *default]
    assert names(pbwn.select(model, only=["embedding", "cell", "head"])) == [
        "embedding.weight",
        "cell.weight_ih",
        "cell.weight_hh",
        "head.weight",
    ]
    assert names(pbwn.select(model, only=["lstm.*_l1"], skip=["*_hh_*"])) == ["lstm.weight_ih_l1", "lstm.weight_hr_l1"]
    found = reasons(pbwn.select(model, only=["cell"], strict=True))  # what is not named need not be known
    assert found["bilinear.weight"] == found["experts"] == found["head.weight"] == "not named by only="
    assert found["batch_norm.weight"] == "normalisation layer"


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"only": ["bilinear"], "also": ["embedding"]}, "name all weights in only="),
        (
            {"only": ["batch_norm", "cell"]},
            r"only='batch_norm' matches nothing that can be constrained \(batch_norm.weig",
        ),
        ({"only": ["cel"]}, "only='cel' matches nothing: did you mean 'cell'"),
        (
            {"only": ["cell"], "axes": {"experts": (0, 1)}},
            r"axes=\{'experts': ...\} matches .* \(experts: not named by only",
        ),
        ({"axes": {"batch_norm": (0,)}}, r"axes=\{'batch_norm': ...\} matches nothing that can be constrained"),
        ({"axes": {"lstm": (0, 1)}}, r"axes=\{'lstm': \(0, 1\)\} match 'lstm.weight_ih_l0', .* one by one"),
        ({"also": ["b*_norm"]}, "batch_norm.bias: normalisation layer"),
    ],
)
def test_names_that_contradict_each_other_or_choose_nothing_are_refused(wishes, words):
    with pytest.raises(ValueError, match=words):
        pbwn.select(Everything(), **wishes)


BLOCKS = [f"blocks.{index}.{layer}.weight" for index in range(12) for layer in ("attn", "fc")]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("blok*", "did you mean 'blocks'?"),  # not what it holds too
        ("blocks.3.atn", "did you mean 'blocks.3.attn'"),
        ("haed", "did you mean 'head'?"),
        ("encoder", "there is 'embed', 'blocks', 'head', 'embed.weight', "),  # from the outside in
    ],
)
def test_a_misspelt_pattern_is_answered_with_the_nearest_names(given, told):
    assert suggestion(given, ["embed.weight", *BLOCKS, "head.weight"]).startswith(told)


def test_a_misspelt_pattern_for_a_radius_is_answered_with_the_nearest_name():
    model = nn.ModuleDict({"blocks": nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), "head": nn.Linear(4, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"matches no constrained weight: did you mean 'blocks'\?"):
        pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius={"blok*": 2.0}))


class MixtureOfExperts(nn.Module):
    """Two stacks of weights of unknown axes, with their biases, as a module of its own."""

    def __init__(self):
        super().__init__()
        self.w1, self.b1_bias = nn.Parameter(torch.randn(2, 6, 4)), nn.Parameter(torch.zeros(2, 6))
        self.w2, self.scale = nn.Parameter(torch.randn(2, 4, 6)), nn.Parameter(torch.ones(4))


def test_axes_given_for_a_module_are_those_of_its_weights():
    model = nn.ModuleDict({"moe": MixtureOfExperts(), "head": nn.Linear(4, 2)})
    for pattern in ("moe", "m*", "moe.w*"):
        selection = pbwn.select(model, axes={pattern: (0, 1)})
        assert [(weight.name, weight.axes.neurons) for weight in selection.constrained] == [
            ("moe.w1", (0, 1)),
            ("moe.w2", (0, 1)),
        ]
        assert {"moe.b1_bias", "moe.scale"} <= set(reasons(selection))
    model["moe"].w2 = nn.Parameter(torch.randn(4, 6))
    with pytest.raises(ValueError, match=r"'moe.w2', shape 4x6: axes \(0, 1\) count every dimension .* one by one"):
        pbwn.select(model, axes={"moe": (0, 1)})


def test_what_the_table_shows_in_braces_can_be_used_as_a_pattern():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(12)), nn.Linear(4, 2))
    [row] = [line for line in str(pbwn.select(model)).splitlines() if line.startswith("{0..11}.0.weight ")]
    assert row.split() == ["{0..11}.0.weight", "Linear", "4x4", "4", "4", "(0,)"]
    assert names(pbwn.select(model, skip=["{0..8, 10}.0"])) == ["9.0.weight", "11.0.weight"]


def test_an_optimizer_in_the_place_of_inputs_is_refused():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for given in (optimizer, [optimizer]):
        with pytest.raises(TypeError, match="select\\(model, optimizer=optimizer\\)"):
            pbwn.select(model, given)


def deep():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))


def test_what_was_selected_is_what_is_constrained():
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    selection = pbwn.select(model, skip=["0"], output_layer=None)
    projection = pbwn.attach(model, optimizer, selection=selection)
    assert names(projection.selection) == names(selection) == ["1.weight", "2.weight"]
    assert reasons(projection.selection)["0.weight"] == "skipped by '0'"
    assert projection.check().ok
    assert [cost.name for cost in pbwn.cost(model, (4,), selection=selection).weights] == ["1.weight", "2.weight"]
    another = deep()
    before = another[0].weight.clone()
    assert names(pbwn.project_(another, selection=pbwn.select(another, only=["1"]))) == ["1.weight"]
    assert torch.equal(another[0].weight, before)
    assert torch.allclose(another[1].weight.norm(dim=1), torch.ones(4))


def test_a_selection_made_before_is_seen_with_the_optimizers_and_frozen_weights_of_now():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 2))
    selection = pbwn.select(model)
    model[1].requires_grad_(False)
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[1].parameters(), *model[3].parameters()], lr=0.1)
    found = pbwn.attach(model, optimizer, selection=selection).selection
    assert names(found) == ["0.weight", "3.weight"]
    assert reasons(found)["1.weight"] == "frozen"
    assert reasons(found)["2.weight"] == "not in the given optimizers"
    with pytest.raises(ValueError, match="nothing to constrain"):
        pbwn.attach(model, torch.optim.SGD(model[4].parameters(), lr=0.1), selection=selection)


def test_a_selection_serves_the_wrapped_model_too():
    model = deep()
    selection = pbwn.select(model)
    compiled = torch.compile(model, backend="eager")
    projection = pbwn.attach(compiled, torch.optim.SGD(model.parameters(), lr=0.1), selection=selection)
    assert names(projection.selection) == ["0.weight", "1.weight"]


def replaced(model):
    model[1] = nn.Linear(4, 4)
    return model


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (lambda model: model, {"skip": ["0"]}, ValueError, "pass skip= to pbwn.select"),
        (lambda model: model, {"output_layer": None}, ValueError, "pass output_layer= to pbwn.select"),
        (lambda model: model, {"direction": "outgoing"}, ValueError, "pass direction= to pbwn.select"),
        (lambda model: model, {"strict": True}, ValueError, "pass strict= to pbwn.select"),
        (
            lambda model: deep(),
            {},
            ValueError,
            "not of this model as it is now: it has no weight '0.weight' of shape 4x4",
        ),
        (replaced, {}, ValueError, "no weight '1.weight' of shape 4x4 in the same layer"),
        (lambda model: nn.Sequential(model), {}, ValueError, "no weight '0.weight'"),
    ],
)
def test_a_selection_that_does_not_fit_is_refused(make, options, error, words):
    model = deep()
    selection = pbwn.select(model)
    model = make(model)
    with pytest.raises(error, match=words):
        pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), selection=selection, **options)
    with pytest.raises(error, match=words):
        pbwn.project_(model, selection=selection, **options)


def test_a_selection_is_what_select_returns():
    model = deep()
    with pytest.raises(TypeError, match=r"selection must be what pbwn.select.* got list"):
        pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), selection=["0"])
    pbwn.attach(  # arguments that say nothing say nothing against it either
        model, torch.optim.SGD(model.parameters(), lr=0.1), selection=pbwn.select(model), only=[], axes={}
    )


def test_a_weight_that_starts_at_zero_is_left_alone_unless_it_is_named():
    model = deep()
    nn.init.zeros_(model[1].weight)
    selection = pbwn.select(model)
    assert names(selection) == ["0.weight"]
    assert reasons(selection)["1.weight"] == "all zero"
    for wishes in ({"also": ["1"]}, {"only": ["*.weight"]}, {"axes": {"1.weight": (0,)}}):
        assert "1.weight" in names(pbwn.select(model, **wishes))
    with torch.no_grad():
        model[1].weight[3, 2] = 1e-30
    assert names(pbwn.select(model)) == ["0.weight", "1.weight"]


def test_a_weight_that_is_zero_when_it_is_attached_is_left_alone_though_it_was_selected():
    model = deep()
    selection = pbwn.select(model)
    nn.init.zeros_(model[1].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
    projection = pbwn.attach(model, optimizer, selection=selection)
    assert names(projection.selection) == ["0.weight"]
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    assert model[1].weight.abs().max() < 1e-6


def test_a_weight_that_starts_at_zero_is_free_though_it_is_named_and_the_reason_to_leave_it_alone_says_what_helps():
    model = deep()
    nn.init.zeros_(model[1].weight)
    assert reasons(pbwn.select(model))["1.weight"] == "all zero"
    advice = "MaxNorm constrains it; with UnitNorm, start it from other values"
    assert advice in " ".join(str(pbwn.select(model)).split())
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), also=["1.weight"])
    assert "1.weight: 4 rows (0, 1, 2, 3) are unconstrained: no norm to keep at attach" in str(projection.check())
    projection.detach()
    nn.init.normal_(model[1].weight, std=1e-3)
    pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.testing.assert_close(model[1].weight.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("given", [False, True])
def test_a_weight_that_starts_at_zero_is_kept_in_a_ball(given):
    model = deep()
    nn.init.zeros_(model[1].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    selection = pbwn.select(model) if given else None
    projection = pbwn.attach(model, optimizer, selection=selection, constraint=pbwn.MaxNorm(0.1))
    assert names(projection.selection) == ["0.weight", "1.weight"]
    for _ in range(3):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert model[1].weight.norm(dim=1).max() <= 0.1 + 1e-6
    assert projection.check().ok


def test_a_weight_that_started_at_zero_is_left_alone_in_a_resumed_run_too():
    model = deep()
    nn.init.zeros_(model[1].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    assert model[1].weight.any()
    state = projection.state_dict()
    projection.detach()
    resumed = pbwn.attach(model, optimizer, state=state)
    assert names(resumed.selection) == ["0.weight"]
    assert resumed.state_dict() == state


class Devices(TorchDispatchMode):
    """Counts the values that are waited for."""

    def __init__(self):
        super().__init__()
        self.waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.waits += name in ("_local_scalar_dense", "item")
        return func(*args, **(kwargs or {}))


def test_on_the_cpu_one_element_tells_that_a_weight_is_not_zero():
    model = deep()
    with Devices() as counted:
        pbwn.select(model)
    assert counted.waits == 2


def test_weights_are_zero_as_a_whole_or_not():
    tensors = [torch.zeros(3, 3), torch.ones(2), torch.full((2, 2), float("nan")), torch.tensor([0.0, 1.0])]
    assert _are_zero(tensors) == [True, False, False, False]


def test_the_values_of_a_device_are_waited_for_once():
    with FakeTensorMode(), Counting() as counting, pytest.raises(Exception, match="_local_scalar_dense"):
        _are_zero([torch.empty(4, 4, device="cuda") for _ in range(5)])
    assert sum("any" in name for name in counting.counts.operations) == 5  # all of them before the first wait


class Adapted(nn.Module):
    """A frozen linear layer with an adapter as peft makes them, and DoRA's magnitudes."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(4, 6).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 6, bias=False)})
        self.lora_embedding_A = nn.ParameterDict({"default": torch.randn(2, 4)})
        self.lora_magnitude_vector = nn.ParameterDict({"default": torch.ones(1, 6)})


class Loralib(nn.Linear):
    """A linear layer that is an adapter itself."""

    def __init__(self):
        super().__init__(4, 4)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))


def test_adapters_are_left_alone_unless_they_are_asked_for():
    model = nn.ModuleDict({"q": Adapted(), "v": Loralib(), "head": nn.Linear(4, 2)})
    selection = pbwn.select(model, strict=True)  # what is an adapter is not unknown
    assert names(selection) == ["v.weight"]
    adapters = [name for name, reason in reasons(selection).items() if reason.startswith("adapter")]
    assert adapters == [
        "q.lora_A.default.weight",
        "q.lora_B.default.weight",
        "q.lora_embedding_A.default",
        "q.lora_magnitude_vector.default",
        "v.lora_A",
        "v.lora_B",
    ]
    assert names(pbwn.select(model, also=["*.lora_A.default"])) == ["q.lora_A.default.weight", "v.weight"]


@pytest.mark.parametrize("kind", ["DELORA", "GRALORA", "HIRA", "HRA", "LILY", "LOHA", "MISS", "PEANUT", "RANDLORA"])
def test_the_adapters_of_peft_are_known_by_their_names(kind):
    peft = pytest.importorskip("peft")
    kinds = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING
    if kind not in kinds:
        pytest.skip(f"peft {peft.__version__} has no {kind}")
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    adapted = peft.get_peft_model(model, kinds[kind](target_modules=["0"], r=4))
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    why = reasons(pbwn.select(adapted, strict=True))
    assert trained <= set(why)
    assert any(why[name].startswith("adapter") for name in trained)


# Parameters of a module of an unknown type: their names and shapes, and whether they are weights.
PARAMETERS = [
    ("cls_token", (1, 1, 8), False),
    ("pos_embed", (1, 16, 8), False),
    ("pos", (16, 8), False),
    ("pe", (1, 16, 8), False),
    ("wpe", (16, 8), False),
    ("prompt", (4, 8), False),
    ("position_embeddings", (16, 8), False),
    ("relative_position_bias_table", (49, 4), False),
    ("rel_pos_h", (13, 8), False),
    ("register_tokens", (1, 4, 8), False),
    ("gamma", (8, 1, 1), False),
    ("layer_scale_1", (1, 8), False),
    ("A_log", (8, 4), False),
    ("anything", (1, 8, 1, 1), False),
    ("weight", (8, 4), True),
    ("kernel", (1, 8), True),
    ("query", (8, 8), True),
    ("position_proj", (8, 8), True),
    ("experts", (1, 8, 4), True),
]


@pytest.mark.parametrize(("name", "shape", "is_weight"), PARAMETERS)
def test_strict_trips_on_weights_alone(name, shape, is_weight):
    model = nn.ModuleDict({"custom": nn.Module(), "head": nn.Linear(4, 2)})
    model["custom"].register_parameter(name, nn.Parameter(torch.randn(shape)))
    model["list"] = nn.ParameterDict({name: nn.Parameter(torch.randn(shape))})
    if is_weight:
        with pytest.raises(ValueError, match=rf"the axes of 2 weights are unknown: custom\.{name}"):
            pbwn.select(model, strict=True)
    else:
        assert not pbwn.select(model, strict=True).unknown


class WithUnknown(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.custom = nn.ModuleList(nn.Module() for _ in range(count))
        for module in self.custom:
            module.kernel = nn.Parameter(torch.randn(3, 4))


@pytest.mark.filterwarnings("error")
def test_weights_of_unknown_axes_are_warned_of_once_with_the_line_to_write():
    with pytest.warns(UserWarning, match=r"WithUnknown: 8 weights .* unknown: 'custom\.\{0\.\.7\}\.kernel'") as caught:
        pbwn.select(WithUnknown(8))
    [warning] = caught
    assert "axes={'custom.{0..7}.kernel': (0,)} if it is stored (out, in)" in str(warning.message)
    assert warning.filename == __file__
    model = WithUnknown(8)
    pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))  # of the same type and names: not again
    assert len(names(pbwn.select(model, axes={"custom.{0..7}.kernel": (0,)}))) == 9
    with pytest.warns(UserWarning, match="'custom.0.kernel'"):
        pbwn.select(WithUnknown(1))
    pbwn.select(WithUnknown(2), skip=["custom"])  # on purpose
    stack = nn.Module()
    stack.w1 = nn.Parameter(torch.randn(4, 8, 6))
    with pytest.warns(UserWarning, match=r"axes=\{'w1': \(0, 1\)\} if it is stored \(expert, out, in\)"):
        pbwn.select(stack)


def test_the_summary_tells_unknown_from_on_purpose_in_elements_and_percent():
    selection = pbwn.select(WithUnknown(2))
    assert selection.summary == (
        "1 weight constrained (4 neurons, 16 elements, 30 % of the parameters)",
        "2 weights left alone because their axes are unknown (24 elements, 44 %)",
        "3 other parameters left alone (14 elements, 26 %)",
    )
    assert str(selection).splitlines()[:4] == [*selection.summary, "output layer: 'head' (by its name)"]
    assert repr(selection) == (
        "<Selection: 1 weight constrained (30 % of the parameters), 2 of unknown axes (44 %), "
        "output layer: 'head' (by its name)>"
    )


def test_a_notebook_shows_tables():
    model = WithUnknown(2)
    model.add_module("<b>", nn.Linear(4, 4))
    html = pbwn.select(model)._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 2
    assert "<td>custom.{0, 1}.kernel</td>" in html
    assert "<td>&lt;b&gt;.weight</td>" in html
    assert "2 weights left alone because their axes are unknown" in html


def test_a_table_of_a_deep_model_fits_a_screen():
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    printed = str(pbwn.select(model)).splitlines()
    assert len(printed) < 25
    assert max(map(len, printed)) <= 88


def test_a_table_of_a_recurrent_model_fits_a_screen():
    model = nn.ModuleDict({"lstm": nn.LSTM(16, 32, num_layers=4, bidirectional=True), "head": nn.Linear(64, 5)})
    printed = str(pbwn.select(model)).splitlines()
    assert "lstm.weight_hh_l{0..3}_reverse  LSTM   128x32      128      32  (0,)" in printed
    assert "lstm.{bias_ih_l0, bias_hh_l0, 14 more}  LSTM    128    bias" in printed
    assert max(map(len, printed)) <= 80


def test_what_is_left_of_many_frozen_layers_is_told_in_few_words():
    models = (
        nn.Sequential(*(nn.Linear(4, 4) for _ in range(500))),
        nn.ModuleDict({f"layer_{index}": nn.Linear(4, 4) for index in range(500)} | {"head": nn.Linear(4, 2)}),
    )
    for model in models:
        model.requires_grad_(False)
        with pytest.raises(ValueError, match="nothing to constrain") as refused:
            pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert len(str(refused.value)) < 2000
    assert "... and 982 more rows" in str(refused.value)


FOLDED = [
    (["a.0.w", "a.1.w", "a.2.w"], ["a.{0..2}.w"]),
    (["a.0", "b.0", "a.1", "b.1"], ["a.{0, 1}", "b.{0, 1}"]),
    (["a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"], ["a.{0, 1}.b.{0, 1}"]),
    (["a.0.b.0", "a.0.b.1", "a.1.b.0"], ["a.0.b.{0, 1}", "a.1.b.0"]),
    (["0", "1", "2", "5", "7", "8"], ["{0..2, 5, 7, 8}"]),
    (["conv1.w", "conv2.w"], ["conv1.w", "conv2.w"]),
    (["w_l0", "w_l0_reverse", "w_l1", "w_l1_reverse"], ["w_l{0, 1}", "w_l{0, 1}_reverse"]),
    (["same", "same"], ["same"]),
    ([], []),
]


@pytest.mark.parametrize(("given", "expected"), FOLDED)
def test_names_that_differ_in_an_index_are_one(given, expected):
    assert folded(given) == expected
    for name in given:  # and what is shown matches what it stands for
        assert sum(matches(pattern, name) for pattern in expected) == 1


def sharded_class(layer):
    """As fully_shard makes it: a class of its own for each layer."""
    return type(f"FSDP{type(layer).__name__}", (type("FSDPModule", (), {}), type(layer)), {})


def test_the_names_of_torch_s_own_classes_do_not_show():
    layer = nn.Linear(4, 4)
    layer.__class__ = sharded_class(layer)
    weight_normed = parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(layer, weight_normed, nn.MultiheadAttention(4, 2), nn.Linear(4, 2))
    shown = {row.name: row.layer for row in (*pbwn.select(model).constrained, *pbwn.select(model).left_alone)}
    assert shown["0.weight"] == shown["1.bias"] == shown["2.out_proj.weight"] == "Linear"
    assert "NonDynamicallyQuantizable" not in str(pbwn.select(model))


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([nn.Linear(4, 4)]), nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("wishes", "is_missed"),
    [
        ({}, True),
        ({"only": ["blocks"]}, True),
        ({"only": ["head"]}, False),
        ({"skip": ["blocks"], "output_layer": None}, False),
    ],
)
def test_a_layer_that_is_put_in_later_is_judged_by_what_was_asked_for(wishes, is_missed):
    model = Growing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, **wishes)
    model.blocks.append(nn.Linear(4, 4))
    optimizer.add_param_group({"params": model.blocks[1].parameters()})
    assert projection.check().unconstrained == (("blocks.1.weight",) if is_missed else ())


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("place", ["a layer's weight", "a module of its own"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_parameter_is_left_alone_with_the_reason(place, layout):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2))
    model.extra = nn.Module()
    nested = nn.Parameter(torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=layout))
    setattr(*((model[2], "weight") if place == "a layer's weight" else (model.extra, "thing")), nested)
    selection = pbwn.select(model)
    [left] = [left for left in selection.left_alone if "nested" in str(left.reason)]
    assert left.name == ("2.weight" if place == "a layer's weight" else "extra.thing")
    assert "nested" in str(selection)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert pbwn.attach(model, optimizer).check().ok


class Wrapping(torch.Tensor):
    """Has its values in another tensor, as quantized weights do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=True)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        found = func(*(each.inner if isinstance(each, cls) else each for each in args), **(kwargs or {}))
        return cls(found) if isinstance(found, torch.Tensor) else found


def test_a_weight_that_wraps_another_tensor_is_left_alone_with_the_reason():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2))
    model[0].weight = nn.Parameter(Wrapping(model[0].weight.detach()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer)
    assert [weight.name for weight in projection.selection.constrained] == ["2.weight"]
    assert "a Wrapping, which wraps other tensors, is not supported" in str(projection)
    with pytest.raises(ValueError, match=r"axes=\{'0\.weight': .* a Wrapping, which wraps other tensors"):
        pbwn.select(model, axes={"0.weight": (0,)})


def test_modules_that_share_modules_that_share_modules_are_named_in_time():
    class Dense(nn.Module):
        def __init__(self, earlier):
            super().__init__()
            self.linear, self.earlier = nn.Linear(4, 4), nn.ModuleList(earlier)

    layers = []
    for _ in range(40):  # the first has 2 ** 39 names
        layers.append(Dense(layers))
    selection = pbwn.select(nn.Sequential(*layers, nn.Linear(4, 2)))
    assert [weight.name for weight in selection.constrained] == [f"{index}.linear.weight" for index in range(40)]
