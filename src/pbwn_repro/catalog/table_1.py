"""Table 1: Inception on CIFAR-10 and CIFAR-100."""

from pbwn_repro.catalog.artefact import TrainedArtefact
from pbwn_repro.catalog.cifar import DEPARTURES, both_sets, on_both_sets

TABLE_1 = TrainedArtefact(
    name="table-1",
    title="Inception on CIFAR",
    about="Test error of Inception with batch normalisation on CIFAR-10 and CIFAR-100, with each of the five methods.",
    protocol="SGD with momentum 0.9, weight decay 0.0005, batch 64, learning rate 0.1 divided by 5 at epochs 50, 80 "
    "and 100 of 120; five seeds, error after the last epoch.",
    departures=DEPARTURES,
    axes=both_sets,
    wishes=on_both_sets("inception", short_epochs=12),
)
