"""What is measured in one go becomes a section too: condition numbers, and the time that methods take."""

import json
import shutil

import pytest

from pbwn_repro.bench.measuring import folder_of, measure
from pbwn_repro.bench.steps import summarise
from pbwn_repro.catalog import ARTEFACTS, find
from pbwn_repro.report.sections import collect
from pbwn_repro.runs.folder import to_json
from repro.report.folders import cell_at

METHODS = ("normal", "wn", "pbwn-riem", "pbwn", "pbwn-epoch", "pbwn-riem-nxn")


def folder(root, name, scale="smoke"):
    artefact = find(name)
    return folder_of(root, name, scale, artefact.measurement, artefact.options(scale))


def write_times(root, percent, rounds=9, scale="smoke", own=0.0, load=0.1):
    """A measurement of table 5 whose methods take so many percent more than normal, the same on each network.

    A list has those of each round. `own` is what the projection itself takes, in seconds.
    """
    by_round = {name: percent.get(name, 0.0) for name in METHODS}
    by_round = {name: each if isinstance(each, list) else [each] * rounds for name, each in by_round.items()}
    seconds = {
        name: [(1 + round_ / 100) * (1 + more / 100) for round_, more in enumerate(each)]
        for name, each in by_round.items()
    }
    methods = summarise({name: [(each, own) for each in times] for name, times in seconds.items()}, 10, 2)
    machine = {"cores": 2, "load before": load}
    networks = {
        name: {"batch_size": 2, "steps_per_epoch": 10, "epochs": 2, "machine": machine, "methods": methods}
        for name in ("inception", "vgg-e", "resnet-110")
    }
    place = folder(root, "table-5", scale)
    place.path.mkdir(parents=True)
    artefact = ARTEFACTS["table-5"]
    config = {"measurement": artefact.measurement, "options": artefact.options(scale)}
    place.config.write_bytes(to_json(config))
    place.environment.write_bytes(to_json({"device": "cpu", "processor": "An abacus", "threads": 1}))
    place.result.write_bytes(to_json({"rounds": rounds, "methods": list(METHODS), "networks": networks}))
    return place


