"""Start real processes that talk over gloo, and run a function in each."""

import multiprocessing
import os
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed
import torch.multiprocessing

# Children are forked from a server that has these loaded: importing torch takes longer than most tests.
_PRELOADED = [
    *("torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch._dynamo"),
    *("pbwn_repro.runs.jobs", "sklearn.datasets", "scipy", "warm"),
]


def start_server(preload=()):
    """Start the server that children are forked from, unless it is there; `preload` names further modules."""
    multiprocessing.set_forkserver_preload([*_PRELOADED, *preload])
    folders = (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))
    found = {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "OMP_WAIT_POLICY": "passive"}
    with mock.patch.dict(os.environ, found):
        forkserver.ensure_running()


def run_on_processes(function, count=2, preload=()):
    """Run `function()` in `count` new processes of one group; an exception in any of them is raised here.

    `preload` names modules that the function's own module imports: loaded once, if the server is not there yet.
    """
    os.environ["OMP_WAIT_POLICY"] = "passive"
    start_server(preload)
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.multiprocessing.start_processes(
                _run, args=(function, count, f"file://{folder}/rendezvous"), nprocs=count, start_method="forkserver"
            )
        except torch.multiprocessing.ProcessRaisedException as error:
            if torch.__version__ < "2.7" and "'Stream' object has no attribute 'record_event'" in str(error):
                pytest.skip("FSDP2 of torch 2.6 runs on GPUs alone")
            raise


def _run(rank, function, count, rendezvous):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=count)
    try:
        function()
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()
