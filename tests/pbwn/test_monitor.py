"""What the monitor records, against plain loops over neurons in float64, and that training does not notice it."""

import copy
import gc
import json
import math
import pickle
import sys
import weakref
from unittest import mock

import pytest
import torch
import torch.distributed
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.utils.tensorboard import SummaryWriter

import pbwn
from counting import LAYOUTS, fake_weights
from pbwn.monitor import QUANTITIES, StepMeasurement
from processes import run_on_processes
from twins import entries, neurons_of

NUMBERS = list(QUANTITIES)


def network():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 4, 2, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(100, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(6, 2, 4, 4, generator=generator), torch.randint(0, 3, (6,), generator=generator)


def gradient(model, optimizer, step):
    optimizer.zero_grad()
    x, y = batch(step)
    nn.functional.cross_entropy(5 * model(x), y).backward()


def train(model, optimizer, steps):
    for step in steps:
        gradient(model, optimizer, step)
        optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def lengths(tensor, neurons):
    return [math.hypot(*entries(tensor, neuron)) for neuron in neurons]


def share(weight, vector, neurons):
    along = whole = 0.0
    for neuron in neurons:
        w, v = entries(weight, neuron), entries(vector, neuron)
        along += (sum(a * b for a, b in zip(w, v, strict=True)) / math.hypot(*w)) ** 2
        whole += sum(b * b for b in v)
    return math.sqrt(along / whole)


def angle(before, after, neurons):
    found = []
    for neuron in neurons:
        a, b = entries(before, neuron), entries(after, neuron)
        a, b = [x / math.hypot(*a) for x in a], [x / math.hypot(*b) for x in b]
        minus = math.hypot(*(x - y for x, y in zip(a, b, strict=True)))
        plus = math.hypot(*(x + y for x, y in zip(a, b, strict=True)))
        found.append(2 * math.atan2(minus, plus))
    return sum(found) / len(found)


def by_hand(model, optimizer, projection, step, rate):
    """One step as anyone would take it apart: gradient, the optimizer's update, the projection."""
    weights = projection.selection.constrained
    neurons = {w.name: neurons_of(w.shape, w.axes.neurons, w.axes.groups) for w in weights}
    before = {w.name: w.tensor.detach().clone() for w in weights}
    gradient(model, optimizer, step)
    shares = {w.name: share(before[w.name], w.tensor.grad, neurons[w.name]) for w in weights}
    middle = {}

    def look(*_):  # runs before the projection: its hook was registered first
        middle.update({w.name: w.tensor.detach().clone() for w in weights})

    optimizer.middle = look
    optimizer.step()
    expected = {}
    for weight in weights:
        name, mine = weight.name, neurons[weight.name]
        norms, old = lengths(middle[name], mine), lengths(before[name], mine)
        expected[name] = {
            "norm": sum(norms) / len(norms),
            "drift": max(abs(norm - 1) for norm in norms),
            "gradient_share": shares[name],
            "update_share": share(before[name], middle[name] - before[name], mine),
            "angle": angle(before[name], weight.tensor.detach(), mine),
            "effective_rate": sum(rate / norm**2 for norm in old) / len(old),
        }
    return expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"every": 2},
        {"every": None},
        {"gradient": "riemannian"},
        {"step": "tangent"},
        {"step": "angle"},
        {"per": "matrix"},
        {"direction": "outgoing"},
    ],
    ids=str,
)
def test_the_numbers_are_those_of_plain_loops(options, backend, dtype):
    model = network().to(dtype)
    optimizer = sgd(model)
    optimizer.middle = lambda: None
    optimizer.register_step_post_hook(lambda *_: optimizer.middle())
    projection = pbwn.attach(model, optimizer, backend=backend, **options)
    monitor = projection.monitor(every=1)
    with mock.patch("torch.randn", side_effect=lambda *s, **o: torch.empty(*s, dtype=dtype).normal_(**o)):
        for step in range(3):
            expected = by_hand(model, optimizer, projection, step, 0.2)
            found = {record["weight"]: record for record in monitor.records if record["step"] == step + 1}
            assert found.keys() == expected.keys()
            for name, numbers in expected.items():
                tolerance = {"rel": 1e-9, "abs": 1e-13} if dtype == torch.float64 else {"rel": 1e-3, "abs": 2e-6}
                assert {key: found[name][key] for key in NUMBERS} == pytest.approx(numbers, **tolerance), name


