"""Table 8: the Ladder network on MNIST with 20, 50 and 100 labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import INIT, UNIT_START, Axis, Column, Labels, Scale, TrainedArtefact, read_table
from pbwn_repro.catalog.cifar import ERROR
from pbwn_repro.catalog.claims import Better, BetterThanQuoted, Claim

RATES = (0.001, 0.002, 0.0005)
DECAYS = (0.0001, 0.0002, 0.0)
LABELS = (20, 50, 100)
OTHERS = ("catgan", "skip-dgm", "aux-dgm", "vat", "ladder", "ladder-amlp", "gan-fm", "triple-gan")


def _axes(scale: Scale) -> tuple[Axis, ...]:
    return (
        Axis("method", ("normal", "pbwn"), "row", (UNIT_START,)),
        Axis("labels", LABELS, "column"),
        Axis("lr", RATES if scale == "paper" else RATES[:1], "searched"),
        Axis("weight_decay", DECAYS if scale == "paper" else DECAYS[:1], "searched"),
        Axis("denoising", ("authors", "rasmus"), "variant"),
        Axis("combinator", ("vanilla", "amlp"), "variant"),
        INIT,
    )


def _overrides(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    shared: dict[str, Any] = {"model": "ladder", **{name: labels[name] for name in ("method", "labels", "init")}}
    shared |= {"lr": labels["lr"], "weight_decay": labels["weight_decay"]}
    options: dict[str, Any] = {"denoising": labels["denoising"]}
    if labels["combinator"] != "vanilla":
        options["combinator"] = labels["combinator"]
    if scale == "smoke":
        options |= {"hidden_sizes": [50, 20], "denoising_weights": [100.0, 1.0, 0.1]}
        shared |= {"data": "digits", "steps": 30, "schedule.constant_steps": 20, "evaluate_every": 10, "log_every": 5}
    if scale == "short":
        shared |= {"steps": 15_000, "schedule.constant_steps": 10_000}
    return {**shared, "model_options": options}


TABLE_8 = TrainedArtefact(
    name="table-8",
    title="Semi-supervised learning on permutation invariant MNIST",
    about="Test error of the Ladder network with and without PBWN, given 20, 50 or 100 labels.",
    protocol="Adam, 50,000 iterations and 25,000 more with the learning rate decaying to 0; search over learning rates "
    "0.002, 0.001, 0.0005 and weight decays 0.0002, 0.0001, 0; ten seeds.",
    departures=(
        "The denoising cost has the form of the authors' code, (z_hat - m) s; `--only denoising=rasmus` selects the "
        "form of Rasmus et al., (z_hat - m) / s.",
        "The combinator is the vanilla one, as in the authors' code; `--only combinator=amlp` selects that of Pezeshki "
        "et al. (2016), which the table quotes as Ladder+AMLP.",
        "The unlabelled batch has 100 images for every number of labels, as in the authors' code; the paper's text "
        "reads as if its size were the number of labels.",
        "The BN scale of the output layer starts at 1; in the authors' code it is drawn uniformly from (0, 1), which "
        "`--only init=authors` selects.",
        "Below paper scale the learning rate is 0.001 and the weight decay 0.0001, as in the published scripts, "
        "without a search; at paper scale `--only lr=0.001,weight_decay=0.0001` selects a ninth of the runs.",
    ),
    table=read_table(
        ERROR,
        tuple(Column(f"{labels} labels", str(labels)) for labels in LABELS),
        """
        catgan      | CatGAN                          | -               | -               | 1.91 ± 0.1
        skip-dgm    | Skip Deep Generative Model      | -               | -               | 1.32 ± 0.07
        aux-dgm     | Auxiliary Deep Generative Model | -               | -               | 0.96 ± 0.02
        vat         | Virtual Adversarial             | -               | -               | 1.36
        ladder      | Ladder                          | -               | 1.62 ± 0.65     | 1.06 ± 0.37
        ladder-amlp | Ladder+AMLP                     | -               | -               | 1.002 ± 0.038
        gan-fm      | GAN with feature matching       | 16.77 ± 4.52    | 2.21 ± 1.36     | 0.93 ± 0.065
        triple-gan  | Triple-GAN                      | 4.81 ± 4.95     | 1.56 ± 0.72     | **0.91 ± 0.58**
        normal      | Ladder*                         | 9.67 ± 10.1     | 3.53 ± 6.6      | 1.12 ± 0.59
        pbwn        | Ladder+PBWN                     | **2.52 ± 2.42** | **1.06 ± 0.48** | **0.91 ± 0.05**
        """,
        seeds=10,
        others=dict.fromkeys(OTHERS, ()),
    ),
    claims=(
        Claim(
            "table-8-better",
            "our method significantly improves the performance of the original Ladder network",
            "the test error is lower than that of the Ladder network without projection",
            Better(("pbwn",), ("normal",)),
            remark="By Welch's test none of the three differences is significant with the paper's spreads and ten "
            "seeds. At 100 labels Triple-GAN, quoted in the same table, has the same 0.91.",
        ),
        Claim(
            "table-8-quoted",
            "achieves new state-of-the-art results in the tasks with 20, 50, and 100 labeled examples",
            "the test error is lower than each result that the table quotes for other systems",
            BetterThanQuoted(("pbwn",), OTHERS),
            remark="By the paper's own numbers, it equals Triple-GAN's at 100 labels, 0.91.",
            note="The quoted numbers are those printed in the paper; none of these systems was run here.",
        ),
    ),
    axes=_axes,
    overrides=_overrides,
    seeds={"smoke": 2, "short": 3, "paper": 10},
    skewed=True,
)
