"""Running statistics that follow a projection, and the initial projection that keeps the function."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.distributed
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.overrides import _get_current_function_mode_stack

import pbwn
from pbwn.batch_statistics import follow_
from processes import run_on_processes


def network(norm=nn.BatchNorm2d, **options):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        norm(6, **options),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 2, groups=2, bias=False),
        norm(4, **options),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(196, 5, bias=False),
        nn.BatchNorm1d(5, **options),
        nn.Linear(5, 3),
    )


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 3, 8, 8, generator=generator) + 0.3, torch.randint(0, 3, (8,), generator=generator)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)


def train(model, optimizer, steps):
    model.train()
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def evaluated(model):
    model.eval()
    found = model(batch(99)[0])
    model.train()
    return found


def trained(model=None, *, steps=6, **options):
    model = network() if model is None else model
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, **{"every": None, "initial": False, **options})
    train(model, optimizer, range(steps))
    return model, optimizer, projection


def follows(projection):
    return {name: feed.follows for name, feed in projection._statistics.feeds.items()}


def stretched(model, factor=1.7):
    """Weights that are far off the sphere, each row by another factor."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(factor)
    return model


KINDS = {
    "batch normalisation": (network, {}),
    "synchronised": (lambda: nn.SyncBatchNorm.convert_sync_batchnorm(network()), {}),
    "without affine parameters": (lambda: network(affine=False), {}),
    "a cumulative average": (lambda: network(momentum=None), {}),
    "float64": (lambda: network().double(), {}),
    "one norm for each matrix": (network, {"per": "matrix"}),
    "another radius": (network, {"constraint": pbwn.UnitNorm(radius=2.5)}),
    "a ball": (network, {"constraint": pbwn.MaxNorm(0.7)}),
    "an epsilon that matters": (lambda: network(eps=0.1), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_is_the_same_before_and_after_a_projection_by_hand(kind):
    make, options = KINDS[kind]
    model = stretched(make())
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, every=None, initial=False, **options)
    dtype = next(model.parameters()).dtype
    # Synchronised batch normalisation trains on GPUs alone: statistics as training would have left them.
    if kind == "synchronised":
        for norm in (model[1], model[4]):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
        model.eval()(batch(0)[0])
    else:
        for step in range(6):
            model(batch(step)[0].to(dtype))
    model.eval()
    before = model(batch(99)[0].to(dtype))
    old = model[0].weight.detach().clone()
    projection.project()
    assert not torch.equal(model[0].weight, old)
    torch.testing.assert_close(model(batch(99)[0].to(dtype)), before, rtol=1e-5, atol=1e-5)
    assert follows(projection) == {"1": "0.weight", "4": "3.weight", "8": "7.weight"}


def test_without_following_evaluation_changes():
    model, _, projection = trained(stretched(network()), follow=None)
    before = evaluated(model)
    projection.project()
    assert (evaluated(model) - before).abs().max() > 0.1


def test_the_formula_holds_for_growing_and_shrinking_weights_and_never_goes_below_zero():
    norm = nn.BatchNorm1d(4, eps=0.01)
    norm.running_mean.copy_(torch.tensor([1.0, -2.0, 3.0, 0.5]))
    norm.running_var.copy_(torch.tensor([1.0, 4.0, 0.002, 0.7]))
    follow_(norm, torch.tensor([2.0, 0.5, 0.1, 1.0], dtype=torch.float64))
    assert norm.running_mean.tolist() == pytest.approx([2.0, -1.0, 0.3, 0.5])
    assert norm.running_var.tolist() == pytest.approx([4 * 1.01 - 0.01, 0.25 * 4.01 - 0.01, 0.0, 0.7])


class Between(nn.Module):
    """A convolution and a batch normalisation, with something in between or beside."""

    def __init__(self, how, *, bias=False):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4)
        self.other, self.other_norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.head, self.how = nn.Linear(4, 3), how
        if how is shifted:
            self.norm = Shifted(4)

    def forward(self, x):
        return self.head(self.how(self, x).mean((2, 3)))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return torch.from_numpy(2 * x.numpy())  # which no mode of torch sees

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


class Doubling(nn.Module):
    def forward(self, x):
        return Doubled.apply(x)


