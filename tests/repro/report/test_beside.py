"""The claims that stand beside the paper's tables: quoted numbers, rates that train, ranges of good rates, bounds."""

import json

import pytest

from pbwn_repro.bench.measuring import folder_of
from pbwn_repro.catalog import EXPERIMENTS, KNOWN, TrainedArtefact
from pbwn_repro.catalog.relatives import GRADIENTS, RELATIVES_TIME
from pbwn_repro.report.markdown import methods_compared
from pbwn_repro.report.sections import collect
from repro.report.folders import write_run

ENVIRONMENT = {"data": {"name": "mnist", "origin": "a drawer"}, "packages": {}, "code": {}}


def plans(artefact, scale="short", *, seeds=1, **labels):
    return KNOWN[artefact].plans(scale, seeds=seeds, only={name: [str(each)] for name, each in labels.items()})


def found(root, artefact, scale="short"):
    [section] = [each for each in collect(root).sections if (each.artefact.name, each.scale) == (artefact, scale)]
    return section


def decided(section, claim):
    [each] = [each for each in section.claims if each.claim.name == claim]
    return each


def write_rates(root, errors, **labels):
    """Runs of a row at all rates, with these test errors from the lowest rate to the highest; None diverges."""
    rates = sorted({plan.labels["lr"] for plan in plans("relatives", **labels)})
    for rate, error in zip(rates, errors, strict=True):
        for plan in plans("relatives", lr=rate, **labels):
            state = "done" if error is not None else "diverged"
            write_run(root, plan, errors=(20.0, error or 0.0), state=state)


@pytest.mark.parametrize(
    ("clipped", "unclipped", "outcome", "words"),
    [
        ((9.0, 5.0, 2.0, 2.2, 2.4), (9.0, 5.0, 2.1, 2.2, None), "holds", ("3 (0.1, 0.3, 1)", "2 (0.1, 0.3)")),
        ((9.0, 5.0, 2.0, 2.2, 3.0), (9.0, 5.0, 2.1, 2.2, 2.3), "does not hold", ("2 (0.1, 0.3)", "3 (0.1, 0.3, 1)")),
        ((9.0, 5.0, 2.0, 2.2, 3.0), (9.0, 5.0, 3.1, 3.2, 3.0), "holds", ("2 (0.1, 0.3)", "none")),
        ((9.0, 5.0, 2.0, 2.2, 3.0), (9.0, 5.0, 2.1, 2.2, 3.0), "does not hold", ("2 (0.1, 0.3)", "2 (0.1, 0.3)")),
    ],
)
def test_a_wider_range_is_one_with_more_good_rates(tmp_path, clipped, unclipped, outcome, words):
    write_rates(tmp_path, clipped, method="sgd-g", network="mlp")
    write_rates(tmp_path, unclipped, method="sgd-g-unclipped", network="mlp")
    claim = decided(found(tmp_path, "relatives"), "relatives-clipping")
    assert [verdict.outcome for verdict in claim.verdicts] == [outcome]
    assert claim.preliminary
    good, less = words
    assert claim.verdicts[0].sentence.startswith("Of 5 learning rates at MLP, those within 0.5 points of the lowest")
    assert claim.verdicts[0].sentence.endswith(f"test error (2 %): SGD-G has {good}; SGD-G, not clipped has {less}.")


def test_a_range_is_open_as_long_as_a_rate_has_no_run(tmp_path):
    for name in ("sgd-g", "sgd-g-unclipped"):
        for plan in plans("relatives", method=name, network="mlp", lr=0.3):
            write_run(tmp_path, plan)
    [verdict] = decided(found(tmp_path, "relatives"), "relatives-clipping").verdicts
    assert verdict.outcome == "undecided"
    assert "some have not been run" in verdict.sentence


