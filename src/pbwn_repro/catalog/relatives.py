"""The paper's relatives: what it says it is better than, cheaper than or orthogonal to, on its own small networks."""

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
WITHOUT_DECAY = {"normal-no-decay": "normal", "pbwn-no-decay": "pbwn"}  # where the recipe has some
TIMED = ("normal", "wn", "own", "path-sgd", "sgd-g", "adam-g", "max-norm", "pbwn-outgoing", "pbwn-riem", "pbwn")
# Path-SGD divides each step by the squared weights of paths, which are about this small in this network.
PATH_SCALE = 1e-3
GOOD = 0.5  # points of test error above the lowest
LEARNT = 10.0  # percent: a network that trains is below
SEEDS: dict[Scale, int] = {"smoke": 1, "short": 1, "paper": 1}
SEEDS_AT_BEST: dict[Scale, int] = {"short": 3, "paper": 3}
SHARED = ("normal", "unit-start", "pbwn-riem", "pbwn")  # their runs without BN are figure 2a's
RESNET_COLUMNS = {"batch": "BN", "layer": "LN", "divisive": "DN"}


def row_title(value: Value) -> str:
    """What a row is called."""
    name = str(value)
    if name in WITHOUT_DECAY:
        return f"{method(WITHOUT_DECAY[name]).title}, no decay"
    return f"Weight decay {DECAYS[name]:g}" if name in DECAYS else method(name).title


def _rows(names: tuple[str, ...]) -> Axis:
    methods: dict[Value, str] = dict.fromkeys(DECAYS, "decay")
    methods.update((key, name) for key, name in WITHOUT_DECAY.items())
    return Axis("method", names, "row", methods=methods, title=row_title)


def _method(labels: Labels) -> Mapping[str, Any]:
    """The method of a row, with its weight decay."""
    name = str(labels["method"])
    if name in WITHOUT_DECAY:
        return {"method": WITHOUT_DECAY[name], "weight_decay": 0.0}
    return {"method": "decay", "weight_decay": DECAYS[name]} if name in DECAYS else {"method": name}