@pytest.fixture(scope="module")
def landscape(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    artefact = ARTEFACTS["figure-1"]
    measure(artefact.measurement, artefact.options("smoke"), folder(root, "figure-1"))
    return root


def test_the_condition_number_grows_and_projection_takes_it_back(landscape):
    report = collect(landscape)
    [section] = report.sections
    assert not report.left_out
    assert [(each.claim.name, each.outcome) for each in section.verdicts] == [
        ("figure-1-scaled", "holds"),
        ("figure-1-projected", "holds"),
    ]
    assert {surface["name"] for surface in section.landscapes["surfaces"]} == {"equal", "scaled", "projected"}
    assert all(curve.x[0] == 1.0 for plot in section.plots for curve in plot.curves)


def test_condition_numbers_that_do_not_follow_from_the_model_are_left_out(landscape, tmp_path):
    source, target = folder(landscape, "figure-1"), folder(tmp_path, "figure-1")
    target.path.mkdir(parents=True)
    for name in ("config.json", "environment.json"):
        (target.path / name).write_bytes((source.path / name).read_bytes())
    result = source.read_result()
    result["general"]["condition"]["measured"][2] *= 1.1
    target.result.write_bytes(to_json(result))
    report = collect(tmp_path)
    assert report.sections == ()
    assert "closed form" in report.left_out[target.path]


def test_costs_stand_beside_those_that_follow_from_the_papers_hours(tmp_path):
    write_times(tmp_path, {"pbwn": 5.0, "pbwn-riem": 30.0, "wn": 20.0})
    [section] = collect(tmp_path).sections
    found = cell_at(section, "PBWN-Riem", "Res-110, % over Normal")
    assert found.ours.mean == pytest.approx(30.0)
    assert found.ours.count == 9
    assert found.paper.value == pytest.approx(100 * (7.49 / 5.96 - 1))
    hours = cell_at(section, "Normal", "VGG, hours")
    assert (hours.ours.mean, hours.paper.value) == (pytest.approx(1.04 * 20 / 3600), 4.20)


@pytest.mark.parametrize(("load", "busy"), [(0.3, False), (1.9, True)])
def test_the_projections_own_time_the_batch_and_the_load_are_told(tmp_path, load, busy):
    write_times(tmp_path, {}, own=0.0104, load=load)
    [section] = collect(tmp_path).sections
    column = "VGG, projection alone, %"
    assert cell_at(section, "PBWN", column).ours.mean == pytest.approx(1.0)
    assert cell_at(section, "PBWN-Epoch", column).ours.mean == pytest.approx(0.1)  # over ten steps an epoch
    assert cell_at(section, "WN", column).ours is None
    assert "Timed with batches of 2." in section.notes
    assert any("other programs were running" in note for note in section.notes) == busy


@pytest.mark.parametrize(
    ("claim", "percent", "outcome"),
    [
        ("table-5-epoch", {"pbwn-epoch": 0.5}, "holds"),
        ("table-5-epoch", {"pbwn-epoch": 7.0}, "does not hold"),
        ("table-5-pbwn", {"pbwn": 9.0}, "holds"),
        ("table-5-pbwn", {"pbwn": 11.0}, "does not hold"),
        ("table-5-riem", {"pbwn-riem-nxn": 25.0}, "holds"),
        ("table-5-riem", {"pbwn-riem-nxn": 3.0, "pbwn-riem": 25.0}, "does not hold"),
        ("table-5-riem-rows", {"pbwn-riem": 25.0}, "holds"),
        ("table-5-riem-rows", {"pbwn-riem": 3.0, "pbwn-riem-nxn": 25.0}, "does not hold"),
        ("table-5-wn", {"wn": 3.0}, "holds"),
        ("table-5-wn", {"wn": -3.0}, "does not hold"),
    ],
)
def test_the_time_of_each_method_decides(tmp_path, claim, percent, outcome):
    write_times(tmp_path, percent)
    [section] = collect(tmp_path).sections
    found = [each for each in section.verdicts if each.claim.name == claim]
    assert len(found) == (9 if claim == "table-5-wn" else 3)
    assert {each.outcome for each in found} == {outcome}


def test_a_measurement_of_an_earlier_protocol_is_shown_until_there_is_one_of_the_present(tmp_path):
    artefact = ARTEFACTS["table-5"]
    [options] = artefact.earlier("smoke")
    now = write_times(tmp_path, {})
    result = now.read_result()
    for part in result["networks"].values():
        del part["methods"]["pbwn-riem-nxn"]
    before = folder_of(tmp_path, "table-5", "smoke", artefact.measurement, options)
    before.path.mkdir(parents=True)
    before.config.write_bytes(to_json({"measurement": artefact.measurement, "options": options}))
    before.environment.write_bytes(now.environment.read_bytes())
    before.result.write_bytes(to_json(result))
    report = collect(tmp_path)
    assert report.sections[0].measurement == now.path
    assert report.left_out == {before.path: f"an earlier protocol: {now.path.name} is shown"}
    shutil.rmtree(now.path)
    [section] = collect(tmp_path).sections
    [untimed] = [each for each in section.verdicts if each.claim.name == "table-5-riem"]
    assert (section.measurement, untimed.sentence) == (before.path, "PBWN-Riem, n x n was not timed.")


def test_too_few_rounds_have_no_interval(tmp_path):
    write_times(tmp_path, {"pbwn": 5.0}, rounds=2)
    [section] = collect(tmp_path).sections
    assert {each.outcome for each in section.verdicts} == {"undecided"}


def test_a_percentage_that_does_not_follow_from_the_times_is_named(tmp_path):
    place = write_times(tmp_path, {"pbwn": 5.0})
    result = place.read_result()
    result["networks"]["vgg-e"]["methods"]["pbwn"]["percent_over_normal"]["value"] = 0.5
    place.result.write_bytes(to_json(result))
    report = collect(tmp_path)
    assert report.sections == ()
    assert "vgg-e, pbwn: 0.5 % is stated" in report.left_out[place.path]


def test_a_measurement_with_other_options_is_another_protocol(tmp_path):
    options = {**ARTEFACTS["table-5"].options("smoke"), "rounds": 3}
    place = folder_of(tmp_path, "table-5", "smoke", "time-cost", options)
    place.path.mkdir(parents=True)
    place.config.write_bytes(to_json({"measurement": "time-cost", "options": options}))
    assert "another protocol" in collect(tmp_path).left_out[place.path]


@pytest.mark.parametrize("content", ["{", "[]", '{"measurement": "time-cost"}', '{"measurement": 1, "options": {}}'])
def test_a_damaged_configuration_is_named(tmp_path, content):
    place = write_times(tmp_path, {})
    place.config.write_text(content)
    report = collect(tmp_path)
    assert list(report.left_out) == [place.path]
    assert "config.json" in report.left_out[place.path]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"networks": {"vgg-e": {}}}', '{"networks": 3}'])