def test_every_so_many_steps_are_recorded():
    model = network()
    optimizer = sgd(model)
    monitor = pbwn.attach(model, optimizer, every=2).monitor(every=3)
    train(model, optimizer, range(12))
    steps = [(record["step"], record["projected"]) for record in monitor.records if record["weight"] == "0.weight"]
    assert steps == [(3, False), (6, True), (9, False), (12, True)]


@pytest.mark.parametrize("options", [{}, {"every": 3}, {"gradient": "riemannian"}, {"step": "angle"}], ids=str)
def test_training_is_the_same_bit_for_bit_with_and_without(options):
    models = []
    for watched in (False, True):
        model = nn.Sequential(network(), nn.Dropout(0.5))
        optimizer = sgd(model)
        projection = pbwn.attach(model, optimizer, output_layer="0.7", **options)
        if watched:
            projection.monitor(every=2, loss=lambda model=model: model(batch(9)[0]).mean())
        torch.manual_seed(7)
        train(model, optimizer, range(6))
        models.append(model)
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


def test_a_record_is_read_with_one_look_at_the_device(monkeypatch):
    model = network()
    optimizer = sgd(model)
    monitor = pbwn.attach(model, optimizer, every=None).monitor(every=1)  # a projection on the CPU looks for itself
    gradient(model, optimizer, 0)
    looks = []
    for name in ("tolist", "item", "__float__", "__bool__", "__int__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, original=original, name=name: (looks.append(name), original(self))[1]
        )
    optimizer.step()
    assert len(monitor.records) == 3
    assert looks == ["tolist"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_measuring_on_a_gpu_waits_for_nothing(dtype):
    with FakeTensorMode():  # where reading a value raises
        weights = fake_weights(LAYOUTS.values(), dtype)
        for weight in weights:
            weight.tensor.grad = torch.empty_like(weight.tensor)
        stored = [weight.tensor.detach() for weight in weights]
        measurement = StepMeasurement(1, weights, [one.clone() for one in stored])
        measurement.measure_gradients()
        measurement.measure_updates(stored, pbwn.UnitNorm(), {})
        measurement.measure_angles(stored)
        quantities = list(measurement.quantities([torch.empty((), device="cuda")] * len(weights)))
    assert {one.device.type for each in quantities for one in each} == {"cuda"}


def test_without_a_monitor_nothing_is_kept_or_measured():
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer)
    monitor = projection.monitor(every=1)
    train(model, optimizer, range(1))
    monitor.stop()
    with (
        mock.patch("pbwn.norm_projection.StepMeasurement", side_effect=AssertionError),
        mock.patch.object(pbwn.NormProjection, "_on_gradient", side_effect=AssertionError),
    ):
        train(model, optimizer, range(2))
    assert {record["step"] for record in monitor.records} == {1}
    assert projection.monitor(every=1).records == []  # a new one may follow


