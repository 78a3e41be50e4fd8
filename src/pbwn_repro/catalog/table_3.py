"""Table 3: residual networks on CIFAR-10."""

from pbwn_repro.catalog import residual
from pbwn_repro.catalog.artefact import TrainedArtefact
from pbwn_repro.catalog.cifar import DEPARTURES

TABLE_3 = TrainedArtefact(
    name="table-3",
    title="Residual networks on CIFAR-10",
    about="Test error of residual networks with 20 to 110 layers, with each of the five methods.",
    protocol=residual.PROTOCOL,
    departures=DEPARTURES,
    axes=residual.axes,
    wishes=residual.wishes("cifar10", stand_in="epochs"),
    seeds={"smoke": 2, "short": 3, "paper": 5},
)
