"""The counts of section 3.3: 6mnp for a layer's step, 3np/T for the projection, 6np for the Riemannian method."""

import pytest
import torch
from torch import nn

import pbwn


def test_a_linear_layer_costs_6mnp_and_the_projection_3np_over_t():
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    cost = pbwn.cost(model, (100,), batch_size=32, every=20)
    [weight] = cost.weights
    m, n, p = 32, 50, 100
    assert (weight.neurons, weight.fan_in) == (n, p)
    assert weight.step == 6 * m * n * p
    assert weight.projection == 3 * n * p / 20
    assert weight.riemannian == 6 * n * p
    assert cost.step == 6 * m * (100 * 50 + 50 * 10)


@pytest.mark.parametrize(
    ("layer", "input_shape", "step"),
    [
        (nn.Conv2d(3, 8, 3, padding=1), (3, 10, 12), 6 * 8 * 3 * 3 * 3 * 10 * 12),
        (nn.Conv2d(4, 8, 3, stride=2, groups=2), (4, 9, 9), 6 * 8 * 2 * 3 * 3 * 4 * 4),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (4, 5, 5), 6 * 4 * 6 * 2 * 2 * 5 * 5),
        (nn.Conv1d(3, 8, 5), (3, 20), 6 * 8 * 3 * 5 * 16),
    ],
)
def test_a_convolution_costs_six_flops_per_weight_and_position(layer, input_shape, step):
    cost = pbwn.cost(layer, input_shape, batch_size=7, selection=pbwn.select(layer, output_layer=None))
    assert cost.weights[0].step == 7 * step
    assert cost.projection == 3 * layer.weight.numel()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0])


def test_recurrent_layers_count_every_time_step():
    cost = pbwn.cost(Recurrent(), (7, 5), batch_size=3)
    assert cost.step == 6 * 3 * 7 * (24 * 5 + 24 * 6 + 6 * 2)


def test_a_layer_that_works_inside_another_is_counted_there():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    selection = pbwn.select(model, output_layer=None)
    by_name = {weight.name: weight for weight in pbwn.cost(model, (7, 16), batch_size=3, selection=selection).weights}
    assert by_name["self_attn.out_proj.weight"].step is None
    products = 6 * 3 * 7 * 4 * 16 * 16
    attention = 6 * 3 * 2 * 2 * 7 * 7 * 8
    assert by_name["self_attn.in_proj_weight"].step == products + attention


def test_a_layer_that_is_used_twice_costs_twice():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(4, 2))
    assert pbwn.cost(model, (4,), batch_size=1).step == 6 * (2 * 16 + 8)


def test_tokens_are_counted_too():
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11))
    assert pbwn.cost(model, (5,), batch_size=2, input_dtype=torch.long).weights[0].step == 6 * 2 * 5 * 64


def test_the_model_itself_is_not_touched():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pbwn.cost(model, (4,))
    assert model.training
    assert not model[0]._forward_hooks
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_the_table_ends_with_the_share_of_the_step():
    printed = str(pbwn.cost(nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 10)), (100,), batch_size=32, every=10))
    assert printed.startswith("batch size 32, projected every 10 steps")
    assert printed.splitlines()[-1].split() == ["0.1420%", "2.8409%"]


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"every": 0}, {"every": 1.5}])
def test_counts_start_at_one(wrong):
    with pytest.raises(ValueError, match="positive integer"):
        pbwn.cost(nn.Linear(3, 3), (3,), **wrong)


@pytest.mark.parametrize("wrong", [3, None, (3.0,), torch.zeros(3)])
def test_a_shape_is_a_tuple_of_integers(wrong):
    with pytest.raises(TypeError, match=r"input_shape must be the shape of one example, such as \(3, 32, 32\); got"):
        pbwn.cost(nn.Linear(3, 3), wrong)


def test_a_shape_that_the_model_refuses_is_an_error_that_says_what_to_pass():
    words = r"the model refuses a batch of shape \(128, 4\) \(RuntimeError: .*mat1.*\): pass the shape of one example"
    with pytest.raises(ValueError, match=words):
        pbwn.cost(nn.Linear(3, 3), (4,))


class Checkpointed(nn.Module):
    """A wrapper within a model, whose name is not counted."""

    def __init__(self, module):
        super().__init__()
        self._checkpoint_wrapped_module = module

    def forward(self, x):
        return self._checkpoint_wrapped_module(x)


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        torch.optim.swa_utils.AveragedModel,
        torch.compile,
        lambda model: nn.DataParallel(torch.compile(model)),
        lambda model: nn.Sequential(Checkpointed(model[0]), *model[1:]),
    ],
    ids=["data parallel", "averaged", "compiled", "data parallel of compiled", "inside"],
)
def test_a_wrapped_model_costs_what_it_costs_without(wrap):
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    assert pbwn.cost(wrap(model), (100,)) == pbwn.cost(model, (100,))


def test_a_bilinear_layer_is_counted():
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.pairs = self.other_name = nn.Bilinear(3, 4, 5)
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.pairs(x, x[:, :1].expand(-1, 4)))

    cost = pbwn.cost(Pairs(), (3,), batch_size=7)
    assert cost.weights[0].step == 6 * 7 * 5 * 12
    assert cost.step == 6 * 7 * (5 * 12 + 5 * 2)


class Branching(nn.Module):
    """Looks at values, and keeps a tensor that is neither parameter nor buffer: the meta device can do neither."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.shift = torch.ones(4)

    def forward(self, x):
        x = self.layer(x + self.shift)
        return self.head(x if x.sum() > 0 else -x)


def test_a_model_that_cannot_run_on_the_meta_device_is_run_as_it_is():
    model = Branching().train()
    cost = pbwn.cost(model, (4,), batch_size=3)
    assert cost.step == 6 * 3 * (4 * 4 + 4 * 2)
    assert model.training
    assert not model.layer._forward_hooks
