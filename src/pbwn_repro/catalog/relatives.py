"""Related methods: those that the paper compares its own with or calls orthogonal to it, on small networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog import figure_2
from pbwn_repro.catalog.artefact import (
    Axis,
    Column,
    Labels,
    MeasuredArtefact,
    PaperTable,
    Scale,
    TrainedArtefact,
    Value,
)
from pbwn_repro.catalog.cifar import STAND_INS
from pbwn_repro.catalog.claims import Better, Claim, Costs, NotWorse, Trains, Wider, Within
from pbwn_repro.methods import method

NETWORKS = {"mlp": "MLP", "mlp-bn": "MLP with BN"}
NORMALISERS = {"mlp-bn": "Batch", "mlp-ln": "Layer", "mlp-dn": "Divisive"}
NORMALISATION = {"bn": "batch", "ln": "layer", "dn": "divisive"}
DECAYS = {f"decay-{decay:g}": decay for decay in (0.0001, 0.001)}
LIMITS = ("max-norm-1", "max-norm-2", "max-norm-4")
ROWS: tuple[str, ...] = (
    *("normal", "unit-start", *DECAYS, *LIMITS, "wn", "own", "path-sgd", "sgd-g", "sgd-g-unclipped", "adam-g"),
    *("pbwn-outgoing", "pbwn-riem", "pbwn"),
)
ON_RESNET = ("normal", "wn", "own", "max-norm-2", "sgd-g", "adam-g", "pbwn-outgoing", "pbwn-riem", "pbwn")
WITHOUT_DECAY = {"normal-no-decay": "normal", "pbwn-no-decay": "pbwn"}  # on networks whose recipe has a weight decay
TIMED = ("normal", "wn", "own", "path-sgd", "sgd-g", "adam-g", "max-norm", "pbwn-outgoing", "pbwn-riem", "pbwn")
# Path-SGD divides each step by products of squared weights, which are of this order in this network.
PATH_SCALE = 1e-3
GOOD = 0.5  # percentage points above the lowest test error
TRAINED = 10.0  # percent: the test error of a network that trains is below
SEEDS: dict[Scale, int] = {"smoke": 1, "short": 1, "paper": 1}
SEEDS_AT_BEST: dict[Scale, int] = {"short": 3, "paper": 3}
SHARED = ("normal", "unit-start", "pbwn-riem", "pbwn")  # methods whose runs without BN are figure 2a's
RESNET_COLUMNS = {"batch": "BN", "layer": "LN", "divisive": "DN"}


def row_title(value: Value) -> str:
    """Return the title of a row."""
    name = str(value)
    if name in WITHOUT_DECAY:
        return f"{method(WITHOUT_DECAY[name]).title}, no decay"
    return f"Weight decay {DECAYS[name]:g}" if name in DECAYS else method(name).title


def _rows(names: tuple[str, ...]) -> Axis:
    methods: dict[Value, str] = dict.fromkeys(DECAYS, "decay")
    methods.update((key, name) for key, name in WITHOUT_DECAY.items())
    return Axis("method", names, "row", methods=methods, title=row_title)


def _method(labels: Labels) -> Mapping[str, Any]:
    """Return the overrides for the method of a row and its weight decay."""
    name = str(labels["method"])
    if name in WITHOUT_DECAY:
        return {"method": WITHOUT_DECAY[name], "weight_decay": 0.0}
    return {"method": "decay", "weight_decay": DECAYS[name]} if name in DECAYS else {"method": name}


def _mlp(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    """Return the overrides for figure 2's MLP; the suffix of the network's name selects the normalisation."""
    base = dict(figure_2.overrides({"sizes": "paper", "init": "paper", **labels}, scale))
    _, _, normalisation = str(labels["network"]).partition("-")
    if normalisation:
        base["model_options"] = {**base["model_options"], "normalisation": NORMALISATION[normalisation]}
    rate = float(labels["lr"]) * (PATH_SCALE if labels["method"] == "path-sgd" else 1.0)
    return {**base, **_method(labels), "lr": rate}


def _rates(scale: Scale) -> Axis:
    return Axis("lr", (0.3,) if scale == "smoke" else figure_2.RATES, "searched")


def _table(networks: Mapping[str, str], rows: tuple[str, ...]) -> PaperTable:
    kinds = {"final_training_loss": "training loss", "test_error": "test error (%)"}
    columns = [
        Column(f"{title}, {words}", value, metric)
        for value, title in networks.items()
        for metric, words in kinds.items()
    ]
    titles = {name: row_title(name) for name in rows}
    return PaperTable("training loss and test error", titles, tuple(columns), {}, by_metric=True)


RELATIVES = TrainedArtefact(
    name="relatives",
    title="Related methods on figure 2's network",
    about="Training loss and test error of figure 2's MLP on MNIST, with and without batch normalisation, for each "
    "method that the paper compares its own with in the text, at its best learning rate; the time of a step, and the "
    "number of learning rates at which the method is good.",
    protocol="As figure 2a: plain SGD, batch 256, 20 epochs, learning rates 1, 0.3, 0.1, 0.03, 0.01 for every method; "
    "one seed, three at the best rate.",
    departures=(
        "The paper has no such experiment.",
        "The best rate is the one with the lowest test error.",
        "Path-SGD uses a thousandth of these rates, because it divides each step by products of squared weights.",
        "SGD-G and Adam-G: the learning rate applies to the weights on spheres; biases use a twentieth and a fifth of "
        "it, as published. The term of the loss that favours orthogonal rows is left out. Figure 2 has no momentum, so "
        "they have none either: SGD-G transports none, and beta1 of Adam-G is 0, where Cho and Lee use 0.9 for both.",
        "OWN orthogonalises rows in groups of at most 64 and has no scale.",
        "Each limit of max-norm and each weight decay is a row of its own, searched over the same rates.",
    ),
    table=_table(NETWORKS, ROWS),
    claims=(
        Claim(
            "relatives-wn",
            "We experimentally show that our method outperforms weight normalization, in terms of both the "
            "effectiveness and computation efficiency",
            "the test error is lower than that of WN",
            Better(("pbwn",), ("wn",)),
        ),
        Claim(
            "relatives-regularisation",
            "the proposed method has the property of regularization as weight decay",
            "the gap between test and training loss is smaller than Normal's",
            Better(("pbwn",), ("normal",), "loss_gap", beside="test_error"),
            note="Our test. The next claim applies it to weight decay itself.",
        ),
        Claim(
            "relatives-decay",
            "the proposed method has the property of regularization as weight decay",
            "with weight decay, the gap between test and training loss is smaller than Normal's",
            Better(tuple(DECAYS), ("normal",), "loss_gap", beside="test_error"),
            note="Our control: what weight decay itself does not do here cannot be required of PBWN.",
        ),
        Claim(
            "relatives-clipping",
            "requires gradient clipping technique to make optimization stable",
            f"SGD-G with clipping is good at more learning rates than without (within {GOOD:g} points of the lowest "
            "error)",
            Wider(("sgd-g",), ("sgd-g-unclipped",), "lr", GOOD),
        ),
        Claim(
            "relatives-stable",
            "These characteristics make our projection based weight normalization have stable optimization process",
            f"with batch normalisation, PBWN trains at every learning rate (test error below {TRAINED:g} %)",
            Trains(("pbwn",), "lr", TRAINED, ("mlp-bn",)),
        ),
        Claim(
            "relatives-rates",
            "our method is more general without requiring any extra tailored revision",
            f"PBWN is good at more learning rates than SGD-G (within {GOOD:g} points of the lowest error)",
            Wider(("pbwn",), ("sgd-g",), "lr", GOOD),
            note="Our test, not the paper's wording: a method that needs no tailoring should not need a finer search.",
        ),
    ),
    axes=lambda scale: (_rows(ROWS), Axis("network", tuple(NETWORKS), "column"), _rates(scale)),
    overrides=_mlp,
    seeds=SEEDS,
    seeds_at_best=SEEDS_AT_BEST,
    home=lambda labels: "figure-2a" if labels["network"] == "mlp" and labels["method"] in SHARED else "relatives",
    exists=lambda labels: labels["method"] != "path-sgd" or labels["network"] == "mlp",
)

NORMALISERS_ARTEFACT = TrainedArtefact(
    name="normalisers",
    title="Batch, layer and divisive normalisation, with and without PBWN",
    about="Training loss and test error of figure 2's MLP with batch, layer or divisive normalisation between its "
    "layers, with and without PBWN.",
    protocol="As figure 2a: learning rates 1, 0.3, 0.1, 0.03, 0.01; one seed, three at the best rate.",
    departures=(
        "The paper has no such experiment.",
        "Divisive normalisation uses mean and variance over the 61 units around each unit, with sigma = 1; the L1 term "
        "of the published loss is left out.",
    ),
    table=_table(NORMALISERS, ("normal", "pbwn")),
    claims=(
        Claim(
            "normalisers-orthogonal",
            "Based on the fact that our method is orthogonal to these methods, [...] our method can improve the "
            "performance of batch normalization by combining them together",
            "with each normalisation, the test error is lower with PBWN than without",
            Better(("pbwn",), ("normal",), beside="final_training_loss"),
        ),
    ),
    axes=lambda scale: (_rows(("normal", "pbwn")), Axis("network", tuple(NORMALISERS), "column"), _rates(scale)),
    overrides=_mlp,
    seeds=SEEDS,
    seeds_at_best=SEEDS_AT_BEST,
    home=lambda labels: "relatives" if labels["network"] == "mlp-bn" else "normalisers",
)


def _resnet(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    options = {} if labels["normalisation"] == "batch" else {"normalisation": labels["normalisation"]}
    shared = {"model": "resnet-20", "model_options": options, **_method(labels), "lr": labels["lr"]}
    if scale == "smoke":
        return {**shared, **STAND_INS["cifar10"]}
    return {**shared, "data": "cifar10", **({"epochs": 2, "schedule.drops": [2]} if scale == "short" else {})}


RELATIVES_RESNET = TrainedArtefact(
    name="relatives-resnet",
    title="Related methods on a residual network",
    about="Test error of ResNet-20 on CIFAR-10 with the methods that support it, and with layer or divisive "
    "normalisation in place of batch normalisation.",
    protocol="As table 3, at learning rate 0.1.",
    departures=(
        "The paper has no such experiment.",
        "At short scale training takes two epochs, the second at a tenth of the learning rate: enough to see which "
        "methods train, not which is best.",
        "SGD-G and Adam-G keep the recipe's momentum of 0.9, without Nesterov's, which Cho and Lee use as well.",
    ),
    table=PaperTable(
        "test error (%)",
        {name: row_title(name) for name in (*ON_RESNET, *WITHOUT_DECAY)},
        tuple(Column(title, value) for value, title in RESNET_COLUMNS.items()),
        {},
        by_metric=True,
    ),
    claims=(
        Claim(
            "relatives-resnet-orthogonal",
            "our method is orthogonal to these methods",
            "with each normalisation, the test error with PBWN is at most 1 point above that without",
            NotWorse(("pbwn",), ("normal",), 1.0),
        ),
        Claim(
            "relatives-resnet-regularisation",
            "the proposed method has the property of regularization as weight decay",
            "without weight decay, the gap between test and training loss is smaller than Normal's",
            Better(("pbwn-no-decay",), ("normal-no-decay",), "loss_gap", beside="test_error"),
            note="Our test; at short scale the networks have seen the images only twice.",
        ),
    ),
    axes=lambda scale: (
        _rows((*ON_RESNET, *WITHOUT_DECAY)),
        Axis("normalisation", tuple(RESNET_COLUMNS), "column"),
        Axis("lr", (0.1,), "searched"),
    ),
    overrides=_resnet,
    seeds={"smoke": 1, "short": 2, "paper": 3},
    exists=lambda labels: labels["normalisation"] == "batch" or labels["method"] in ("normal", "pbwn"),
)

INTERVALS_BN = TrainedArtefact(
    name="intervals-bn",
    title="Updating intervals with batch normalisation",
    about="Training loss of figure 2b's MLP with batch normalisation and a projection after every T iterations, for T "
    "from 1 to 100.",
    protocol="As figure 2b, with batch normalisation between each hidden layer and its ReLU.",
    departures=("The paper says that batch normalisation remedies the jumps, but does not show it.",),
    claims=(
        Claim(
            "intervals-bn-remedy",
            "executing norm projection by large interval results in the sudden increase of loss [...] Fortunately, we "
            "can remedy this issue by combing with batch normalization",
            "the largest rise of the loss within the first epoch is at most 0.1 above that at T = 1",
            NotWorse(("50", "100"), ("1",), 0.1, "early_jump"),
            note="The output layer, which batch normalisation does not follow, is projected too, as in figure 2b.",
        ),
    ),
    axes=lambda scale: figure_2.interval_axes(scale)[:1],
    overrides=lambda labels, scale: (
        figure_2.interval_overrides({"sizes": "paper", "init": "paper", **labels}, scale)
        | {"model_options": {"sizes": "paper", "normalisation": "batch"}}
    ),
    seeds=figure_2.SEEDS,
    metric="final_training_loss",
    curves="iteration",
    home=lambda labels: "relatives" if labels["interval"] == 1 else "intervals-bn",
)


def _timing(scale: Scale) -> Mapping[str, Any]:
    batches: Mapping[Scale, tuple[int, int]] = {"smoke": (4, 2), "short": (256, 32), "paper": (256, 128)}
    return {
        "networks": ["mlp", "resnet-20"],
        "methods": list(TIMED),
        "left_out": {"resnet-20": ["path-sgd"]},
        "batch_sizes": dict(zip(("mlp", "resnet-20"), batches[scale], strict=True)),
        "rounds": 2 if scale == "smoke" else 25,
    }


RELATIVES_TIME = MeasuredArtefact(
    name="relatives-time",
    title="Time per step of related methods",
    about="The time of a whole training step of figure 2's MLP and of ResNet-20 with each method.",
    protocol="Whole training steps, all methods in turn in each of 25 rounds; batch 256 for the MLP and 128 for "
    "ResNet-20 (32 at short scale).",
    departures=(
        "The paper times none of these.",
        "Images are random values kept in memory.",
        "SGD-G, Adam-G, OWN and path-SGD are plain PyTorch operations, one weight at a time; PBWN uses the library's "
        "path, which is compiled if numba is installed, and WN uses torch's fused operator. Part of a difference is "
        "therefore due to the implementation.",
        "The MLP is timed without momentum, as in figure 2, so that SGD-G's transport is timed on ResNet-20 only.",
    ),
    table=PaperTable(
        "time of a step",
        {name: row_title(name) for name in TIMED},
        (Column("MLP", "mlp", "cost"), Column("ResNet-20", "resnet-20", "cost")),
        {},
    ),
    claims=(
        Claim(
            "relatives-time-great-circles",
            "they only use the traditional Riemannian optimization method [...] which introduce non-trivial "
            "commutation cost",
            "a step of SGD-G takes at least 10 % more time than Normal's",
            Costs("sgd-g", 10.0, None),
        ),
        Claim(
            "relatives-time-cheaper",
            "a more general and efficient projection based weight normalization framework, which introduces negligible "
            "extra computation cost",
            "a step of PBWN takes less time than one of SGD-G",
            Better(("pbwn",), ("sgd-g",), "cost"),
        ),
        Claim(
            "relatives-time-orthogonal",
            "Some work also consider orthogonal weight matrix in feed forward neural networks, while their solutions "
            "introduce expensive computation costs",
            "a step of OWN takes at least 10 % more time than Normal's",
            Costs("own", 10.0, None),
        ),
        Claim(
            "relatives-time-wn",
            "our method outperforms weight normalization, in terms of both the effectiveness and computation "
            "efficiency",
            "a step of PBWN takes less time than one of WN",
            Better(("pbwn",), ("wn",), "cost"),
        ),
    ),
    measurement="time-cost",
    options=_timing,
)

DOMINANT = 0.5  # share of the squared gradient norm
KEPT = (0.5, 2.0)  # by a factor of two in either direction


def _gradients(scale: Scale) -> Mapping[str, Any]:
    lengths: Mapping[Scale, Mapping[str, Any]] = {
        "smoke": {"data": "digits", "batch_size": 64, "steps": 20, "every": 5, "seeds": 2},
        "short": {"data": "mnist", "batch_size": 256, "steps": 1_170, "every": 26, "seeds": 3},
        "paper": {"data": "mnist", "batch_size": 256, "steps": 4_680, "every": 52, "seeds": 5},
    }
    return {"networks": list(NETWORKS), "methods": ["normal", "pbwn"], "lr": figure_2.BEST_RATE, **lengths[scale]}


GRADIENTS = MeasuredArtefact(
    name="gradients",
    title="Effect of the constraint on gradients",
    about="For each layer of figure 2's MLP during training: the share of the squared gradient norm that lies along "
    "the weights, which the Riemannian gradient removes (equation 8), and the factor by which a linear layer changes "
    "the norm of the gradient that it propagates back.",
    protocol="Figure 2's protocol at learning rate 0.3, measured at 90 points over 20 epochs; five seeds.",
    departures=("The paper states both properties and shows neither.",),
    claims=(
        Claim(
            "gradients-not-dominant",
            "(w^T dL/dw) w is not a dominant term compared to dL/dw [...] We also observe this fact in our experiments",
            "less than half of the squared gradient norm lies along the weights, in every layer",
            Within("pbwn", "gradient_share", 0.0, DOMINANT),
            remark="Equation (8), from which the paper concludes this, bounds the term by the gradient's own norm.",
        ),
        Claim(
            "gradients-kept",
            "it can keep the norm of back-propagation information during linear transformations",
            "a linear layer propagates back between half and twice the gradient norm that it receives, in every layer",
            Within("pbwn", "passed_back", *KEPT),
            remark="Unit-norm rows bound what one neuron propagates back; the effect of a layer depends on its number "
            "of neurons.",
        ),
    ),
    measurement="gradients",
    options=_gradients,
)
