"""The methods on the paper's networks: which layers, when first, and what of the model stays."""

import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

import pbwn
from pbwn_repro import models
from pbwn_repro.config import SGD, AdamW
from pbwn_repro.errors import UsageError
from pbwn_repro.methods import check_name, method, names, title

ONLY_MATRICES = ("path-sgd", "geoopt-rsgd")
ALL = [*(name for name in names() if name not in ONLY_MATRICES), "pbwn-t20", "max-norm-0.5"]
ON_THE_SPHERE = (
    *("pbwn", "pbwn-riem", "pbwn-riem-nxn", "pbwn-tangent", "pbwn-angle"),
    *("sgd-g", "sgd-g-unclipped", "adam-g", "own"),
)
WITHOUT_PROJECTION = ("normal", "unit-start", "wn", "decay", "own", "sgd-g", "sgd-g-unclipped", "adam-g")


def small(network):
    tiny = {"image_size": 8, "hidden_sizes": (12, 8), "denoising_weights": (1000.0, 10.0, 0.1)}
    return models.build(network, **(tiny if network == "ladder" else {}))


def attached(name, network, scope="paper"):
    torch.manual_seed(0)
    model, found = small(network), models.find(network)
    chosen, layers = method(name), found.layers(scope)
    chosen.prepare(model, layers)
    optimizer = chosen.optimizer(model, SGD(lr=0.1, momentum=0.0), layers)
    return model, optimizer, chosen.attach(model, optimizer, layers, initial=found.projects_initially(name))


def constrained(projection):
    return {weight.name for weight in projection.selection.constrained}


def test_the_mlp_is_constrained_throughout():
    model, _, projection = attached("pbwn", "mlp")
    assert constrained(projection) == {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }


@pytest.mark.parametrize("network", ["resnet-20", "wrn-16-4", "vgg-e", "inception", "imagenet-resnet-18"])
def test_all_convolutions_of_a_cnn_are_constrained_and_its_classifier_is_not(network):
    model, _, projection = attached("pbwn", network)
    convolutions = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    assert constrained(projection) == convolutions
    assert len(convolutions) > 10


def test_the_ladder_is_constrained_in_encoder_and_decoder_but_not_at_its_output():
    model, _, projection = attached("pbwn", "ladder")
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert constrained(projection) == linear - {"classifier.weight"}
    assert any(name.startswith("decoder.") for name in constrained(projection))


def test_the_authors_file_for_svhn_constrains_the_first_convolution_alone():
    _, _, projection = attached("pbwn-epoch", "wrn-16-4", scope="authors")
    assert constrained(projection) == {"conv.weight"}


@pytest.mark.parametrize(
    ("name", "network", "initially"),
    [
        ("pbwn", "mlp", True),
        ("pbwn-riem", "mlp", False),
        ("pbwn-t20", "mlp", False),
        ("pbwn", "resnet-20", True),
        ("pbwn-riem", "resnet-20", True),
        ("pbwn-epoch", "resnet-20", False),
        ("pbwn", "ladder", True),
    ],
)
def test_the_first_projection_comes_when_the_authors_have_it(name, network, initially):
    _, _, projection = attached(name, network)
    assert (projection.check().largest_deviation < 1e-5) is initially


@pytest.mark.parametrize("name", ALL)
def test_a_step_of_each_method_leaves_its_weights_where_it_promises(name):
    model, optimizer, projection = attached(name, "resnet-20")
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    optimizer.step()
    norms = model.conv.weight.detach().flatten(1).norm(dim=1)
    deviation = float((norms - 1).abs().max())
    if name in ON_THE_SPHERE:
        assert deviation < 1e-5
    elif name == "max-norm-0.5":  # most rows of He's start are longer
        assert float(norms.max()) == pytest.approx(0.5, abs=1e-5)
    elif name != "wn":  # behind batch normalisation the scale of WN gets no gradient and stays at 1
        assert deviation > 1e-5
    assert (projection is None) is (name in WITHOUT_PROJECTION)
    if method(name).projects_after_each_epoch:
        projection.project()
        assert projection.check().largest_deviation < 1e-5


def test_weight_normalization_starts_with_its_scale_at_one():
    model, _, projection = attached("wn", "resnet-20")
    assert projection is None
    wrapped = [module for module in model.modules() if parametrize.is_parametrized(module)]
    assert len(wrapped) == 19
    assert not parametrize.is_parametrized(model.classifier)
    for module in wrapped:
        torch.testing.assert_close(module.weight.flatten(1).norm(dim=1), torch.ones(len(module.weight)))
        assert module.parametrizations.weight.original0.shape == (len(module.weight), 1, 1, 1)


