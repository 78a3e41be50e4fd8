"""A run that is asked to stop resumes to the same bytes; asked twice, it leaves at once."""

import signal

import pytest

from pbwn_repro.engine.signals import Interrupted
from storm import contents, digits_config, run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, number, processes):
    config = digits_config(model="resnet-8", method="pbwn-t5", processes=processes, checkpoint_every=None)
    run(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config, tmp_path / "cut", ("step", 7), number)
    assert list((tmp_path / "cut" / "checkpoints").glob("step-*"))
    assert run(config, tmp_path / "cut") == [0] * processes
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_second_request_leaves_at_once(tmp_path):
    config = digits_config(model="mlp", method="pbwn")
    assert run(config, tmp_path / "run", ("step", 5), signal.SIGTERM, twice=True) == [128 + signal.SIGTERM]
    assert not (tmp_path / "run" / "checkpoints" / "step-000000005").exists()
