"""Table 5: what is made of the rounds; never how long anything takes."""

import pytest

from pbwn_repro.bench.parts import Parts
from pbwn_repro.bench.steps import summarise, time_cost
from pbwn_repro.bench.timing import median_with_interval
from pbwn_repro.catalog import find


def test_the_result_has_every_method_of_every_network(tmp_path):
    options = {**find("table-5").options("smoke"), "networks": ["resnet-8"], "batch_sizes": {"resnet-8": 2}}
    told = []
    result = time_cost(options, Parts(tmp_path), lambda *words: told.append(words))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1] == (3, 3, "done")
    network = result["networks"]["resnet-8"]
    assert (network["batch_size"], network["steps_per_epoch"], network["epochs"]) == (2, 25_000, 160)
    assert list(network["methods"]) == ["normal", "wn", "pbwn-riem", "pbwn", "pbwn-epoch", "pbwn-riem-nxn"]
    for name, found in network["methods"].items():
        assert len(found["seconds"]) == result["rounds"] == 2
        assert found["hours"] == pytest.approx(found["median"] * 25_000 * 160 / 3600)
        assert (found["projection_seconds"] > 0) == name.startswith("pbwn")
        assert found["percent_over_normal"].keys() == {"value", "low", "high"}


def test_the_smoke_scale_is_small_and_the_papers_has_its_batches():
    table = find("table-5")
    assert set(table.options("smoke")["batch_sizes"].values()) == {2}
    assert table.options("paper")["batch_sizes"] == {"inception": 64, "vgg-e": 128, "resnet-110": 128}
    assert table.options("paper")["networks"] == ["inception", "vgg-e", "resnet-110"]
    assert min(table.options(scale)["rounds"] for scale in ("short", "paper")) >= 6  # enough for an interval


def test_methods_are_compared_within_rounds_whatever_the_machine_does_between_them():
    slowdown = [1.0, 5.0, 2.0, 1.0, 9.0, 3.0]
    taken = {
        "normal": [(one, 0.0) for one in slowdown],
        "pbwn": [(1.1 * one, 0.1 * one) for one in slowdown],
    }
    found = summarise(taken, steps_per_epoch=10, epochs=1)
    assert found["pbwn"]["percent_over_normal"] == pytest.approx({"value": 10, "low": 10, "high": 10})
    assert found["normal"]["percent_over_normal"] == {"value": 0, "low": 0, "high": 0}
    assert found["pbwn"]["projection_percent"] == pytest.approx(10)


def test_a_projection_after_each_epoch_is_spread_over_the_steps_of_the_epoch():
    taken = {"normal": [(1.0, 0.0)] * 6, "pbwn-epoch": [(1.0, 0.5)] * 6}
    found = summarise(taken, steps_per_epoch=50, epochs=2)["pbwn-epoch"]
    assert found["seconds"] == pytest.approx([1.01] * 6)
    assert found["projection_seconds"] == pytest.approx(0.01)
    assert found["hours"] == pytest.approx(1.01 * 50 * 2 / 3600)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(5, None, None), (6, 1, 6), (9, 2, 8), (25, 8, 18)],  # the ranks of a table of the sign test
)
def test_the_interval_of_a_median_is_that_of_the_sign_test(count, low, high):
    found = median_with_interval([float(value) for value in range(count, 0, -1)])
    assert found == {"value": (count + 1) / 2, "low": low, "high": high}


def test_methods_without_normal_are_refused(tmp_path):
    options = {"networks": ["resnet-8"], "methods": ["pbwn"], "batch_sizes": {"resnet-8": 2}, "rounds": 1}
    with pytest.raises(ValueError, match="without 'normal' there is nothing to compare with"):
        time_cost(options, Parts(tmp_path), lambda *words: None)
