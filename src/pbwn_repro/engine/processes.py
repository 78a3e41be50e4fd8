"""The processes that share a run: one, or those that torchrun has started; and the memory of each."""

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
    """The place of this process among those that share the run."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up over all processes."""
        if self.count > 1:
            torch.distributed.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in one of the processes; all of them learn the same answer."""
        # On the CPU, where the answer does not have to wait for what a GPU still has to do.
        return flag if self.count == 1 else bool(self.sum(torch.tensor(float(flag))) > 0)

    def share(self, value: Any) -> Any:
        """What the first process has, in all of them."""
        if self.count == 1:
            return value
        held = [value]
        torch.distributed.broadcast_object_list(held, src=0)
        return held[0]

    def wrap(self, model: nn.Module, *, shard: bool) -> nn.Module:
        """Have the processes share the model: each a copy (DDP), or each a part of its weights (FSDP2)."""
        if shard:
            from torch.distributed.fsdp import fully_shard

            fully_shard(model)
            return model
        if self.count == 1:
            return model
        return DistributedDataParallel(model)

    def align(self, model: nn.Module) -> None:
        """Give all processes the running statistics of the first: each batch-normalises its own share of a batch."""
        if self.count > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """Join the processes that torchrun has started, or stand alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(device=device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    store, rank, count = next(torch.distributed.rendezvous("env://"))
    # After a restart, torchrun's store still holds the addresses of the processes that died: each attempt has its own.
    attempt = torch.distributed.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=attempt, rank=rank, world_size=count)
    try:
        yield Processes(rank, count, device)
    finally:
        torch.distributed.destroy_process_group()
        # Sharded weights keep gloo's threads alive: one that frees a tensor while Python shuts down aborts the process.
        time.sleep(0.1)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have glibc keep what is freed instead of giving it back to the system; return whether that is possible here.

    A training step frees and asks again for the same activations. By default glibc maps and unmaps large ones each
    time, and the system clears every page anew: on a CPU that was 5 to 22 percent of a ResNet-20 step.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(set_option(_MMAP_THRESHOLD, 2**30) and set_option(_TRIM_THRESHOLD, _NEVER))
