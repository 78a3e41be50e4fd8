"""Three steps of every network with every method; `python tests/golden.py` adds the losses of new cases.

With `--all` it renews those of all cases. A change of initialisation, augmentation, order of data, method or optimizer
changes them. Renew them only where that is what was meant.
"""

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from pbwn_repro import methods
from pbwn_repro.config import read_config
from pbwn_repro.data import load
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Quiet
from pbwn_repro.engine.training import Training
from pbwn_repro.runs.environment import processor

STORED = Path(__file__).with_name("golden_losses.json")
# What other papers propose, on figure 2's network and a residual one.
RELATIVES = ("pbwn-outgoing", "pbwn-initial", "decay", "own", "sgd-g", "sgd-g-unclipped", "adam-g")
# Updates of deep networks on four images amplify rounding: these on the networks that do not.
STEP_RULES = ("pbwn-tangent", "pbwn-angle", "pbwn-angle-matrix")
STEADY = ("mlp", "resnet-8", "wrn-10-1", "char-gpt")
# Networks whose batch normalisation sees four images amplify rounding: from the second step on, their losses on two
# processors differ by up to a seventh.
AMPLIFYING = ("inception", "vgg-e", "imagenet-resnet-18", "imagenet-preresnet-18")
ELSEWHERE = ("path-sgd", "geoopt-rsgd")  # the one with settings of its own, the other in a library of others
OF_SOME = (*RELATIVES, *STEP_RULES, *ELSEWHERE)
METHODS = (*(name for name in methods.names() if name not in OF_SOME), "pbwn-t2", "max-norm-0.5")
FEW = ("normal", "wn", "pbwn", "pbwn-epoch")
SGD = {"kind": "sgd", "lr": 0.005, "momentum": 0.9, "weight_decay": 5e-4}
TINY = {"source": "synthetic:tiny10", "batch_size": 4}
# Each network on data of its kind, small: what is prepared and augmented in each way is there once at least.
SETTINGS = {
    "mlp": {"source": "synthetic:mnist", "data": {"normalisation": "mnist-mlp"}, "batch_size": 16},
    "inception": {**TINY, "data": {"normalisation": "cifar", "augmentation": "authors"}},
    "vgg-e": {**TINY, "data": {"normalisation": "cifar"}},
    "resnet-8": {"source": "digits", "batch_size": 16, "data": {"augmentation": "authors"}},
    "wrn-10-1": {**TINY, "data": {"augmentation": "he"}, "optimizer": {**SGD, "nesterov": True}},
    "imagenet-resnet-18": TINY,
    "imagenet-preresnet-18": TINY,
    "ladder": {
        "source": "digits",
        "batch_size": 20,
        "data": {"labels": 20},
        "model_options": {"hidden_sizes": [24, 12], "denoising_weights": [1000.0, 10.0, 0.1]},
        "optimizer": {"kind": "adam", "weight_decay": 1e-4},
        "schedule": {"kind": "linear-tail", "constant_steps": 1},
    },
    "char-gpt": {
        "source": "sentences",
        "batch_size": 4,
        "data": {"context": 32},
        "model_options": {"width": 32, "depth": 2},
        "optimizer": {"kind": "adamw", "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "warmup_steps": 2},
    },
}
# What the authors' code does otherwise, and what takes longer.
OTHERS = {
    "imagenet-preresnet-18, whole images": (
        ("pbwn",),
        {"source": "synthetic:imagenet", "batch_size": 2, "data": {"normalisation": "imagenet"}},
    ),
    "resnet-8, authors' start": (FEW, {**SETTINGS["resnet-8"], "init": "authors"}),
    "vgg-e, authors' start": (FEW, {**SETTINGS["vgg-e"], "init": "authors"}),
    "wrn-10-1, authors' start and layers": (FEW, {**SETTINGS["wrn-10-1"], "init": "authors", "scope": "authors"}),
    "mlp, LeCun's start": (FEW, {**SETTINGS["mlp"], "init": "lecun"}),
    "mlp,": (RELATIVES, SETTINGS["mlp"]),
    "resnet-8,": (RELATIVES, SETTINGS["resnet-8"]),
    "mlp, plain SGD": (("path-sgd",), {**SETTINGS["mlp"], "optimizer": {"kind": "sgd", "lr": 1e-5, "momentum": 0.0}}),
    **{
        f"{network}, {kind} normalisation": (
            ("normal", "pbwn"),
            {**SETTINGS[network], "model_options": {"normalisation": kind}},
        )
        for network, kinds in (("mlp", ("batch", "layer", "divisive")), ("resnet-8", ("layer", "divisive", "none")))
        for kind in kinds
    },
    "ladder, AMLP": (
        ("normal", "pbwn"),
        {**SETTINGS["ladder"], "model_options": {**SETTINGS["ladder"]["model_options"], "combinator": "amlp"}},
    ),
}
CASES = {
    **{f"{model} {method}": (model, method, found) for model, found in SETTINGS.items() for method in METHODS},
    **{f"{model} {method}": (model, method, SETTINGS[model]) for model in STEADY for method in STEP_RULES},
    **{
        f"{words} {method}": (words.partition(",")[0], method, found)
        for words, (names, found) in OTHERS.items()
        for method in names
    },
}


class Lines:
    """A log in memory, for a run that leaves no files."""

    def __init__(self):
        self.lines = []

    def write(self, **values):
        self.lines.append(values)

    def position(self):
        return 0

    def save(self, step, files):
        pass


def losses(case):
    """The losses of the first three steps."""
    model, method, settings = CASES[case]
    fields = dict(settings)
    dataset = load(fields.pop("source"))
    data = {"name": dataset.name, "digest": dataset.digest, **fields.pop("data", {})}
    shared = {"model": model, "method": method, "optimizer": SGD, "steps": 3}
    config = read_config({**shared, **fields, "data": data})
    metrics = Lines()
    Training(config, dataset, Processes()).run(Lines(), metrics, Lines(), Quiet(), None)
    return [line["loss"] for line in metrics.lines if "loss" in line]


def machine():
    """What the last bits of a loss depend on."""
    try:
        numba = version("numba")
    except PackageNotFoundError:
        numba = None
    return {"processor": f"{processor()}{generation()}", "torch": torch.__version__, "numba": numba}


def generation():
    """The processor's family and model, where the system tells: one name may stand for several generations."""
    try:
        lines = [line.split(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        return ""
    told = {line[0].strip(): line[1].strip() for line in lines if len(line) == 2}
    words = {"cpu family": "family", "model": "model"}
    return "".join(f", {words[name]} {told[name]}" for name in words if name in told)


def completed(stored, cases):
    """What is stored, with the losses of new cases; of another machine they would not belong to the others."""
    if stored["losses"] and stored["machine"] != machine():
        sys.exit(f"the stored losses are of {stored['machine']}, this is {machine()}: renew all of them with --all")
    return {"machine": machine(), "losses": {case: stored["losses"].get(case) or losses(case) for case in cases}}


if __name__ == "__main__":
    torch.set_num_threads(1)
    stored = {"losses": {}} if "--all" in sys.argv else json.loads(STORED.read_text())
    STORED.write_text(json.dumps(completed(stored, CASES), indent=1) + "\n")
    print(f"{STORED} written")
