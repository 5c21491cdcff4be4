"""The processes of a model that is split among ranks. Rank 0, the service, starts the others, and
tells them through pipes what to do next; tensors travel by torch.distributed.

The other ranks end when their pipe closes, so they do not outlive rank 0. When one of them ends,
passes fail, `lost` says so, and the service ends, to be started again as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tandem.engine.parallel.shards import Shard
from tandem.protos.transport.rpc import free_port

HOST = "127.0.0.1"
MEETING = timedelta(minutes=5)  # within which all ranks have started
FOREVER = timedelta(days=365)  # for which a rank waits when there is nothing to do

Follow = Callable[[Shard], Callable[[str, Any], None]]  # a rank, as what does what it is told


class Ranks:
    """The other ranks, as rank 0 sees them."""

    def __init__(self, count: int, device: str, follow: Follow) -> None:
        """Start `count` - 1 processes and connect with them. `follow` must be importable."""
        self.shard, port = Shard(0, count), free_port(HOST)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        context = get_context("spawn")
        for rank in range(1, count):
            ours, theirs = context.Pipe()
            given = Shard(rank, count), device, port, theirs, follow
            process = context.Process(target=_run, args=given, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        _meet(self.shard, device, port)

    @property
    def lost(self) -> str | None:
        """Which rank has ended; None while all run."""
        ended = [rank for rank, each in enumerate(self._processes, 1) if not each.is_alive()]
        return f"rank {ended[0]} of the model has ended" if ended else None

    def tell(self, name: str, *arguments: Any) -> None:
        """Have the others do something, while rank 0 does the same."""
        for pipe in self._pipes:
            with suppress(OSError):  # `lost` says so
                pipe.send((name, arguments))


def _run(shard: Shard, device: str, port: int, pipe: Connection, follow: Follow) -> None:
    """Another rank, from its start to its end."""
    _meet(shard, device, port)
    do = follow(shard)
    with suppress(EOFError):
        while True:
            do(*pipe.recv())


def _meet(shard: Shard, device: str, port: int) -> None:
    """Connect with the other ranks."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(shard.device(device))
    store = TCPStore(HOST, port, shard.count, shard.rank == 0, MEETING)
    distributed.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=shard.rank,
        world_size=shard.count,
        timeout=FOREVER,
    )