def test_normal_and_pbwn_start_from_the_same_weights():
    normal, _, _ = attached("normal", "resnet-20")
    projected, _, _ = attached("pbwn", "resnet-20")
    pbwn.project_(normal, **models.find("resnet-20").layers())
    for (name, one), other in zip(normal.named_parameters(), projected.parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


@pytest.mark.parametrize("network", ["mlp", "resnet-20"])
def test_unit_start_is_normal_training_from_projected_weights(network):
    runs = []
    for name in ("unit-start", "normal"):
        model, optimizer, projection = attached(name, network)
        if name == "normal":
            pbwn.project_(model, **models.find(network).layers())
        for _ in range(2):
            batch = torch.linspace(-1, 1, 2 * 3 * 32 * 32 if network != "mlp" else 2 * 32 * 32).view(2, -1, 32, 32)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        assert projection is None
        runs.append(dict(model.named_parameters()))
    for name, weight in runs[0].items():
        assert torch.equal(weight, runs[1][name]), name


@pytest.mark.parametrize("network", ["mlp", "resnet-20"])
def test_the_n_by_n_form_of_the_riemannian_gradient_is_the_same_gradient(network):
    steps, products = [], []
    for name in ("pbwn-riem", "pbwn-riem-nxn"):
        model, optimizer, _ = attached(name, network)
        model.to(memory_format=torch.channels_last)
        batch = torch.linspace(-1, 1, 2 * 3 * 32 * 32 if network != "mlp" else 2 * 32 * 32).view(2, -1, 32, 32)
        model(batch).square().mean().backward()
        with FlopCounterMode(display=False) as counter:
            optimizer.step()
        products.append(counter.get_total_flops())
        steps.append({name: weight.grad for name, weight in model.named_parameters()})
        shapes = [weight.tensor.shape for weight in pbwn.select(model, **models.find(network).layers()).constrained]
    for name, gradient in steps[0].items():
        torch.testing.assert_close(gradient, steps[1][name], rtol=1e-4, atol=1e-6, msg=name)
    assert products == [0, sum(4 * shape[0] ** 2 * shape[1:].numel() for shape in shapes)]


@pytest.mark.parametrize(("name", "limit"), [("max-norm", 3.0), ("max-norm-2", 2.0), ("max-norm-0.5", 0.5)])
def test_max_norm_bounds_the_weights(name, limit):
    _, _, projection = attached(name, "resnet-20")
    assert projection.constraint == pbwn.MaxNorm(limit)


def norm_of_first_convolution(network, name, init):
    torch.manual_seed(0)
    model = models.build(network, **models.find(network).start(name, init))
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    return float(first.weight.detach().flatten(1).norm(dim=1).mean()), first.bias is not None


def test_all_methods_start_alike_unless_the_authors_start_is_asked_for():
    for network in ("resnet-20", "vgg-e"):
        assert len({norm_of_first_convolution(network, name, "paper") for name in ALL}) == 1


def test_the_authors_start_differs_by_method_as_in_their_code():
    he, without_bias = norm_of_first_convolution("resnet-20", "normal", "authors")
    uniform, with_bias = norm_of_first_convolution("resnet-20", "pbwn", "authors")
    assert uniform == pytest.approx(3**-0.5, rel=0.05)
    assert he > uniform
    assert (without_bias, with_bias) == (False, True)
    assert norm_of_first_convolution("vgg-e", "wn", "authors")[0] == pytest.approx(3**-0.5, rel=0.05)
    for name in ("normal", "pbwn-epoch"):
        assert norm_of_first_convolution("vgg-e", name, "authors")[0] == pytest.approx((2 * 3 / 64) ** 0.5, rel=0.05)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "pbnw",
            r"unknown method 'pbnw': did you mean 'pbwn'\? Choose from normal, .*, pbwn-t<k> .* max-norm-<c>",
        ),
        ("pbwn-t0", "unknown method 'pbwn-t0'"),
        ("max-norm-0", "unknown method 'max-norm-0'"),
        ("adam", "Choose from normal"),
    ],
)
def test_an_unknown_method_lists_what_there_is(name, words):
    with pytest.raises(UsageError, match=words):
        method(name)


OWN_MODULE = '''
import torch
from pbwn_repro.methods import Method, UnitStart

class RowSGD(torch.optim.SGD):
    """An optimizer that constrains by itself."""
    def __init__(self, free, rows, lr):
        super().__init__([{"params": free}, {"params": rows}], lr=lr)
    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for row in self.param_groups[1]["params"]:
                row.div_(row.flatten(1).norm(dim=1).view(-1, *[1] * (row.ndim - 1)))

class OwnOptimizer(Method):
    def optimizer(self, model, settings, layers):
        import pbwn
        rows = [weight.tensor for weight in pbwn.select(model, **layers).constrained]
        free = [each for each in model.parameters() if all(each is not row for row in rows)]
        return RowSGD(free, rows, settings.lr)

ready = UnitStart("Ready made")
number = 3

class Demanding(Method):
    def __init__(self, amount):
        super().__init__()
'''