def twice(self, x):
    product = self.conv(x)
    return self.norm(product) + product


def returned_inside(self, x):
    product = self.conv(x)
    product.add_(1)
    return self.norm(product)


def written_to(self, x):
    product = self.conv(x)
    product[:, 0] = 0
    return self.norm(product)


def in_two(self, x):
    product = self.conv(x)
    return self.norm(product) + self.other_norm(product)


def used_again(self, x):
    return self.norm(self.conv(x)) + self.conv(x).tanh()


class Shifted(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x + 1)


def shifted(self, x):
    return self.norm(self.conv(x))


BETWEEN = {
    "nothing": (lambda self, x: self.norm(self.conv(x)), "conv.weight"),
    "a look at its size": (
        lambda self, x: self.norm(self.conv(x)[...] if x.ndim == 3 else self.conv(x)),
        "conv.weight",
    ),
    "ReLU": (lambda self, x: self.norm(self.conv(x).relu()), None),
    "a view": (lambda self, x: self.norm(self.conv(x).view(8, 4, 6, 6)), None),
    "a second user": (twice, None),
    "in place": (returned_inside, None),
    "written to": (written_to, None),
    "two normalisations": (in_two, None),
    "the layer used again": (used_again, None),
    "shared by two layers": (lambda self, x: self.norm(self.conv(x)) + self.norm(self.other(x)), None),
    "the weight in another function": (
        lambda self, x: self.norm(self.conv(x)) + functional.conv2d(x, self.conv.weight * 1.0),
        None,
    ),
    "a shift in the normalisation itself": (shifted, None),
    "used twice by one layer": (lambda self, x: self.norm(self.conv(x)) + self.norm(self.conv(-x)), "conv.weight"),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_only_what_goes_straight_into_one_batch_normalisation_and_nowhere_else_follows(between):
    how, expected = BETWEEN[between]
    model = Between(how)
    _, _, projection = trained(model, steps=1)
    assert follows(projection)["norm"] == expected


def test_a_bias_means_no_and_so_does_a_second_user_that_torch_does_not_see():
    _, _, projection = trained(Between(BETWEEN["nothing"][0], bias=True), steps=1)
    assert follows(projection)["norm"] is None
    model = Between(lambda self, x: self.norm(product := self.conv(x)) + self.twofold(product))
    model.twofold = Doubling()
    _, _, projection = trained(model, steps=1)
    assert follows(projection)["norm"] is None


def test_a_linear_layer_over_positions_feeds_other_channels_than_its_neurons():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm, self.head = nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2)

        def forward(self, x):  # (batch, 4 positions, 5) -> channels of the normalisation are positions
            return self.head(self.norm(self.layer(x)))

    model = Positions()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, every=None)
    model(torch.randn(8, 4, 5))
    assert follows(projection) == {"norm": None}


def test_what_is_shown_in_the_table_is_what_follows_and_why_not():
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, every=None)
    assert "not seen yet" in str(projection)
    train(model, optimizer, range(1))
    assert "{1, 4}              BatchNorm2d  {0, 3}.weight" in str(projection)
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, every=20)
    train(model, optimizer, range(1))
    assert "{0, 3}.weight, only in project(): every=20 is short of 5 / momentum" in str(projection)
    _, _, projection = trained(Between(twice), steps=1)
    assert "nothing: the output of conv.weight goes into add as well" in str(projection)


def test_batch_normalisation_without_running_statistics_has_nothing_that_follows():
    model, _, projection = trained(network(track_running_stats=False), steps=2)
    before = evaluated(model)
    projection.project()
    torch.testing.assert_close(evaluated(model), before, rtol=1e-3, atol=1e-3)  # but for the epsilon
    assert "running statistics" not in str(projection)


