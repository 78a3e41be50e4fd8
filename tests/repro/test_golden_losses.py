"""The first losses of every network with every method are those that were written down."""

import json

import pytest

import golden

STORED = json.loads(golden.STORED.read_text())
LARGE = ("inception", "vgg-e", "imagenet")  # of these, plain training in `make test`
CASES = [
    pytest.param(case, marks=pytest.mark.long) if model.startswith(LARGE) and method != "normal" else case
    for case, (model, method, _) in golden.CASES.items()
]


@pytest.mark.parametrize("case", CASES)
def test_three_steps_have_the_losses_that_were_written_down(case):
    found, known = golden.losses(case), STORED["losses"][case]
    if golden.machine() == STORED["machine"]:
        assert found == known, "if you meant it: python tests/golden.py --all"
    else:
        steps = 1 if golden.CASES[case][0] in golden.AMPLIFYING else 3
        assert found[:steps] == pytest.approx(known[:steps], rel=1e-5), "if you meant it: python tests/golden.py --all"


def test_losses_of_two_machines_are_never_stored_together():
    elsewhere = {"machine": {**STORED["machine"], "processor": "another"}, "losses": STORED["losses"]}
    with pytest.raises(SystemExit, match="renew all of them with --all"):
        golden.completed(elsewhere, golden.CASES)


def test_every_loss_that_is_stored_is_compared():
    assert STORED["losses"].keys() == golden.CASES.keys()
