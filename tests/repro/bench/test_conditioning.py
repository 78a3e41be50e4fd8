"""The spectrum of real networks, against whole Hessians of small ones, and the artefact that is made of it."""

import copy
import json
import math

import pytest
import torch
from torch import nn

import pbwn
from pbwn_repro.bench.conditioning import largest, spectrum
from pbwn_repro.bench.measuring import folder_of, measure
from pbwn_repro.catalog import SCALES, find
from pbwn_repro.planning import measuring_job
from pbwn_repro.report.measured import measured_section
from pbwn_repro.runs.estimates import Speeds

TINY = {
    "networks": {"mlp": {"data": "digits", "steps": 2, "batch_size": 16}},
    "methods": ["normal", "wn", "pbwn"],
    "seeds": 1,
    "moments": [0.0, 0.5, 1.0],
    "examples": {"mlp": 20},
    "top": 2,
    "tolerance": 0.3,
}


def small_network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).double()


def whole_hessian(model, x, y, step=1e-5):
    """By differences of gradients."""
    parameters = list(model.parameters())
    point = nn.utils.parameters_to_vector(parameters).detach().clone()

    def gradient(vector):
        nn.utils.vector_to_parameters(vector, parameters)
        found = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), parameters)
        return nn.utils.parameters_to_vector(found)

    steps = step * torch.eye(len(point), dtype=point.dtype)
    rows = torch.stack([(gradient(point + each) - gradient(point - each)) / (2 * step) for each in steps])
    nn.utils.vector_to_parameters(point, parameters)
    return (rows + rows.T) / 2


def test_the_eigenvalues_are_those_of_the_whole_hessian_and_the_model_is_left_alone():
    model, x, y = small_network().eval(), torch.randn(16, 3, dtype=torch.float64), torch.randint(0, 3, (16,))
    weights = pbwn.select(model).constrained
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = spectrum(model, x, y, weights, top=3, tolerance=1e-10)
    assert not model.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    gradient = torch.autograd.grad(nn.functional.cross_entropy(model.train()(x), y), model[0].weight)[0]
    whole = whole_hessian(model, x, y)
    assert found["eigenvalues"] == pytest.approx(torch.linalg.eigvalsh(whole).flip(0)[:3].tolist(), rel=1e-6)
    directions = torch.eye(len(whole), dtype=torch.float64)
    rows = model[0].weight.detach()
    for neuron, row in enumerate(rows):  # of the first weight, which comes first
        place = slice(3 * neuron, 3 * neuron + 3)
        directions[place, place] -= torch.outer(row, row) / row.square().sum()
    tangent = torch.linalg.eigvalsh(directions @ whole @ directions).flip(0)[:3]
    assert found["tangent_eigenvalues"] == pytest.approx(tangent.tolist(), rel=1e-6)
    assert found["gradient_norms"]["0.weight"] == pytest.approx(float(gradient.norm()))
    assert found["gradient_norms"].keys() == {"0.weight", "3.weight"}


def test_reparametrized_weights_are_looked_at_over_their_own_parameters_and_as_weights():
    plain, x, y = small_network(), torch.randn(16, 3, dtype=torch.float64), torch.randint(0, 3, (16,))
    model = copy.deepcopy(plain)
    nn.utils.parametrizations.weight_norm(model[0], "weight")
    with torch.no_grad():
        model[0].parametrizations.weight.original1.mul_(2)  # which leaves the weights as they are
    found = spectrum(model, x, y, top=3, tolerance=1e-10)
    proxies = torch.linalg.eigvalsh(whole_hessian(model, x, y)).flip(0)[:3]
    weights = torch.linalg.eigvalsh(whole_hessian(plain, x, y)).flip(0)[:3]
    assert found["eigenvalues"] == pytest.approx(proxies.tolist(), rel=1e-6)
    assert found["weight_eigenvalues"] == pytest.approx(weights.tolist(), rel=1e-6)
    assert abs(proxies[0] - weights[0]) > 1e-3  # the two are not the same
    assert nn.utils.parametrize.is_parametrized(model[0])


def test_the_largest_eigenvalues_of_an_operator_come_largest_first():
    values = torch.linspace(-5, 3, 40, dtype=torch.float64)
    found = largest(lambda vector: values * vector, 40, torch.float64, 3, 1e-10)
    assert found == pytest.approx(values.flip(0)[:3].tolist())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    root = tmp_path_factory.mktemp("conditioning")
    folder = folder_of(root, "conditioning", "smoke", "conditioning", TINY)
    return root, folder, measure("conditioning", TINY, folder)


def test_each_method_is_looked_at_at_the_start_in_the_middle_and_at_the_end(measured):
    _, folder, result = measured
    runs = result["networks"]["mlp"]["methods"]
    assert [[each["step"] for each in seeds[0]] for seeds in runs.values()] == [[0, 1, 2]] * 3
    assert all(each["eigenvalues"] for seeds in runs.values() for each in seeds[0])
    assert all(("tangent_eigenvalues" in seeds[0][0]) == (name == "pbwn") for name, seeds in runs.items())
    assert all(("weight_eigenvalues" in seeds[0][0]) == (name == "wn") for name, seeds in runs.items())
    assert len(list((folder.path / "parts").glob("*.json"))) == 3


def test_the_report_has_a_table_curves_and_a_verdict_on_each_comparison(measured, monkeypatch):
    root, _, result = measured
    artefact = find("conditioning")
    monkeypatch.setattr(type(artefact), "options", property(lambda self: lambda scale: TINY))
    section, left_out = measured_section(artefact, "smoke", root)
    assert not left_out
    assert len(section.table.columns) == 3  # what stands at the end; the curves have all moments
    assert len(section.plots) == 3
    assert [verdict.outcome for verdict in section.verdicts] == ["undecided"] * 5
    assert [row.title for row in section.table.rows] == ["Normal", "WN", "WN, its weights", "PBWN"]
    largest_column = section.table.columns[0]
    runs = result["networks"]["mlp"]["methods"]
    assert section.table.cells["pbwn", largest_column].ours.mean == runs["pbwn"][0][-1]["tangent_eigenvalues"][0]
    own = runs["wn"][0][-1]["weight_eigenvalues"][0]
    assert section.table.cells["wn-weights", largest_column].ours.mean == own
    last = runs["normal"][0][-1]["gradient_norms"].values()
    [column] = [each for each in section.table.columns if each.metric == "gradients"]
    assert math.isclose(section.table.cells["normal", column].ours.mean, max(last) / min(last))
    proxies = runs["wn"][0][-1]["gradient_norms"]
    assert len(proxies) == 2 * len(last)  # a direction and a scale for each weight, which are one layer's gradient
    layers = [math.hypot(*pair) for pair in zip(*[iter(proxies.values())] * 2, strict=True)]
    assert math.isclose(section.table.cells["wn", column].ours.mean, max(layers) / min(layers))
    assert section.table.cells["wn-weights", column].ours is None


def test_the_protocol_is_plain_json_at_every_scale():
    for scale in SCALES:
        options = find("conditioning").options(scale)
        assert json.loads(json.dumps(options)) == options


def test_a_measurement_without_times_may_have_others_run_beside_it(tmp_path):
    speeds = Speeds(tmp_path, tmp_path)
    alone = {name: measuring_job(find(name), "smoke", tmp_path, speeds).alone for name in ("conditioning", "table-5")}
    assert alone == {"conditioning": False, "table-5": True}