def test_accumulated_and_skipped_steps_are_no_steps():
    model = network()
    optimizer = sgd(model)
    monitor = pbwn.attach(model, optimizer).monitor(every=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(4):
        optimizer.zero_grad()
        for part in (0, 1):
            x, y = batch(2 * step + part)
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if step == 1:
            model[0].weight.grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()
    assert {record["step"] for record in monitor.records} == {2}
    assert all(math.isfinite(record[name]) for record in monitor.records for name in NUMBERS)


@pytest.mark.parametrize("gradient_kind", ["ordinary", "riemannian"])
def test_with_a_closure_the_gradient_is_the_one_that_it_completes_first(gradient_kind):
    found = []
    for closed in (False, True):
        model = network()
        optimizer = sgd(model)
        monitor = pbwn.attach(model, optimizer, gradient=gradient_kind).monitor(every=1)
        for step in range(2):
            if closed:
                optimizer.step(lambda s=step, m=model, o=optimizer: gradient(m, o, s))
            else:
                gradient(model, optimizer, step)
                optimizer.step()
        found.append(monitor.records)
    assert found[0] == found[1]
    assert all(record["gradient_share"] > 1e-3 for record in found[0])


def test_lbfgs_and_a_frozen_weight_are_recorded():
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    monitor = pbwn.attach(model, optimizer).monitor(every=1)
    model[0].weight.requires_grad_(False)
    optimizer.step(lambda: closure(model, optimizer))
    records = {record["weight"]: record for record in monitor.records}
    assert math.isnan(records["0.weight"]["gradient_share"])
    assert records["5.weight"]["gradient_share"] > 0


def closure(model, optimizer):
    optimizer.zero_grad()
    x, y = batch(0)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


def test_several_optimizers_are_recorded_each_by_its_own_steps_and_rate():
    model = network()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW([*model[2].parameters(), *model[5].parameters()], lr=torch.tensor(0.01))
    monitor = pbwn.attach(model, [first, second]).monitor(every=2)
    for step in range(4):
        gradient(model, first, step)
        first.step()
        if step % 2:
            second.step()
    steps = [(record["step"], record["weight"]) for record in monitor.records]
    assert steps == [(2, "0.weight"), (4, "0.weight"), (2, "2.weight"), (2, "5.weight")]
    rates = {record["weight"]: record["effective_rate"] for record in monitor.records}
    assert rates == pytest.approx({"0.weight": 0.1, "2.weight": 0.01, "5.weight": 0.01}, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_of_weights_that_are_not_finite_no_angle_and_no_small_drift_is_recorded(value):
    model = network()
    optimizer = sgd(model)
    monitor = pbwn.attach(model, optimizer).monitor(every=1)
    gradient(model, optimizer, 0)
    with torch.no_grad():
        model[0].weight.grad[1] = value
        model[2].weight.zero_()
        model[2].weight.grad.zero_()
    optimizer.step()
    records = {record["weight"]: record for record in monitor.records}
    assert math.isnan(records["0.weight"]["angle"])
    assert not math.isfinite(records["0.weight"]["drift"])
    assert records["2.weight"]["angle"] == 0  # rows of zeros have not turned
    assert records["2.weight"]["drift"] == 1


def test_the_loss_around_projections_is_recorded_and_nothing_of_it_stays():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = torch.randn(16, 6), torch.randint(0, 2, (16,))
    projection = pbwn.attach(model, optimizer, every=4, follow=None)
    monitor = projection.monitor(every=2, loss=lambda: nn.functional.cross_entropy(model(x), y))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    for _ in range(3):
        step()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, old in zip(twin.parameters(), model.parameters(), strict=True):
            parameter.sub_(0.5 * old.grad)
    counted = model[1].num_batches_tracked.item()
    optimizer.step()
    assert model[1].num_batches_tracked.item() == counted
    assert [each["step"] for each in monitor.losses] == [4]
    assert monitor.losses[0]["before"] == pytest.approx(nn.functional.cross_entropy(twin(x), y).item(), rel=1e-5)
    assert monitor.losses[0]["after"] == pytest.approx(nn.functional.cross_entropy(model(x), y).item(), rel=1e-5)
    step()
    projection.project()
    assert [each["step"] for each in monitor.losses] == [4, 5]


@pytest.mark.parametrize(
    ("loss", "found"), [(lambda: torch.zeros(16), r"a tensor of shape \(16,\)"), (lambda: None, "None")]
)
def test_a_loss_that_is_not_one_number_is_refused_with_what_was_returned(loss, found):
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer)
    projection.monitor(every=1, loss=loss)
    gradient(model, optimizer, 0)
    with pytest.raises(TypeError, match=f"must be one number.* returned {found}"):
        optimizer.step()


@pytest.mark.parametrize("options", [{}, {"step": "tangent"}, {"every": 2}], ids=str)
def test_a_step_that_a_loss_has_broken_off_ends_as_it_does_without_the_monitor(options):
    model, twin = network(), network()
    optimizer, plain = sgd(model), sgd(twin)
    projection = pbwn.attach(model, optimizer, **options)
    pbwn.attach(twin, plain, **options)
    losses = iter([])
    projection.monitor(every=2, loss=lambda: next(losses))
    train(model, optimizer, [0])
    with pytest.raises(StopIteration):
        train(model, optimizer, [1])
    train(twin, plain, [0, 1])
    assert projection.state_dict()["projected"] == [True]
    assert projection.check().ok
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


def test_sparse_gradients_are_measured_like_dense_ones():
    records = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(11, 4, sparse=sparse), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = pbwn.attach(model, optimizer, also=["0"]).monitor(every=1)
        model(torch.tensor([1, 2, 2, 7])).square().sum().backward()
        optimizer.step()
        records.append({name: monitor.records[0][name] for name in QUANTITIES})
    assert records[0] == pytest.approx(records[1], rel=1e-5)  # a sparse update adds in another order
    assert records[0]["gradient_share"] > 0


def test_the_effective_rate_and_the_drift_are_those_of_the_master_weights():
    class Mixed(torch.optim.SGD):
        """Steps on float32 copies of bfloat16 weights, which it keeps in its state."""

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    master = self.state[p].setdefault("master", p.detach().float().clone())
                    master.sub_(group["lr"] * p.grad.float())
                    p.copy_(master)

    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)).bfloat16()
    optimizer = Mixed(model.parameters(), lr=1e-3)
    monitor = pbwn.attach(model, optimizer).monitor(every=1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 16, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    last = monitor.latest()[0]
    assert last["effective_rate"] == pytest.approx(1e-3, rel=1e-5)  # a rounded weight would be off by 1e-3
    assert 0 < last["drift"] < 1e-2


def test_the_records_are_plain_numbers_and_go_wherever_numbers_go(tmp_path):
    model = network()
    optimizer = sgd(model)
    heard = []
    with SummaryWriter(str(tmp_path)) as writer:
        monitor = pbwn.attach(model, optimizer).monitor(every=1, writer=writer, on_record=heard.append)
        assert str(monitor) == "<Monitor: every 1 steps, 0 recorded>"
        train(model, optimizer, range(3))
    assert json.loads(json.dumps(monitor.records)) == monitor.records
    assert [record for records in heard for record in records] == monitor.records
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    written = [event.value for event in events.Scalars("pbwn/angle/0.weight")]
    assert written == pytest.approx([r["angle"] for r in monitor.records if r["weight"] == "0.weight"], rel=1e-6)
    assert monitor.metrics()["pbwn/angle/0.weight"] == pytest.approx(written[-1])
    assert str(monitor) == monitor.table()
    assert repr(monitor) == "<Monitor: every 1 steps, 3 recorded>"


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(x)


def test_the_table_shows_repeated_blocks_as_one_with_medians_and_the_largest_drift():
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = pbwn.attach(model, optimizer).monitor(every=1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    when, _, header, _, first, blocks, _, *legend = monitor.table().splitlines()
    assert when == "step 2"
    assert header.split() == ["weight", "norm", "drift", "gradient", "update", "angle", "lr/|w|²"]
    assert first.startswith("first.weight ")
    name, norm, drift, _, _, angle, rate = blocks.split()
    records = [record for record in monitor.latest() if record["weight"].startswith("blocks")]
    assert name == "blocks.{0..2}.weight"
    assert norm == f"{sorted(record['norm'] for record in records)[1]:.3f}"
    assert drift == f"{max(record['drift'] for record in records):.1e}"
    assert angle == f"{sorted(record['angle'] for record in records)[1]:.1e}"
    assert rate == "1.0e-02"
    assert "the effective rate of SGD" in " ".join(legend)


def test_in_the_table_a_broken_weight_does_not_hide_behind_its_siblings():
    model = Blocks()
    optimizer = sgd(model)
    monitor = pbwn.attach(model, optimizer).monitor(every=1)
    model(torch.randn(5, 4)).sum().backward()
    model.blocks[1].weight.grad[2] = math.nan
    optimizer.step()
    _, _, drift, _, _, angle, _ = monitor.table().splitlines()[5].split()
    assert drift == "nan"
    assert 0 < float(angle) < math.inf


def test_before_the_first_record_the_table_says_when_it_comes_and_a_plot_is_refused():
    model = network()
    optimizer = sgd(model)
    monitor = pbwn.attach(model, optimizer).monitor(every=5)
    told = "no step recorded yet: steps 5, 10, ... are recorded; monitor(every=1) records every step"
    assert monitor.table() == told
    with pytest.raises(RuntimeError, match="no step recorded yet"):
        monitor.plot()


def test_a_plot_has_a_panel_for_each_quantity_and_one_for_the_loss(monkeypatch):
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer)
    monitor = projection.monitor(every=1, loss=lambda: model(batch(0)[0]).sum())
    train(model, optimizer, range(3))
    figure = monitor.plot()
    drawn = [axes for axes in figure.axes if axes.lines]
    assert [len(axes.lines) for axes in drawn] == [3] * 6 + [2]
    assert list(drawn[4].lines[0].get_ydata()) == [r["angle"] for r in monitor.records if r["weight"] == "0.weight"]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        monitor.plot()


def test_the_hook_of_an_average_still_sees_projected_weights():
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(float(model[0].weight.detach()[0].norm())))
    projection.monitor(every=1)
    train(model, optimizer, range(2))
    assert seen == pytest.approx([1.0, 1.0])