@pytest.mark.parametrize(
    ("every", "momentum", "expected"), [(50, 0.1, True), (49, 0.1, False), (5, 1.0, True), (60, None, False)]
)
def test_intervals_follow_from_five_over_momentum_on(every, momentum, expected):
    model = stretched(network(momentum=momentum))
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, every=every, initial=False)
    train(model, optimizer, range(1))
    projection._drivers[0].steps = every - 1
    x, y = batch(1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    mean = model[1].running_mean.clone()
    optimizer.step()
    assert projection._drivers[0].projected
    assert torch.equal(mean, model[1].running_mean) != expected


def test_at_every_step_nothing_is_watched_and_nothing_follows():
    model = stretched(network())
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer)
    assert not any(module._forward_pre_hooks for module in model.modules())
    twin = copy.deepcopy(model)
    train(model, optimizer, range(3))
    twin_optimizer = sgd(twin)
    pbwn.attach(twin, twin_optimizer, follow=None)
    train(twin, twin_optimizer, range(3))
    mean = model[1].running_mean.clone()
    projection.project()
    assert torch.equal(mean, model[1].running_mean)
    assert torch.equal(mean, twin[1].running_mean)
    assert "running statistics" not in str(projection)


def test_the_hooks_go_once_every_batch_normalisation_was_seen_in_training():
    model, _, projection = trained(steps=0)
    model.eval()(batch(0)[0])
    assert all(module._forward_pre_hooks for module in model.modules())
    train(model, projection._drivers[0].optimizer, range(1))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    model, _, projection = trained(steps=0)
    projection.detach()
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_copies_of_a_watched_model_are_plain_models():
    model, _, projection = trained(steps=0)
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        pickle.loads(pickle.dumps(projection)).model,
    ):
        other(batch(0)[0])
    assert not projection._statistics.feeds


def test_parts_that_are_called_one_by_one_are_seen_too():
    model = nn.Module()
    model.body = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
    model.alone, model.after = nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4)
    model.head = nn.Linear(4, 2)
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, every=None)
    model.head(model.after(model.alone(model.body(batch(0)[0]))).mean((2, 3)))
    assert follows(projection) == {"body.1": "body.0.weight", "after": None}  # what happens in between is not seen


def test_a_pass_that_fails_leaves_nothing_behind():
    model, _, projection = trained(steps=0)
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 5, 8, 8))
    train(model, projection._drivers[0].optimizer, range(1))
    assert follows(projection)["1"] == "0.weight"


def test_a_keyboard_interrupt_in_a_pass_is_forgotten_by_the_next_one_or_by_detach():
    class Interrupted(nn.Module):
        on = True

        def forward(self, x):
            if self.on:
                raise KeyboardInterrupt
            return x

    for next_pass in (True, False):
        stop = Interrupted()
        model = nn.Sequential(*network()[:-1], stop, network()[-1])
        projection = pbwn.attach(model, sgd(model), every=None, initial=False)
        with pytest.raises(KeyboardInterrupt):
            model(batch(0)[0])
        stop.on = False
        if next_pass:
            model(batch(0)[0])
            assert follows(projection)["1"] == "0.weight"
        projection.detach()
        assert not _get_current_function_mode_stack()


def test_a_state_from_before_the_first_pass_is_followed_by_observing_again():
    model, optimizer, projection = trained(steps=0)
    early = projection.state_dict()
    train(model, optimizer, range(1))
    projection.load_state_dict(early)
    assert follows(projection) == {}
    train(model, optimizer, range(1))
    assert follows(projection)["1"] == "0.weight"


@pytest.mark.parametrize(("every", "warns"), [(50, True), (2, False)])
def test_a_compiled_model_is_said_once_not_to_be_observed_and_keeps_no_hooks(every, warns):
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = sgd(model)
    pbwn.attach(model, optimizer, every=every)
    compiled = torch.compile(model, backend="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2 * every):
            optimizer.zero_grad()
            compiled(torch.randn(8, 4)).square().sum().backward()
            optimizer.step()
    found = [each for each in caught if "were not rescaled with the projections" in str(each.message)]
    assert len(found) == warns
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_an_attached_model_that_no_pass_has_shown_yet_can_be_traced_and_scripted_once_detached():
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, every=50)
    x = torch.randn(8, 4)
    traced = torch.jit.trace(model, x)
    projection.detach()
    scripted = torch.jit.script(model)
    for each in (traced, scripted):
        torch.testing.assert_close(each(x), model(x))


def test_a_projection_by_hand_before_any_pass_warns_where_statistics_were_gathered():
    model = network()
    model(batch(0)[0])
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, every=None, initial=False)
    with pytest.warns(UserWarning, match="no forward pass has shown yet which weights they belong to"):
        projection.project()
    fresh = network()
    optimizer = sgd(fresh)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pbwn.attach(fresh, optimizer, every=None).project()


