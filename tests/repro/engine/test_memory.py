"""Freed memory stays in the process where the C library can be told so."""

import subprocess
import sys

import pytest

PROGRAM = """
from pbwn_repro.engine.processes import keep_freed_memory
import resource, torch
def faults():
    for _ in range(15):  # until the heap has settled
        torch.ones(16_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(16_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), keep_freed_memory(), faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_the_same_memory_serves_again_without_page_faults():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    usual, kept, faults = done.stdout.split()
    assert kept == "True"
    assert int(faults) < int(usual) / 10