def test_a_damaged_result_is_named(tmp_path, content):
    place = write_times(tmp_path, {})
    place.result.write_text(content)
    report = collect(tmp_path)
    assert report.sections == ()
    assert "result.json" in report.left_out[place.path]


def test_an_unfinished_measurement_is_no_damage(tmp_path):
    place = write_times(tmp_path, {})
    place.result.unlink()
    report = collect(tmp_path)
    assert not report.left_out
    [section] = report.sections
    assert (section.unfinished, section.table, section.is_shown) == ((place.path,), None, False)
    assert json.loads(place.config.read_text())["measurement"] == "time-cost"


def write_result(root, name, result):
    """A measurement at short scale with this result."""
    artefact, place = find(name), folder(root, name, "short")
    place.path.mkdir(parents=True)
    config = {"measurement": artefact.measurement, "options": artefact.options("short")}
    place.config.write_bytes(to_json(config))
    place.environment.write_bytes(to_json({"device": "cpu", "processor": "An abacus", "threads": 1}))
    place.result.write_bytes(to_json(result))


def write_shares(root, shares):
    """A measurement of gradients whose share along the weights is this in the first of eight layers, else small."""
    layers = {f"features.{number}": [0.1, 0.11, 0.12] for number in range(4)}
    kinds = {"gradient_share": layers, "passed_back": {}}
    first = {"gradient_share": {**layers, "features.0": shares}, "passed_back": {}}
    networks = {"mlp": {"normal": kinds, "pbwn": first}, "mlp-bn": {"normal": kinds, "pbwn": kinds}}
    write_result(root, "gradients", {"networks": networks})


def write_spectra(root, pbwn):
    """A measurement of conditioning on two networks: what PBWN has over Normal's ratio on one, by seed; else noise."""

    def run(ratio):
        values = [ratio, *[1.0] * 9]
        found = {
            "eigenvalues": values,
            "weight_eigenvalues": values,
            "gradient_norms": {"0.weight": 1.0, "1.weight": 2.0},
        }
        return [found] * 3

    noise = [run(2.0), run(2.2), run(1.9)]
    better = {"normal": [run(2.0)] * 3, "wn": noise, "pbwn": [run(2.0 * more) for more in pbwn]}
    networks = {
        "mlp": {"methods": better},
        "resnet-20": {"methods": {"normal": noise, "wn": noise, "pbwn": noise[::-1]}},
    }
    write_result(root, "conditioning", {"moments": [0.0, 0.5, 1.0], "methods": list(better), "networks": networks})


@pytest.mark.parametrize(
    ("write", "claim", "weak", "strong"),
    [
        (write_shares, "gradients-not-dominant", [0.58, 0.6, 0.62], [0.599, 0.6, 0.601]),
        (write_spectra, "conditioning-spectrum", [1.27, 1.2, 1.4], [1.3, 1.31, 1.32]),
        (
            lambda root, values: write_times(root, {"pbwn-riem": values}),
            "table-5-riem-rows",
            [*[3.0] * 8, 12.0],
            [*[3.0] * 8, 4.0],
        ),
    ],
)
def test_a_measurement_speaks_against_a_claim_only_if_it_stands_among_all(tmp_path, write, claim, weak, strong):
    for name, values, outcome in (("weak", weak, "undecided"), ("strong", strong, "does not hold")):
        write(tmp_path / name, values)
        [section] = collect(tmp_path / name).sections
        [decided] = [each for each in section.claims if each.claim.name == claim]
        assert "does not hold" in {each.outcome for each in decided.verdicts}
        assert decided.outcome == outcome
        assert all(each.preliminary == (min(each.counts) < 5) for each in decided.verdicts)


def test_a_mean_over_seeds_stands_with_its_own_interval(tmp_path):
    write_shares(tmp_path, [0.1, 0.2, 0.6])
    [section] = collect(tmp_path).sections
    [first, *_] = [each for each in section.verdicts if each.claim.name == "gradients-not-dominant"]
    assert first.difference == pytest.approx(0.3)
    assert (first.low + first.high) / 2 == pytest.approx(first.difference)


def test_a_difference_of_logarithms_is_called_one(tmp_path):
    write_spectra(tmp_path, [1.3, 1.31, 1.32])
    [section] = collect(tmp_path).sections
    [first, *_] = section.verdicts
    assert first.sentence.endswith("(difference of logarithms; paired t, 3 pairs by seed).")
