"""Table 2: VGG-E on CIFAR-10 and CIFAR-100."""

from pbwn_repro.catalog.artefact import TrainedArtefact
from pbwn_repro.catalog.cifar import DEPARTURES, both_sets, on_both_sets

TABLE_2 = TrainedArtefact(
    name="table-2",
    title="VGG-E on CIFAR",
    about="Test error of VGG-E with batch normalisation on CIFAR-10 and CIFAR-100, with each of the five methods.",
    protocol="SGD with momentum 0.9, weight decay 0.0005, batch 128, learning rate 0.1 divided by 5 at epochs 80 and "
    "120 of 160; five seeds, error after the last epoch.",
    departures=DEPARTURES,
    axes=both_sets,
    wishes=on_both_sets("vgg-e", short_epochs=8),
)