@pytest.mark.parametrize("every", [1, 20, None])
def test_with_example_inputs_the_initial_projection_is_followed(every):
    model = stretched(network())
    for step in range(5):
        model(batch(step)[0])
    before, count = evaluated(model), model[1].num_batches_tracked.clone()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, every=every, follow=batch(0)[0])
    torch.testing.assert_close(evaluated(model), before, rtol=1e-5, atol=1e-5)
    assert projection.check().ok
    assert torch.equal(model[1].num_batches_tracked, count)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_example_inputs_that_a_pass_writes_to_are_put_back():
    model = nn.Sequential(nn.ReLU(inplace=True), network())
    x = batch(0)[0]
    before = x.clone()
    pbwn.attach(model, sgd(model), follow=x)
    assert torch.equal(x, before)


def test_an_average_of_the_weights_is_followed_by_its_own_statistics():
    model, optimizer, projection = trained(stretched(network()))
    average = AveragedModel(model)
    train(model, optimizer, range(6, 9))
    average.update_parameters(model)
    before = evaluated(average)
    projection.project(average)
    torch.testing.assert_close(evaluated(average), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("every", [None, 6])
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(every, cut):
    def start():
        model = stretched(network(momentum=0.9))
        return model, sgd(model)

    def go_on(model, optimizer, projection, steps):
        for step in steps:
            train(model, optimizer, [step])
            if every is None and step % 3 == 2:
                projection.project()

    whole, optimizer = start()
    go_on(whole, optimizer, pbwn.attach(whole, optimizer, every=every, initial=False), range(9))
    model, optimizer = start()
    projection = pbwn.attach(model, optimizer, every=every, initial=False)
    go_on(model, optimizer, projection, range(cut))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), projection.state_dict()))
    resumed, optimizer = start()
    resumed.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    projection = pbwn.attach(resumed, optimizer, every=every, initial=False, state=saved[2])
    go_on(resumed, optimizer, projection, range(cut, 9))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_state_without_what_follows_is_read():
    model, optimizer, projection = trained()
    state = projection.state_dict()
    del state["follow"]
    projection.detach()
    assert pbwn.attach(model, optimizer, every=None, state=state).state_dict()["follow"]["feeds"] == {}


# The initial projection that keeps the function.