@pytest.fixture
def _own_module(tmp_path, monkeypatch):
    (tmp_path / "own_methods.py").write_text(OWN_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # puts sys.path back afterwards
    yield
    sys.modules.pop("own_methods", None)


@pytest.mark.usefixtures("_own_module")
def test_a_method_of_the_user_s_that_is_its_own_optimizer_is_one_class():
    name = "own_methods:OwnOptimizer"
    model, optimizer, projection = attached(name, "resnet-20")
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    optimizer.step()
    assert projection is None
    for weight in pbwn.select(model, **models.find("resnet-20").layers()).constrained:
        torch.testing.assert_close(weight.tensor.flatten(1).norm(dim=1), torch.ones(len(weight.tensor)))
    assert method(name).title == title(name) == "OwnOptimizer"
    assert method("own_methods:ready").title == "Ready made"


@pytest.mark.usefixtures("_own_module")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_methods:OwnOptimiser", "module 'own_methods' has no 'OwnOptimiser': did you mean 'OwnOptimizer'"),
        (
            "own_methds:OwnOptimizer",
            "no module named 'own_methds': install it, or run from the folder",
        ),
        ("own_methods:", "does not name a method: write MODULE:CLASS"),
        ("own_methods:number", "is 3: a class derived from pbwn_repro.methods.Method"),
        ("own_methods:RowSGD", "a class derived from pbwn_repro.methods.Method"),
        ("own_methods:Demanding", r"own_methods:Demanding\(\) failed with TypeError"),
    ],
)
def test_a_method_that_cannot_be_had_says_what_to_do(name, words):
    check_name(name)  # a configuration that names it can be read wherever it is
    with pytest.raises(UsageError, match=words):
        method(name)


@pytest.mark.parametrize("name", ["pbwn-angle", "pbwn-angle-matrix"])
def test_steps_by_angle_spare_the_constrained_weights_the_decay_and_no_others(name):
    model, found = models.build("char-gpt", width=16, depth=1), models.find("char-gpt")
    chosen, layers = method(name), found.layers("paper")
    optimizer = chosen.optimizer(model, AdamW(lr=0.01, weight_decay=0.1), layers)
    names_of = {id(parameter): key for key, parameter in model.named_parameters()}
    decayed = {
        names_of[id(each)] for group in optimizer.param_groups if group["weight_decay"] for each in group["params"]
    }
    assert decayed == {"characters.weight", "places.weight", "head.weight"}
    assert sorted(map(id, model.parameters())) == sorted(
        id(each) for g in optimizer.param_groups for each in g["params"]
    )
    projection = chosen.attach(model, optimizer, layers)  # which would warn of a decay
    assert constrained(projection) == {key for key, each in model.named_parameters() if each.ndim > 1} - decayed


STEP_RULES = {"pbwn": "plain", "pbwn-tangent": "tangent", "pbwn-angle": "angle", "pbwn-angle-matrix": "angle"}


@pytest.mark.parametrize("name", STEP_RULES)
def test_a_method_has_the_step_rule_of_its_name(name):
    model, _, projection = attached(name, "mlp")
    assert projection.step == STEP_RULES[name]
    rows = next(each for each in model.parameters() if each.ndim > 1).detach().norm(dim=1)
    assert (float(rows.std()) > 1e-4) == name.endswith("-matrix")  # a matrix has one norm, its rows have each their own


def test_where_batch_normalisation_follows_every_convolution_wn_is_normal():
    """The note on tables 2 to 4 says so; the epsilon of the normalisation is what tells the two apart."""
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def losses(name):
        torch.manual_seed(0)
        model, found = models.build("resnet-20").double(), models.find("resnet-20")
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-12
        chosen, layers = method(name), found.layers("paper")
        chosen.prepare(model, layers)
        optimizer = chosen.optimizer(model, SGD(lr=0.1, momentum=0.9, weight_decay=1e-4), layers)
        seen = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), torch.arange(8))
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    assert losses("wn") == pytest.approx(losses("normal"), abs=1e-9)


def test_pbwn_epoch_evaluated_before_or_after_its_projection_gives_the_same_error():
    torch.manual_seed(3)
    model, epoch = models.build("resnet-8", image_size=8), method("pbwn-epoch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    projection = epoch.attach(model, optimizer, {"output_layer": "classifier"}, initial=False)
    x, y = torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,))
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    before = model.eval()(x).detach()
    epoch.after_epoch(projection)
    after = model(x).detach()
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    assert torch.equal(after.argmax(1), before.argmax(1))
