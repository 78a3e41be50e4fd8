"""Two real processes end with the weights of one: DDP, FSDP2, tensor parallel weights."""

import copy
from unittest import mock

import pytest
import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import pbwn
from counting import Counting
from pbwn.functional import project_, tangent_
from pbwn.paths.batch import Batch
from pbwn.selection import ConstrainedWeight
from processes import run_on_processes


class Network(nn.Module):
    """Weights that dimension 0 cuts along neurons, along the fan-in, and through the groups of a convolution."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.up = nn.ConvTranspose2d(5, 6, 2, stride=2)
        self.grouped = nn.ConvTranspose2d(6, 6, 1, groups=3)
        self.hidden = nn.Linear(6 * 8 * 8, 7)
        self.head = nn.Linear(7, 4)

    def forward(self, x):
        x = torch.relu(self.grouped(torch.relu(self.up(torch.relu(self.first(x))))))
        return self.head(torch.relu(self.hidden(x.flatten(1))))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4, 3, 4, 4, generator=generator), torch.randint(0, 4, (4,), generator=generator)


def train(model, optimizer, steps, share=slice(None)):
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(5 * model(x[share]), y[share]).backward()
        optimizer.step()


def share_of_this_process():
    rank = torch.distributed.get_rank()
    return slice(2 * rank, 2 * rank + 2)


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same_weights(model, expected):
    for (name, found), (_, other) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        torch.testing.assert_close(
            full(found.detach()), other.detach(), rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def one_process(every, gradient, constraint):
    torch.manual_seed(3)
    model = Network()
    start = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    projection = pbwn.attach(model, optimizer, every=every, gradient=gradient, constraint=constraint)
    train(model, optimizer, range(4))
    return start, model, projection


CASES = [(1, "ordinary", pbwn.UnitNorm()), (2, "riemannian", pbwn.UnitNorm(radius="initial"))]


def ddp_trains_like_one_process():
    for every, gradient, constraint in CASES:
        start, expected, _ = one_process(every, gradient, constraint)
        model = DistributedDataParallel(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        projection = pbwn.attach(model, optimizer, every=every, gradient=gradient, constraint=constraint)
        assert projection.selection.constrained[0].name == "first.weight"
        train(model, optimizer, range(4), share_of_this_process())
        assert_same_weights(model.module, expected)
        assert projection.check().ok


def fsdp_trains_like_one_process():
    for every, gradient, constraint in CASES:
        start, expected, expected_projection = one_process(every, gradient, constraint)
        model = start
        for layer in (model.hidden, model):
            fully_shard(layer)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        projection = pbwn.attach(model, optimizer, every=every, gradient=gradient, constraint=constraint)
        train(model, optimizer, range(3), share_of_this_process())

        # a save in the middle of an interval holds whole radii, and loads into shards again
        state = projection.state_dict()
        assert state["radii"].keys() == expected_projection.state_dict()["radii"].keys()
        for name, radii in expected_projection.state_dict()["radii"].items():
            torch.testing.assert_close(state["radii"][name], radii)
        projection.detach()
        projection = pbwn.attach(model, optimizer, every=every, gradient=gradient, constraint=constraint, state=state)
        train(model, optimizer, range(3, 4), share_of_this_process())

        assert_same_weights(model, expected)
        assert projection.check().ok


def fsdp_projects_after_an_evaluation():
    torch.manual_seed(3)
    model = Network()
    expected = copy.deepcopy(model)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, every=None, initial=False)
    with torch.no_grad():
        model(batch(0)[0])  # the root module now holds gathered copies of its weights
    assert not isinstance(model.hidden.weight, DTensor)
    projection.project()
    pbwn.project_(expected)
    model.reshard()
    assert_same_weights(model, expected)
    assert projection.check().ok


def fsdp_projects_a_step_that_finds_gathered_weights():
    constraint = pbwn.UnitNorm(radius="initial")
    for gradient in ("ordinary", "riemannian"):
        torch.manual_seed(3)
        model = Network()
        expected = copy.deepcopy(model)
        fully_shard(model)
        ends = []
        for one in (model, expected):
            optimizer = torch.optim.SGD(one.parameters(), lr=0.5)
            with torch.no_grad():
                one(batch(0)[0])  # attaching finds gathered weights too
            projection = pbwn.attach(one, optimizer, gradient=gradient, constraint=constraint)
            for step in range(2):
                optimizer.zero_grad()
                one(batch(step)[0]).square().sum().backward()
                with torch.no_grad():
                    one(batch(0)[0])  # such as a look at the accuracy
                optimizer.step()
            with torch.no_grad():
                one(batch(0)[0])
            state = projection.state_dict()
            with torch.no_grad():
                one(batch(0)[0])
            projection.load_state_dict(state)
            assert projection.check().ok
            ends.append({name: tuple(radii.shape) for name, radii in state["radii"].items()})
            projection.detach()
        assert ends[0] == ends[1]
        assert_same_weights(model, expected)


def a_model_that_is_sharded_after_attaching_is_projected_where_its_shards_are():
    torch.manual_seed(3)
    model = Network()
    expected = copy.deepcopy(model)
    for one in (model, expected):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.5)
        projection = pbwn.attach(one, optimizer)
        if one is model:
            fully_shard(one)
            optimizer.param_groups[0]["params"] = list(one.parameters())  # what Accelerate does when it shards
        for step in range(2):
            optimizer.zero_grad()
            one(batch(step)[0]).square().sum().backward()
            with torch.no_grad():
                one(batch(0)[0])  # the root module holds gathered copies in the step
            optimizer.step()
        assert projection.check().ok
    model.reshard()
    assert_same_weights(model, expected)


def a_part_of_a_sharded_model_is_not_projected_in_gathered_copies():
    model = Network()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    part = nn.Sequential(model.hidden, model.head)
    pbwn.attach(part, optimizer)
    train(model, optimizer, range(1))
    with torch.no_grad():
        model(batch(0)[0])
    with pytest.raises(RuntimeError, match=r"a gathered copy is in its place: attach to the whole model"):
        train_step_on_gathered_weights(model, optimizer)


def train_step_on_gathered_weights(model, optimizer):
    model(batch(1)[0]).square().sum().backward()
    with torch.no_grad():
        model(batch(0)[0])
    optimizer.step()


def backward_through_a_sharded_weight_that_was_projected_is_noticed():
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = model(torch.randn(4, 6)).square().mean()
    projection.project()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def dead_rows_are_named_by_their_index_in_the_whole_weight():
    torch.manual_seed(3)
    model = Network()
    with torch.no_grad():
        model.hidden.weight[6] = 0
        model.up.weight[:, 5] = float("nan")
        model.grouped.weight[4:, 1] = 0
    fully_shard(model)
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    certificate = projection.check()
    assert certificate.dead == {"hidden.weight": (6,), "grouped.weight": ((2, 1),)}
    assert certificate.nonfinite == {"up.weight": (5,)}


def an_unsharded_copy_of_a_sharded_model_is_projected_to_the_same_radii():
    torch.manual_seed(3)
    model = Network()
    average = copy.deepcopy(model)
    norms = average.hidden.weight.detach().norm(dim=1)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius="initial"))
    with torch.no_grad():
        average.hidden.weight.mul_(3.0)
    projection.project(average)
    torch.testing.assert_close(average.hidden.weight.detach().norm(dim=1), norms)


def initial_radii_of_a_model_that_is_sharded_later_are_refused_by_name():
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius="initial"))
    fully_shard(model)
    for act in (projection.project, projection.check):
        with pytest.raises(RuntimeError, match=r"weight 'first\.weight' has neurons of shape .*sharded after attach"):
            act()


def tensor_parallel_weights_are_projected_with_no_more_than_one_exchange():
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    expected = copy.deepcopy(model)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert model[0].weight.placements == (Shard(0),)
    assert model[2].weight.placements == (Shard(1),)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, expected)]
    for one, its in zip((model, expected), optimizers, strict=True):
        pbwn.attach(one, its, gradient="riemannian")
        for step in range(3):
            its.zero_grad()
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            one(x).square().mean().backward()
            with mock.patch("torch.distributed.all_gather", wraps=torch.distributed.all_gather) as exchange:
                its.step()
            assert exchange.call_count == (2 if one is model else 0)  # tangent gradient, projection
    assert_same_weights(model, expected)

    cut = ConstrainedWeight("2.weight", model[2], "weight", pbwn.Axes((0,)), (8, 8))
    one, many = Batch([cut], pbwn.UnitNorm()), Batch([cut] * 9, pbwn.UnitNorm())
    counts = []
    for batch in (one, many):
        batch.project_()
        with Counting() as counting:
            batch.project_()
        counts.append(counting.counts)
    assert len(counts[1].operations) - len(counts[0].operations) <= 3 * 8  # for each weight more
    assert len(counts[0].operations) <= 3 + 12
    assert counts[1].bytes_moved <= 9 * counts[0].bytes_moved
    assert counts[1].largest_allocation <= 9 * 8 * 2 * 8  # the norms of both processes, in float64

    rows_only = ConstrainedWeight("0.weight", model[0], "weight", pbwn.Axes((0,)), (8, 6))
    with mock.patch("torch.distributed.all_gather", side_effect=AssertionError("no exchange is needed")):
        Batch([rows_only], pbwn.UnitNorm()).project_()


def any_sharding_projects_like_the_whole_weight():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    torch.manual_seed(5)
    cases = [
        (pbwn.Axes((0,)), (5, 7), (Shard(0), Replicate())),
        (pbwn.Axes((0,)), (5, 7), (Shard(0), Shard(1))),
        (pbwn.Axes((0,)), (5, 7), (Shard(1), Shard(1))),
        (pbwn.Axes((0,)), (3, 7), (Shard(0), Shard(0))),
        (pbwn.Axes((1,)), (5, 7), (Shard(0), Shard(1))),
        (pbwn.Axes((0, 1)), (4, 3, 5), (Shard(1), Shard(2))),
        (pbwn.Axes((1,), groups=3), (9, 2, 2, 2), (Shard(0), Replicate())),
        (pbwn.Axes((1,), groups=3), (9, 2, 2, 2), (Shard(0), Shard(0))),
        (pbwn.Axes((1,), groups=3), (9, 3, 2, 2), (Shard(1), Shard(2))),
        (pbwn.Axes((1,), groups=2), (2, 3, 2), (Replicate(), Shard(0))),
    ]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for axes, shape, placements in cases:
            whole = torch.randn(shape).to(dtype)
            whole.view(-1)[0] *= 1e30
            gradient = torch.randn(shape).to(dtype)
            module = nn.Module()
            module.weight = nn.Parameter(distribute_tensor(whole, mesh, placements))
            module.weight.grad = distribute_tensor(gradient, mesh, placements)
            entry = ConstrainedWeight("weight", module, "weight", axes, shape)
            case = f"{axes}, {shape}, {placements}, {dtype}"
            Batch([entry], pbwn.UnitNorm()).tangent_()
            expected_gradient = tangent_(gradient.clone(), whole, axes)
            tolerance = 4 * torch.finfo(dtype).eps
            torch.testing.assert_close(
                full(module.weight.grad), expected_gradient, rtol=tolerance, atol=4 * tolerance, msg=case
            )
            Batch([entry], pbwn.UnitNorm()).project_()
            expected = project_(whole.clone(), axes)
            torch.testing.assert_close(
                full(module.weight.detach()), expected, rtol=tolerance, atol=torch.finfo(dtype).tiny, msg=case
            )


def shards_in_an_order_of_their_own_are_refused_or_named_rightly():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))

    def sharded_twice(layer, dim):
        whole = layer.weight.detach().clone()
        if dim == 1:
            whole[:, 2] = 0
        layer.weight = nn.Parameter(distribute_tensor(whole, mesh["tensor"], [Shard(dim)]))
        layer.bias = None
        model = nn.Sequential(layer)
        fully_shard(model, mesh=mesh["data"], shard_placement_fn=lambda weight: Shard(dim))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(ValueError, match="which of its blocks a process has is not known"):
        pbwn.attach(*sharded_twice(nn.ConvTranspose1d(8, 6, 2, groups=2), 0), output_layer=None)
    projection = pbwn.attach(*sharded_twice(nn.ConvTranspose1d(3, 8, 2), 1), output_layer=None)
    assert projection.check().dead == {"0.weight": (2,)}


@pytest.mark.parametrize(
    "scenario",
    [
        ddp_trains_like_one_process,
        fsdp_trains_like_one_process,
        fsdp_projects_after_an_evaluation,
        fsdp_projects_a_step_that_finds_gathered_weights,
        a_model_that_is_sharded_after_attaching_is_projected_where_its_shards_are,
        a_part_of_a_sharded_model_is_not_projected_in_gathered_copies,
        backward_through_a_sharded_weight_that_was_projected_is_noticed,
        an_unsharded_copy_of_a_sharded_model_is_projected_to_the_same_radii,
        initial_radii_of_a_model_that_is_sharded_later_are_refused_by_name,
        dead_rows_are_named_by_their_index_in_the_whole_weight,
        tensor_parallel_weights_are_projected_with_no_more_than_one_exchange,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_two_processes(scenario):
    run_on_processes(scenario)


@pytest.mark.parametrize(
    "scenario",
    [any_sharding_projects_like_the_whole_weight, shards_in_an_order_of_their_own_are_refused_or_named_rightly],
    ids=lambda scenario: scenario.__name__,
)
def test_four_processes_on_a_mesh_of_two_dimensions(scenario):
    run_on_processes(scenario, count=4)


def a_weight_is_zero_if_all_its_parts_are():
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight[:2] = 0  # the part of the first process
        model[1].weight.zero_()
    fully_shard(model)
    if torch.distributed.get_rank() == 0:
        assert len(pbwn.select(model).constrained) == 3  # it asks no other process
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    selection = pbwn.attach(model, optimizer).selection
    assert [weight.name for weight in selection.constrained] == ["0.weight", "2.weight"]
    assert selection.zero == ("1.weight",)


def test_a_sharded_weight_is_zero_if_all_its_parts_are():
    run_on_processes(a_weight_is_zero_if_all_its_parts_are)
