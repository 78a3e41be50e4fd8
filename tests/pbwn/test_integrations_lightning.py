"""The callback inside the real Lightning Trainer."""

import csv
import os

import lightning.pytorch as lightning
import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pbwn
from pbwn.integrations.lightning import ProjectionCallback
from processes import run_on_processes

EPOCHS, BATCHES = 2, 6

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),  # Lightning's advice
    pytest.mark.filterwarnings("ignore:.*tensorboardX.* has been removed"),  # its advice on a logger that is not used
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),  # it calls torch's old name
]


class Module(lightning.LightningModule):
    """A small classifier; nothing in it is drawn at random, because Lightning does not save the random state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(3 * self.network(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)

    def train_dataloader(self):
        generator = torch.Generator().manual_seed(2)
        x, y = (
            torch.randn(4 * BATCHES, 6, generator=generator),
            torch.randint(0, 3, (4 * BATCHES,), generator=generator),
        )
        return DataLoader(TensorDataset(x, y), batch_size=4)


def fit(module, *callbacks, ckpt_path=None, **options):
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        **{
            "max_epochs": EPOCHS,
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "enable_progress_bar": False,
            "logger": False,
            **options,
        },
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


class SaveOnce(lightning.Callback):
    """Saves a checkpoint after the first epoch, as Lightning's own callback does."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_end(self, trainer, module):
        if not self.path.exists():
            trainer.save_checkpoint(self.path)


def assert_same_weights(module, expected):
    for name, tensor in expected.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor), name


def counter(callback):
    [steps] = callback.projection.state_dict()["steps"]
    return steps


@pytest.mark.parametrize("gradient", ["ordinary", "riemannian"])
def test_the_trainer_gives_what_a_plain_loop_gives(gradient):
    module = Module()
    callback = ProjectionCallback(gradient=gradient, every=2)
    fit(module, callback, accumulate_grad_batches=2, gradient_clip_val=0.5)

    plain = Module()
    optimizer = plain.configure_optimizers()
    pbwn.attach(plain, optimizer, gradient=gradient, every=2)
    for index, batch in enumerate(EPOCHS * list(plain.train_dataloader())):
        (plain.training_step(batch, index) / 2).backward()
        if index % 2 == 1:
            nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    assert_same_weights(module, plain)
    assert counter(callback) == EPOCHS * BATCHES // 2  # steps, not batches
    assert callback.certificate.ok
    assert callback.certificate.largest_deviation < 2e-6


@pytest.mark.parametrize("constraint", [pbwn.UnitNorm(), pbwn.UnitNorm(radius="initial")], ids=str)
def test_a_run_resumed_in_the_middle_of_an_interval_equals_an_uninterrupted_one(tmp_path, constraint):
    def callback():
        return ProjectionCallback(every=4, constraint=constraint)

    whole = Module()
    fit(whole, callback(), accumulate_grad_batches=2)

    first, path = callback(), tmp_path / "cut.ckpt"
    fit(Module(), first, SaveOnce(path), accumulate_grad_batches=2, max_epochs=1)
    assert first.certificate.between_projections

    resumed, second = Module(), callback()
    fit(resumed, second, accumulate_grad_batches=2, ckpt_path=path)
    assert counter(second) == EPOCHS * BATCHES // 2
    assert_same_weights(resumed, whole)


def test_a_checkpoint_of_a_run_without_the_callback_is_gone_on_from(tmp_path):
    path = tmp_path / "cut.ckpt"
    fit(Module(), SaveOnce(path))
    callback = ProjectionCallback()
    fit(Module(), callback, ckpt_path=path)
    assert counter(callback) == (EPOCHS - 1) * BATCHES
    assert callback.certificate.ok


def test_the_saved_model_is_a_plain_one(tmp_path):
    module = Module()
    trainer = fit(module, ProjectionCallback())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    plain = Module()
    plain.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"])
    torch.testing.assert_close(plain.network[0].weight.norm(dim=1), torch.ones(8))


