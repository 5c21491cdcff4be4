"""Run the processes of a model that is split among ranks. Rank 0, the service, starts the other
ranks, and sends them the operations to execute through pipes. Tensors are exchanged through
torch.distributed.

The other ranks end when their pipes close, so they do not outlive rank 0. When a rank ends, passes
fail, `lost` names the rank, and the service ends, so that all ranks are started again together.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]

from tandem.engine.parallel.shards import Shard
from tandem.protos.errors import Unusable

FOREVER = timedelta(days=365)  # a timeout so long that idle ranks never reach it

# a function that returns the handler with which a rank executes the operations from rank 0
Follow = Callable[[Shard], Callable[[str, Any], None]]


class Ranks:
    """The processes of the other ranks, which rank 0 starts and controls."""

    def __init__(self, count: int, device: str, follow: Follow) -> None:
        """Start `count` - 1 processes and connect to them. Raises Unusable if one of these
        processes ends before it is connected. `follow` must be importable in the started processes.
        """
        self.shard = Shard(0, count)
        self._folder = TemporaryDirectory()
        file = str(Path(self._folder.name) / "ranks")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        context = get_context("spawn")
        for rank in range(1, count):
            ours, theirs = context.Pipe()
            given = Shard(rank, count), device, file, theirs, follow
            process = context.Process(target=_run, args=given, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            for pipe in self._pipes:
                pipe.recv()
        except EOFError:
            raise Unusable(self.lost or "a rank of the model has ended") from None
        _meet(self.shard, device, file)

    @property
    def lost(self) -> str | None:
        """A message that says which rank has ended; None while all ranks run."""
        ended = [rank for rank, each in enumerate(self._processes, 1) if not each.is_alive()]
        return f"rank {ended[0]} of the model has ended" if ended else None

    def tell(self, name: str, *arguments: Any) -> None:
        """Send an operation and its arguments to the other ranks. The operation is not executed on
        rank 0, so the caller has to execute it there.
        """
        for pipe in self._pipes:
            with suppress(OSError):  # the rank has ended, and `lost` says so
                pipe.send((name, arguments))


def _run(shard: Shard, device: str, file: str, pipe: Connection, follow: Follow) -> None:
    """Run a rank other than 0 until rank 0 closes the pipe."""
    pipe.send(shard.rank)
    _meet(shard, device, file)
    do = follow(shard)
    with suppress(EOFError):
        while True:
            do(*pipe.recv())


def _meet(shard: Shard, device: str, file: str) -> None:
    """Connect this rank with the other ranks. The ranks find each other through a file, so that no
    port is open to other machines.
    """
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", loopback)
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(shard.device(device))
    distributed.init_process_group(
        "nccl" if cuda else "gloo",
        store=FileStore(file, shard.count),
        rank=shard.rank,
        world_size=shard.count,
        timeout=FOREVER,
    )