@pytest.mark.parametrize(
    ("errors", "outcome", "words"),
    [
        ((9.0, 5.0, 2.0, 2.2, 9.9), "holds", "trains at 5 of 5 learning rates at MLP with BN."),
        ((9.0, 5.0, 2.0, 2.2, None), "does not hold", "trains at 4 of 5 learning rates at MLP with BN, not at 1."),
        ((12.0, 5.0, 2.0, 2.2, 3.0), "does not hold", "not at 0.01"),
    ],
)
def test_a_method_that_is_stable_trains_at_every_rate(tmp_path, errors, outcome, words):
    write_rates(tmp_path, errors, method="pbwn", network="mlp-bn")
    [verdict] = decided(found(tmp_path, "relatives"), "relatives-stable").verdicts
    assert verdict.outcome == outcome
    assert words in verdict.sentence


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [((0.80, 0.82, 0.81), "holds"), ((1.20, 1.21, 1.22), "does not hold"), ((0.9, 1.0, 0.95), "undecided")],
)
def test_ours_is_compared_with_the_numbers_that_the_table_quotes(tmp_path, errors, outcome):
    wanted = plans("table-8", seeds=3, method="pbwn", labels=100, denoising="authors", init="paper")
    wanted = [plan for plan in wanted if plan.labels["combinator"] == "vanilla"]
    for plan, error in zip(wanted, errors, strict=True):
        write_run(tmp_path, plan, errors=(2.0, error))
    claim = decided(found(tmp_path, "table-8"), "table-8-quoted")
    against = {verdict.against: verdict.outcome for verdict in claim.verdicts}
    assert against["Auxiliary Deep Generative Model"] == outcome  # 0.96
    assert len(against) == 8
    assert {"Ladder+AMLP", "Triple-GAN"} <= against.keys()


def test_the_regularisation_is_the_gap_between_test_and_training_loss(tmp_path):
    for name, loss in (("normal", 0.2), ("pbwn", 0.9), ("decay-0.001", 0.1)):
        for seed, plan in enumerate(plans("relatives", method=name, network="mlp-bn", lr=0.3, seeds=3)):
            write_run(tmp_path, plan, losses=(2.0, loss + seed / 100))  # the test loss is 1
    section = found(tmp_path, "relatives")
    assert section.runs.groupby("method").loss_gap.mean().round(2).to_dict() == {
        "normal": 0.79,
        "pbwn": 0.09,
        "decay-0.001": 0.89,
    }
    ours, control = (decided(section, f"relatives-{name}") for name in ("regularisation", "decay"))
    assert {verdict.row: verdict.outcome for verdict in ours.verdicts if verdict.row} == {"PBWN": "holds"}
    assert {verdict.row: verdict.outcome for verdict in control.verdicts}["Weight decay 0.001"] == "does not hold"


def test_the_table_tells_what_each_method_does_its_good_rates_and_its_time(tmp_path):
    write_rates(tmp_path, (9.0, 5.0, 2.0, 2.2, 2.4), method="own", network="mlp")
    write_rates(tmp_path, (9.0, 5.0, 2.6, 2.3, None), method="sgd-g", network="mlp")
    write_times(tmp_path)
    table = found(tmp_path, "relatives").table
    titles = {column.title: column for column in table.columns}
    good, time = titles["MLP, good rates of 5"], titles["MLP, time of a step over Normal's (%)"]
    assert [table.cells[key, good].ours.mean for key in ("own", "sgd-g")] == [3, 1]
    assert table.cells["wn", good].ours is None
    assert table.cells["own", time].ours.mean == pytest.approx(100.0)
    assert table.cells["decay-0.001", time].ours.mean == 0.0  # as Normal's
    about = {row.key: row.about for row in table.rows}
    assert about["own"] == "rows made orthonormal in each forward pass, by an eigendecomposition"
    assert all(about.values())


def test_the_readme_has_the_table_of_the_largest_scale_that_has_runs(tmp_path):
    (tmp_path / "empty").mkdir()
    assert methods_compared(collect(tmp_path / "empty")) == ""
    write_rates(tmp_path, (9.0, 5.0, 2.0, 2.2, 2.4), method="own", network="mlp")
    for plan in plans("relatives", "smoke", method="own", network="mlp"):
        write_run(tmp_path, plan)
    assert methods_compared(collect(tmp_path)) == "", "one method is nothing to compare"
    write_rates(tmp_path, (9.0, 5.0, 2.6, 2.3, None), method="sgd-g", network="mlp")
    text = methods_compared(collect(tmp_path))
    assert "figure 2's network (short scale)" in text
    assert "| OWN | rows made orthonormal in each forward pass, by an eigendecomposition | 1.00" in text