def test_a_copied_projection_has_no_monitor_and_a_rebound_one_keeps_it():
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer)
    monitor = projection.monitor(every=1, on_record=lambda records: None)
    assert pickle.loads(pickle.dumps(projection))._monitor is None
    other = sgd(model)
    projection.rebind(other)
    train(model, other, range(1))
    assert len(monitor.records) == 3


def test_a_monitor_goes_with_the_projection_and_can_still_be_stopped():
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer)
    monitor = projection.monitor()
    gone = weakref.ref(projection)
    gc.collect()
    gc.disable()
    try:
        del projection, optimizer
        assert gone() is None
    finally:
        gc.enable()
    monitor.stop()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"every": 0}, ValueError, "every must be a positive integer; got 0"),
        ({"every": True}, ValueError, "got True"),
        ({"loss": 3.0}, TypeError, "function without arguments"),
        ({"writer": "runs"}, TypeError, "SummaryWriter"),
        ({"on_record": 3}, TypeError, "on_record must be a function of a record; got int"),
    ],
)
def test_bad_settings_are_refused(options, error, message):
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer)
    with pytest.raises(error, match=message):
        projection.monitor(**options)


def test_a_detached_projection_and_a_second_monitor_are_refused():
    model = network()
    optimizer = sgd(model)
    projection = pbwn.attach(model, optimizer)
    projection.monitor()
    with pytest.raises(RuntimeError, match=r"already has a monitor: call its stop\(\)"):
        projection.monitor()
    projection.detach()
    projection._monitor.stop()
    with pytest.raises(RuntimeError, match=r"detached.*call rebind\(optimizer\) first"):
        projection.monitor()