class TwoOptimizers(Module):
    """Two optimizers, of which the second steps every other batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        first, *others = self.network
        return torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.AdamW(nn.ModuleList(others).parameters())

    def training_step(self, batch, index):
        one, other = self.optimizers()
        self.manual_backward(super().training_step(batch, index))
        one.step()
        if index % 2 == 1:
            other.step()
        one.zero_grad()
        other.zero_grad()


def test_each_of_several_optimizers_drives_its_own_weights():
    module, callback = TwoOptimizers(), ProjectionCallback()
    fit(module, callback)
    assert callback.projection.state_dict()["steps"] == [EPOCHS * BATCHES, EPOCHS * BATCHES // 2]
    assert callback.certificate.ok


class WithoutOptimizer(Module):
    def configure_optimizers(self):
        return None


@pytest.mark.filterwarnings("ignore:.*this fit will run with no optimizer")  # the very case
def test_a_module_without_an_optimizer_is_refused():
    with pytest.raises(ValueError, match="WithoutOptimizer has no optimizer that holds any of its parameters"):
        fit(WithoutOptimizer(), ProjectionCallback())


def test_the_deviation_is_logged_on_request():
    every_second_step = {"log_every_n_steps": 2, "accumulate_grad_batches": 2, "max_steps": 4}
    callback = ProjectionCallback(every=3, log_deviation=True, name="net")
    trainer = fit(Module(), callback, **every_second_step)
    deviation = trainer.logged_metrics["net/deviation"]
    assert deviation > 1e-4  # the fourth step is between projections
    assert deviation == pytest.approx(callback.certificate.largest_deviation)
    assert "net/deviation" not in fit(Module(), ProjectionCallback(name="net"), **every_second_step).logged_metrics


def test_a_trainer_that_never_logs_gets_no_deviation():
    callback = ProjectionCallback(log_deviation=True)
    fit(Module(), callback, log_every_n_steps=0)
    assert callback.certificate.ok


def test_the_same_module_can_be_fitted_again_and_again():
    module, callback = Module(), ProjectionCallback(every=4)
    fit(module, callback)
    fit(module, ProjectionCallback())  # another callback
    fit(module, callback)  # a used one, which begins anew
    assert counter(callback) == EPOCHS * BATCHES


def test_a_fit_that_failed_does_not_keep_the_module():
    class Failing(Module):
        def on_train_batch_end(self, *args):
            raise KeyError("failed")

    module, first = Failing(), ProjectionCallback()
    with pytest.raises(KeyError):
        fit(module, first)
    optimizer = module.configure_optimizers()
    assert pbwn.attach(module, optimizer).check().ok


def test_several_callbacks_share_a_model_by_their_names(tmp_path):
    def callbacks():
        return [
            ProjectionCallback(name="first", skip=["network.3"], every=4),
            ProjectionCallback(name="second", skip=["network.0"], constraint=pbwn.MaxNorm(0.7)),
        ]

    whole, resumed, path = Module(), Module(), tmp_path / "cut.ckpt"
    fit(whole, *callbacks(), SaveOnce(path))
    fit(resumed, *callbacks(), ckpt_path=path)
    assert_same_weights(resumed, whole)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"evry": 3}, TypeError, "no argument 'evry': did you mean 'every'"),
        ({"model": 3}, TypeError, "no argument 'model'"),
        ({"name": "a/b"}, ValueError, "name must be a word of letters.*got 'a/b'"),
    ],
)
def test_a_wrong_argument_is_noticed_before_training(options, error, words):
    with pytest.raises(error, match=words):
        ProjectionCallback(**options)


def test_an_optimizer_that_fabric_has_wrapped_is_followed():
    fabric = Fabric(accelerator="cpu", devices=1)
    network = Module().network
    model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), lr=0.1))
    projection = pbwn.attach(model, optimizer)
    fabric.backward(model(torch.randn(4, 6)).square().sum())
    optimizer.step()
    assert projection.state_dict()["steps"] == [1]
    assert projection.check().ok


def fit_in_two_processes():
    # What torchrun tells each process.
    rank = torch.distributed.get_rank()
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    module, callback = Module(), ProjectionCallback(every=2, log_deviation=True)
    trainer = fit(module, callback, strategy="ddp", devices=2, accumulate_grad_batches=3, log_every_n_steps=1)
    assert trainer.world_size == 2
    assert counter(callback) == EPOCHS * BATCHES // 2 // 3  # each process has half of the batches
    assert callback.certificate.ok
    assert not callback.certificate.between_projections
    assert trainer.logged_metrics["pbwn/deviation"] < 2e-6
    weights = nn.utils.parameters_to_vector(module.parameters()).detach()
    other = weights.clone()
    torch.distributed.broadcast(other, src=0)
    assert torch.equal(weights, other)


def test_two_processes_stay_together():
    run_on_processes(fit_in_two_processes, preload=["lightning.pytorch"])


def test_the_monitor_logs_each_weight_when_it_records(tmp_path):
    logger = lightning.loggers.CSVLogger(tmp_path)
    callback = ProjectionCallback(monitor=4)
    fit(Module(), callback, logger=logger, log_every_n_steps=1)
    assert {record["step"] for record in callback.monitor.records} == {4, 8, 12}
    [file] = tmp_path.rglob("metrics.csv")
    written = [float(line["pbwn/angle/network.0.weight"]) for line in csv.DictReader(file.read_text().splitlines())]
    angles = [each["angle"] for each in callback.monitor.records if each["weight"] == "network.0.weight"]
    assert written == pytest.approx(angles)