def write_times(root, scale="short"):
    options = RELATIVES_TIME.options(scale)
    networks = {}
    for network in options["networks"]:
        names = [name for name in options["methods"] if name not in options["left_out"].get(network, [])]
        seconds = {name: [2.0 if name == "own" else 1.0] * 8 for name in names}
        networks[network] = {
            **{"batch_size": 4, "steps_per_epoch": 10, "epochs": 2, "machine": {}},
            "methods": {
                name: {
                    "seconds": values,
                    "projection_seconds": 0.0,
                    "projection_percent": 0.0,
                    "percent_over_normal": {"value": 100 * (values[0] - 1), "low": 0.0, "high": 0.0},
                    "hours": values[0] * 20 / 3600,
                }
                for name, values in seconds.items()
            },
        }
    write_measured(root, RELATIVES_TIME, scale, {"rounds": 8, "methods": options["methods"], "networks": networks})


def write_measured(root, artefact, scale, result):
    folder = folder_of(root, artefact.name, scale, artefact.measurement, artefact.options(scale))
    folder.path.mkdir(parents=True)
    config = {"measurement": artefact.measurement, "options": artefact.options(scale)}
    folder.config.write_text(json.dumps(config))
    folder.environment.write_text(json.dumps(ENVIRONMENT))
    folder.result.write_text(json.dumps(result))


def test_what_orthogonal_rows_cost_is_decided_by_the_times(tmp_path):
    write_times(tmp_path)
    section = found(tmp_path, "relatives-time")
    assert decided(section, "relatives-time-orthogonal").outcome == "holds"
    assert decided(section, "relatives-time-great-circles").outcome == "does not hold"
    assert "The paper's hours" not in section.verdicts[0].sentence


def test_what_is_measured_of_gradients_is_decided_layer_by_layer(tmp_path):
    part = {
        "gradient_share": {"features.0": [0.1, 0.12, 0.11], "classifier": [0.6, 0.62, 0.61]},
        "passed_back": {"classifier": [1.0, 1.1, 1.2]},
    }
    write_measured(tmp_path, GRADIENTS, "short", {"networks": {"mlp": {"normal": part, "pbwn": part}}})
    section = found(tmp_path, "gradients")
    outcomes = [verdict.outcome for verdict in decided(section, "gradients-not-dominant").verdicts]
    assert outcomes == ["holds", "does not hold"]
    assert decided(section, "gradients-kept").outcome == "holds"
    assert section.table.rows[1].title == "layer classifier"


def test_runs_that_are_borrowed_alone_make_no_section(tmp_path):
    for plan in plans("relatives", method="pbwn", network="mlp", lr=0.3):
        write_run(tmp_path, plan)
    assert [each.artefact.name for each in collect(tmp_path).sections] == ["figure-2a"]


@pytest.mark.parametrize("name", [name for name, each in EXPERIMENTS.items() if isinstance(each, TrainedArtefact)])
@pytest.mark.parametrize("scale", ["smoke", "short", "paper"])
def test_every_planned_run_is_one_run(name, scale):
    made = KNOWN[name].plans(scale)
    assert len({(plan.identity, plan.labels["seed"]) for plan in made}) == len(made)


def test_claims_beside_the_papers_have_names_of_their_own_and_known_rows():
    claims = [(artefact, claim) for artefact in KNOWN.values() for claim in artefact.claims]
    assert len({claim.name for _, claim in claims}) == len(claims)
    for artefact, claim in claims:
        if artefact.name in EXPERIMENTS:
            assert claim.name.startswith(artefact.name)
            if isinstance(artefact, TrainedArtefact):
                [axis] = [axis for axis in artefact.axes("short") if axis.role == "row"]
                named = {*getattr(claim.criterion, "rows", ()), *getattr(claim.criterion, "than", ())}
                assert named <= {str(value) for value in axis.values}