OPTIONS = {"skip": ["2"]}


def records_of_one_process():
    model = network()
    optimizer = sgd(model)
    monitor = pbwn.attach(model, optimizer, **OPTIONS).monitor(every=2)
    train(model, optimizer, range(4))
    return monitor.records


def sharded_records():
    for cut in (0, 1):
        model = network()
        fully_shard(model, shard_placement_fn=lambda parameter, cut=cut: placed(parameter, cut))
        optimizer = sgd(model)
        projection = pbwn.attach(model, optimizer, **OPTIONS)
        monitor = projection.monitor(every=2, loss=lambda model=model: model(batch(0)[0]).sum())
        train(model, optimizer, range(4))
        assert projection.check().ok
        expected = records_of_one_process()
        assert len(monitor.losses) == 2
        for found, other in zip(monitor.records, expected, strict=True):
            assert (found["step"], found["weight"]) == (other["step"], other["weight"])
            numbers = {name: other[name] for name in NUMBERS}
            assert {name: found[name] for name in NUMBERS} == pytest.approx(numbers, rel=1e-3, abs=1e-5)


def placed(parameter, cut):
    """Cut along neurons, or along the fan-in where that divides evenly."""
    return torch.distributed.tensor.Shard(cut if parameter.ndim > 1 and parameter.shape[cut] % 2 == 0 else 0)


def test_sharded_weights_give_the_records_of_one_process():
    run_on_processes(sharded_records)
