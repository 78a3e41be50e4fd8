"""Table 4: residual networks on CIFAR-100."""

from pbwn_repro.catalog import residual
from pbwn_repro.catalog.artefact import TrainedArtefact
from pbwn_repro.catalog.cifar import DEPARTURES

TABLE_4 = TrainedArtefact(
    name="table-4",
    title="Residual networks on CIFAR-100",
    about="Test error of residual networks with 20 to 110 layers, with each of the five methods.",
    protocol=residual.PROTOCOL,
    departures=DEPARTURES,
    axes=residual.axes,
    wishes=residual.wishes("cifar100"),
)
