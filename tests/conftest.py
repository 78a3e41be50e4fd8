"""What every test starts from: one thread, one seed, and doctests that know torch."""

import os

import pytest
import torch
from hypothesis import settings

from processes import start_server

os.environ["HF_HUB_OFFLINE"] = "1"  # no network; read when the hub's library is first imported
torch.set_num_threads(1)
settings.register_profile("pbwn", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("pbwn")


def pytest_configure(config):
    """Where tests are divided among workers, each of them needs processes sooner or later: it loads them meanwhile."""
    if hasattr(config, "workerinput"):
        start_server()


def pytest_terminal_summary(terminalreporter):
    """Say once, so that nobody overlooks it, what was not tested for want of a browser."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "no browser" in str(report.longrepr)]
    if skipped:
        words = (
            f"NO BROWSER: {len(skipped)} tests of the report's page did not run: install chromium and chromium-driver"
        )
        terminalreporter.write_line(words, red=True, bold=True)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_warned_of(monkeypatch):
    monkeypatch.setattr("pbwn.selection.selector._warned", set())  # each test is warned anew
