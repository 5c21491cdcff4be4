"""A model split among ranks, run in processes of its own.

    python -m tests.splitting MODEL COUNT [all_reduce]

loads the model, tests it, and prints how exact it is. With `all_reduce` the partial sums are added
in the order that torch.distributed finds fastest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from tandem.engine import host, loading
from tandem.engine.config import ModelServiceConfig
from tandem.engine.parallel import shards
from tandem.engine.parallel.ranks import Ranks
from tandem.engine.parallel.shards import Shard


def reduced(_: shards.RankSum, partial_sums: torch.Tensor) -> torch.Tensor:
    """Replaces the sum in the order of ranks."""
    total = partial_sums.clone()
    distributed.all_reduce(total)
    return total


def follow_reducing(config: ModelServiceConfig, shard: Shard) -> Callable[[str, Any], None]:
    """Run another rank that reduces in the same way."""
    shards.RankSum.forward = reduced  # type: ignore[method-assign]
    return loading.follower(config, shard)


def main() -> None:
    """Load the model, test it, and print the result."""
    # imported by name, so that other processes can import the function
    from tests.splitting import follow_reducing

    model, count, *fault = sys.argv[1:]
    config = ModelServiceConfig(
        model=Path(model), threads=1, tensor_parallel=int(count), kv_bytes="64MiB", max_sessions=4
    )
    if fault:
        shards.RankSum.forward = reduced  # type: ignore[method-assign]
        ranks = Ranks(int(count), "cpu", partial(follow_reducing, config))
        host.ranks_of = lambda config: ranks
    print(host.load_and_test(config, exact=True)[1])


if __name__ == "__main__":
    main()
