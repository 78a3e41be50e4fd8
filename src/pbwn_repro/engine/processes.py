"""The processes that share a run, a single one or those started by torchrun, and their memory settings."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Processes:
    """The processes that share a run, as seen from this one."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all processes, in place if there are several."""
        if self.count > 1:
            torch.distributed.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; all processes get the same answer."""
        # Reduced on the CPU, so as not to wait for work that is queued on a GPU.
        return flag if self.count == 1 else bool(self.sum(torch.tensor(float(flag))) > 0)

    def broadcast(self, value: Any) -> Any:
        """Return the first process's value in all processes."""
        if self.count == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    def wrap(self, model: nn.Module, *, shard: bool) -> nn.Module:
        """Distribute the model: replicate it (DDP) or shard its weights (FSDP2)."""
        if shard:
            from torch.distributed.fsdp import fully_shard

            fully_shard(model)
            return model
        if self.count == 1:
            return model
        return DistributedDataParallel(model)

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Copy the first process's running statistics to all: each process normalises only its share of a batch."""
        if self.count > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)


@contextmanager
def join_processes(device: torch.device) -> Iterator[Processes]:
    """Join the process group that torchrun has started, or run alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(device=device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    store, rank, count = next(torch.distributed.rendezvous("env://"))
    # After a restart, torchrun's store still holds the addresses of dead processes: each attempt gets its own prefix.
    attempt = torch.distributed.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=attempt, rank=rank, world_size=count)
    try:
        yield Processes(rank, count, device)
    finally:
        torch.distributed.destroy_process_group()
        # Sharded weights keep gloo's threads alive: one that frees a tensor during shutdown aborts the process.
        time.sleep(0.1)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory instead of returning it to the system; return whether this is supported.

    A training step frees and reallocates the same activations. By default glibc maps and unmaps large ones each time,
    and the system zeroes every page again: on a CPU this took 5 to 22 percent of a ResNet-20 step.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(set_option(_MMAP_THRESHOLD, 2**30) and set_option(_TRIM_THRESHOLD, _NEVER))