def _mlp(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    """Figure 2's network; what stands between its layers is the ending of its name."""
    made = dict(figure_2.overrides({"sizes": "paper", "init": "paper", **labels}, scale))
    _, _, normalisation = str(labels["network"]).partition("-")
    if normalisation:
        made["model_options"] = {**made["model_options"], "normalisation": NORMALISATION[normalisation]}
    rate = float(labels["lr"]) * (PATH_SCALE if labels["method"] == "path-sgd" else 1.0)
    return {**made, **_method(labels), "lr": rate}


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
    title="The paper's relatives on figure 2's network",
    about="Training loss and test error of figure 2's MLP on MNIST, with and without batch normalisation, with each "
    "method that the paper compares itself with in words, at its best learning rate; the time of its step, and at how "
    "many of the learning rates it is good.",
    protocol="As figure 2a: plain SGD, batch 256, 20 epochs, learning rates 1, 0.3, 0.1, 0.03, 0.01 for every method, "
    "with one seed; three seeds at the best.",
    departures=(
        "The paper has no such experiment.",
        "The best rate is the one with the lowest test error.",
        "Path-SGD's rates are a thousandth of these: it divides each step by products of squared weights.",
        "SGD-G and Adam-G: the learning rate is that of the weights on spheres; biases have a twentieth and a fifth "
        "of it, as published. Their loss has no term for orthogonal rows. Figure 2 has no momentum, so they have none "
        "either: SGD-G carries nothing along, and beta1 of Adam-G is 0, where Cho and Lee have 0.9 for both.",
        "OWN makes at most 64 rows orthogonal to each other, and has no scale.",
        "Limits of max-norm and weight decays are rows of their own: each is searched over the same rates.",
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
            "the test loss lies less above the training loss than that of Normal",
            Better(("pbwn",), ("normal",), "loss_gap", beside="test_error"),
            note="A test of ours. The next claim asks the same of weight decay.",
        ),
        Claim(
            "relatives-decay",
            "the proposed method has the property of regularization as weight decay",
            "with weight decay, the test loss lies less above the training loss than that of Normal",
            Better(tuple(DECAYS), ("normal",), "loss_gap", beside="test_error"),
            note="A control of ours: what weight decay itself does not do here, PBWN need not do to be like it.",
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
            f"with batch normalisation PBWN trains at every learning rate (test error below {LEARNT:g} %)",
            Trains(("pbwn",), "lr", LEARNT, ("mlp-bn",)),
        ),
        Claim(
            "relatives-rates",
            "our method is more general without requiring any extra tailored revision",
            f"PBWN is good at more learning rates than SGD-G (within {GOOD:g} points of the lowest error)",
            Wider(("pbwn",), ("sgd-g",), "lr", GOOD),
            note="A test of ours, not the paper's words: a method that needs no tailoring should not need a narrower "
            "search.",
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
    about="Figure 2's MLP with what normalises activations between its layers.",
    protocol="As figure 2a: learning rates 1, 0.3, 0.1, 0.03, 0.01 with one seed; three seeds at the best.",
    departures=(
        "The paper has no such experiment.",
        "Divisive normalisation divides by the 61 units around each, with sigma = 1, without the L1 term of its loss.",
    ),
    table=_table(NORMALISERS, ("normal", "pbwn")),
    claims=(
        Claim(
            "normalisers-orthogonal",
            "Based on the fact that our method is orthogonal to these methods, [...] our method can improve the "
            "performance of batch normalization by combining them together",
            "the test error with PBWN is lower than without, whatever normalises the activations",
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
    title="The paper's relatives on a residual network",
    about="Test error of the residual network with 20 layers on CIFAR-10, with what works there, and with layer and "
    "divisive normalisation in batch normalisation's place.",
    protocol="As table 3; learning rate 0.1.",
    departures=(
        "The paper has no such experiment.",
        "At short scale two epochs, the second with a tenth of the rate: enough to see what trains, not what is best.",
        "SGD-G and Adam-G keep the recipe's momentum of 0.9; Nesterov's, which Cho and Lee use beside, is not.",
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
            "the test error with PBWN is at most 1 point above that without, whatever normalises the activations",
            NotWorse(("pbwn",), ("normal",), 1.0),
        ),
        Claim(
            "relatives-resnet-regularisation",
            "the proposed method has the property of regularization as weight decay",
            "without weight decay, the test loss of PBWN lies less above the training loss than that of Normal",
            Better(("pbwn-no-decay",), ("normal-no-decay",), "loss_gap", beside="test_error"),
            note="A test of ours, at short scale on networks that have seen the images twice.",
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
    title="Updating intervals behind batch normalisation",
    about="Figure 2b's MLP with batch normalisation, projected after every T iterations, T from 1 to 100.",
    protocol="As figure 2b, with batch normalisation between each hidden layer and its ReLU.",
    departures=("The paper says that batch normalisation remedies the jumps, and does not show it.",),
    claims=(
        Claim(
            "intervals-bn-remedy",
            "executing norm projection by large interval results in the sudden increase of loss [...] Fortunately, we "
            "can remedy this issue by combing with batch normalization",
            "the largest rise of the loss within the first epoch is at most 0.1 above that at T = 1",
            NotWorse(("50", "100"), ("1",), 0.1, "early_jump"),
            note="The classifier, which no batch normalisation follows, is projected too, as in figure 2b.",
        ),
    ),
    axes=lambda scale: figure_2.interval_axes(scale)[:1],
    overrides=lambda labels, scale: (
        figure_2.interval_wishes({"sizes": "paper", "init": "paper", **labels}, scale)
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
    title="What the relatives' steps cost",
    about="The time of whole training steps of figure 2's MLP and of the residual network with 20 layers with each "
    "method.",
    protocol="Whole training steps, all methods in turn in each of 25 rounds; batch 256 for the MLP, 128 for the "
    "residual network (32 at short scale).",
    departures=(
        "The paper times none of these.",
        "Images are random values and stay in memory.",
        "SGD-G, Adam-G, OWN and path-SGD are plain PyTorch operations, weight by weight; PBWN has the library's path, "
        "compiled where numba is installed, and WN torch's fused operator: part of a difference is that of the code.",
        "The MLP is timed without momentum, as figure 2 trains it, so SGD-G's transport is timed on ResNet-20 alone.",
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

DOMINANT = 0.5  # of the squared norm of the gradient
KEPT = (0.5, 2.0)  # a factor of two either way


def _gradients(scale: Scale) -> Mapping[str, Any]:
    lengths: Mapping[Scale, Mapping[str, Any]] = {
        "smoke": {"data": "digits", "batch_size": 64, "steps": 20, "every": 5, "seeds": 2},
        "short": {"data": "mnist", "batch_size": 256, "steps": 1_170, "every": 26, "seeds": 3},
        "paper": {"data": "mnist", "batch_size": 256, "steps": 4_680, "every": 52, "seeds": 5},
    }
    return {"networks": list(NETWORKS), "methods": ["normal", "pbwn"], "lr": figure_2.BEST_RATE, **lengths[scale]}


GRADIENTS = MeasuredArtefact(
    name="gradients",
    title="What the constraint does to gradients",
    about="By layer of figure 2's MLP while it trains: the share of the squared gradient that lies along the weights, "
    "which the Riemannian gradient takes out (equation 8), and by how much a linear layer changes the norm of what it "
    "passes back.",
    protocol="Figure 2's protocol at learning rate 0.3, seen at 90 places of 20 epochs; five seeds.",
    departures=("The paper states both and shows neither.",),
    claims=(
        Claim(
            "gradients-not-dominant",
            "(w^T dL/dw) w is not a dominant term compared to dL/dw [...] We also observe this fact in our experiments",
            "less than half of the squared gradient lies along the weights, in every layer",
            Within("pbwn", "gradient_share", 0.0, DOMINANT),
            remark="Equation (8), from which the paper concludes it, bounds the term by the gradient's own norm.",
        ),
        Claim(
            "gradients-kept",
            "it can keep the norm of back-propagation information during linear transformations",
            "a linear layer passes back between half and twice the norm that it receives, in every layer",
            Within("pbwn", "passed_back", *KEPT),
            remark="Unit rows bound what one neuron passes back; what a layer does depends on how many it has.",
        ),
    ),
    measurement="gradients",
    options=_gradients,
)