class Gained(nn.Module):
    """A residual branch behind a gain, as in ConvNeXt, and one behind batch normalisation."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.branch, self.gain = nn.Conv2d(4, 4, 3, padding=1), nn.Parameter(torch.rand(4, 1, 1) + 0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.head((x + self.gain * self.branch(x)).mean((2, 3)))


class ChannelsLast(Gained):
    """A linear layer over the last dimension behind the gain, as in ConvNeXt and in LayerScale."""

    def __init__(self):
        super().__init__()
        self.branch, self.gain = nn.Linear(4, 4), nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x):
        x = self.norm(self.first(x)).relu().movedim(1, -1)
        return self.head((x + self.gain * self.branch(x)).mean((1, 2)))


class Biased(nn.Conv2d):
    """A convolution with its batch normalisation: the parameter `bias` comes after that, and another one before."""

    def __init__(self):
        super().__init__(3, 4, 3)
        self.before, self.norm = nn.Parameter(torch.randn(4)), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(functional.conv2d(x, self.weight, self.before)) + self.bias[:, None, None]


class TwoBiases(nn.Module):
    """One weight, two biases, two batch normalisations."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.norms = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.ModuleList()
        self.two.weight = self.one.weight
        self.norms.extend(nn.BatchNorm2d(4) for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.norms[0](self.one(x)).relu() + self.norms[1](self.two(-x)).relu()
        return self.head(hidden.mean((2, 3)))


@pytest.mark.parametrize(
    "make",
    [
        network,
        Gained,
        ChannelsLast,
        lambda: nn.Sequential(Biased(), nn.Flatten(), nn.Linear(4 * 36, 3)),
        TwoBiases,
        lambda: network(track_running_stats=False),
    ],
)
def test_folding_keeps_the_function_in_training_and_evaluation(make):
    model = stretched(make())
    for step in range(5):
        model(batch(step)[0])
    modes = [evaluated(model)]
    model.train()
    modes.append(copy.deepcopy(model)(batch(99)[0]).detach())
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer, initial="fold", follow=batch(0)[0])
    assert projection.check().ok
    projection.detach()
    # With batch statistics of its own, evaluation differs by the epsilon alone.
    torch.testing.assert_close(evaluated(model), modes[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(batch(99)[0]).detach(), modes[1], rtol=1e-4, atol=1e-4)


class SharedBias(TwoBiases):
    """Two weights, and one bias, which cannot be scaled with both."""

    def __init__(self):
        super().__init__()
        self.two = nn.Conv2d(3, 4, 3)
        self.two.bias = self.one.bias


class AddedGain(Gained):
    """The gain is added as well."""

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.head((x + self.gain * self.branch(x) + self.gain).mean((2, 3)))


def unseen(self, x):
    product = self.conv(x)
    return self.norm(product) + Doubled.apply(product)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 2)),
            {},
            "right after '1.weight'",
        ),
        (lambda: Between(twice), {}, "right after 'conv.weight'"),
        (lambda: Between(BETWEEN["shared by two layers"][0]), {}, "right after 'conv.weight', 'other.weight'"),
        (lambda: Between(unseen), {"skip": ["other"]}, "would change the output .* in evaluation mode.* skip="),
        (SharedBias, {}, "would change the output .* in evaluation mode"),
        (AddedGain, {}, "right after 'branch.weight'"),
        (network, {"follow": "auto"}, "pass follow= with example inputs"),
        (network, {"follow": torch.randn(2, 5, 8, 8)}, "the model refuses the example inputs in follow="),
        (network, {"follow": True}, "example inputs of the model; got True"),
        (network, {"initial": "folded"}, "True, False or \"fold\"; got 'folded'"),
    ],
)
def test_what_cannot_be_folded_is_refused_with_what_to_do(make, options, message):
    model = stretched(make())
    before = copy.deepcopy(model.state_dict())
    optimizer = sgd(model)
    with pytest.raises(ValueError, match=message):
        pbwn.attach(model, optimizer, **{"initial": "fold", "follow": batch(0)[0], **options})
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_weights_that_need_no_place_are_not_asked_for_one():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = sgd(model)
    constraint = pbwn.UnitNorm(radius="initial")
    assert pbwn.attach(model, optimizer, initial="fold", follow=batch(0)[0], constraint=constraint).check().ok


def test_folding_belongs_before_the_first_step():
    model, optimizer, projection = trained()
    projection.detach()
    with pytest.raises(ValueError, match="before the first step"):
        pbwn.attach(model, optimizer, initial="fold", follow=batch(0)[0])


# Several processes.


def followed_on_two_processes():
    for shard in (False, True):
        model = stretched(network())
        if shard:
            fully_shard(model)
        wrapped = model if shard else DistributedDataParallel(model)
        optimizer = sgd(model)
        projection = pbwn.attach(wrapped, optimizer, every=None, initial=False)
        train(wrapped, optimizer, range(4))
        before = evaluated(wrapped)
        projection.project()
        torch.testing.assert_close(evaluated(wrapped), before, rtol=1e-5, atol=1e-5)
        assert follows(projection) == {"1": "0.weight", "4": "3.weight", "8": "7.weight"}
        assert projection.check().ok


def test_statistics_follow_on_two_processes_with_ddp_and_fsdp2():
    run_on_processes(followed_on_two_processes)


def test_compiled_models_train_as_before_and_example_inputs_serve_them():
    model = stretched(network())
    for step in range(4):
        model(batch(step)[0])
    optimizer = sgd(model)
    compiled = torch.compile(model, backend="eager")
    projection = pbwn.attach(compiled, optimizer, every=None, initial=False, follow=batch(0)[0])
    compiled(batch(0)[0]).sum().backward()
    before = evaluated(compiled)
    projection.project()
    torch.testing.assert_close(evaluated(compiled), before, rtol=1e-5, atol=1e-5)
    other = network()
    optimizer = sgd(other)
    pbwn.attach(other, optimizer, every=None)
    torch.compile(other, backend="eager", fullgraph=True)(batch(0)[0])
