"""What the certificate says, in numbers and in words."""

import pytest
import torch
from torch import nn

import pbwn


@pytest.fixture
def attach():
    """Attach to an optimizer that lives as long as the test does."""
    optimizers = []

    def attach(model, **options):
        optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
        return pbwn.attach(model, optimizers[-1], **options)

    return attach


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2))


def test_all_is_well(attach, model):
    projection = attach(model)
    certificate = projection.check()
    assert certificate.ok
    assert certificate.hooks_in_place
    assert certificate.largest_deviation < 2e-6
    assert certificate.dead == certificate.nonfinite == {}
    assert str(certificate).startswith("ok: largest deviation ")
    assert str(certificate).endswith("over 2 weights, 0 dead and 0 broken rows")


def test_dead_and_broken_rows_are_named_by_layer_and_index(attach, model):
    projection = attach(model)
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].weight[4] = 0
        model[1].weight[2, 3] = float("nan")
    certificate = projection.check()
    assert not certificate.ok
    assert certificate.dead == {"0.weight": (1, 4)}
    assert certificate.nonfinite == {"1.weight": (2,)}
    assert certificate.largest_deviation < 2e-6
    first, second, measured = str(certificate).splitlines()  # the problems come first
    assert first == "NOT ok: 0.weight: 2 rows (1, 4) are zero and cannot be projected"
    assert second == "- 1.weight: row 2 is not finite"
    assert measured.startswith("- largest deviation ")
    assert repr(certificate) == f"<Certificate: {first}>"


def test_weights_that_left_the_sphere_are_named_with_their_distance(attach, model):
    projection = attach(model)
    with torch.no_grad():
        model[1].weight[5] *= 1.25
    certificate = projection.check()
    assert not certificate.ok
    assert certificate.largest_deviation == pytest.approx(0.25, abs=1e-6)
    assert str(certificate).startswith("NOT ok: 1.weight: off by 2.5e-01, more than rounding allows (1e-05)\n")


def test_the_deviation_is_relative_to_the_radius(attach, model):
    projection = attach(model, constraint=pbwn.UnitNorm(4.0))
    with torch.no_grad():
        model[1].weight[5] *= 1.25
    assert projection.check().largest_deviation == pytest.approx(0.25, abs=1e-6)


def test_a_zero_row_is_no_problem_for_the_ball(attach, model):
    projection = attach(model, constraint=pbwn.MaxNorm(1.0))
    with torch.no_grad():
        model[0].weight[1] = 0
    assert projection.check().ok
    assert projection.check().dead == {"0.weight": (1,)}


def test_the_padding_row_of_an_embedding_is_not_dead(attach):
    model = nn.Sequential(nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 2))
    projection = attach(model, also=["0"])
    assert projection.check().ok
    assert not model[0].weight[0].any()


def test_rows_indexed_by_several_axes_are_named_by_all_of_them(attach):
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2), nn.Conv2d(6, 2, 1))
    projection = attach(model)
    with torch.no_grad():
        model[0].weight[2:, 1] = 0
    assert projection.check().dead == {"0.weight": ((1, 1),)}


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 8e-3)],
)
def test_the_tolerance_is_that_of_the_dtype(attach, dtype, tolerance):
    model = nn.Sequential(nn.Linear(400, 60), nn.Linear(60, 2)).to(dtype)
    projection = attach(model)
    [report] = projection.check().weights
    assert report.tolerance == tolerance
    assert report.deviation < tolerance
    with torch.no_grad():
        model[0].weight[0] *= 1 + 4 * tolerance
    assert not projection.check().ok


def test_only_the_weights_of_an_optimizer_in_the_middle_of_its_interval_are_excused(model):
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[1].parameters(), lr=0.1)
    projection = pbwn.attach(model, [first, second], every=2)
    model(torch.randn(3, 4)).sum().backward()
    first.step()
    assert projection.check().ok
    with torch.no_grad():
        model[1].weight.mul_(3)
    certificate = projection.check()
    assert not certificate.ok
    assert [report.between_projections for report in certificate.weights] == [True, False]


def test_an_optimizer_without_constrained_weights_excuses_nothing(model):
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[:2], model[2])]
    projection = pbwn.attach(model, optimizers, initial=False)
    model(torch.randn(3, 4)).sum().backward()
    optimizers[0].step()
    assert projection.check().ok
    with torch.no_grad():
        model[0].weight.mul_(3)
    assert not projection.check().ok


def test_the_padding_row_of_a_tied_embedding_is_found_under_its_other_name(attach):
    model = nn.ModuleDict({"decoder": nn.Linear(4, 5), "embedding": nn.Embedding(5, 4, padding_idx=0)})
    model["decoder"].weight = model["embedding"].weight
    assert attach(model, also=["embedding"]).check().ok


@pytest.mark.parametrize("padding", [1, 50])
def test_a_padding_row_excuses_no_column(attach, padding):
    model = nn.Sequential(nn.Embedding(100, 8, padding_idx=padding), nn.Linear(8, 2))
    projection = attach(model, axes={"0.weight": (1,)})
    assert projection.check().ok
    with torch.no_grad():
        model[0].weight[:, 1] *= 2
    assert not projection.check().ok


def test_a_layer_that_was_replaced_in_the_model_is_named(attach, model):
    projection = attach(model)
    model[1] = nn.Linear(6, 6)
    certificate = projection.check()
    assert not certificate.ok
    assert "1.weight: its layer is no longer part of the model: make sure that an optimizer holds" in str(certificate)
    assert "0.weight" not in str(certificate)


def test_a_layer_that_was_wrapped_in_the_model_is_still_part_of_it(attach, model):
    projection = attach(model)
    model[1] = nn.Sequential(nn.Identity(), model[1])
    assert projection.check().ok


def test_a_new_layer_that_took_over_the_weight_is_still_watched(attach, model):
    projection = attach(model)
    model[1], weight = nn.Linear(6, 6), model[1].weight
    model[1].weight = weight
    assert projection.check().ok


def test_weights_without_values_are_named(attach, model):
    projection = attach(model)
    model.to("meta")
    with pytest.raises(ValueError, match=r"'0\.weight' is on the meta device"):
        projection.check()


def test_neurons_that_have_no_radius_are_named_and_not_measured(attach, model):
    projection = attach(model, constraint=pbwn.UnitNorm("initial"))
    model[1].weight.data = torch.randn(7, 6)
    with pytest.raises(RuntimeError, match=r"weight '1\.weight' has neurons of shape \(7,\).*\(6,\)"):
        projection.check()


def test_a_notebook_shows_tables_of_what_is_constrained_and_how_far_off_it_is():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)], nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer)
    with torch.no_grad():
        model[1].weight[2] = 0
        model[1].weight[3] *= 1.5
    shown, found = projection._repr_html_(), projection.check()._repr_html_()
    assert "<td>{0..2}.weight</td>" in shown
    assert shown.startswith("<p>UnitNorm(radius=1.0), projected after every step")
    assert repr(projection).startswith("<NormProjection: 3 weights, ")
    assert "<td>{0, 2}.weight</td>" in found
    assert "<td>1.weight</td>" in found
    assert "5.0e-01" in found
