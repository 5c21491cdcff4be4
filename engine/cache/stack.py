"""Memory for what layers of the same shape store of all positions; what of it is not used can be
given back to the system.
"""

from __future__ import annotations

import mmap
import platform
from contextlib import suppress
from math import prod

import torch

NORESERVE = 0x4000  # Linux' MAP_NORESERVE on x86-64 and ARM; Python names it from 3.13 on


class Stack:
    """`stores`: zeros, [stores, positions, heads, size]. On a CPU, pages that the system hands out
    when they are first written. Small pages: a new session touches as many of the large ones as
    there are layers, while all sessions wait. Of the positions so many are used at once: there must
    be memory for these. Raises MemoryError.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        used: int,
        windowed: bool = False,
    ) -> None:
        self.windowed = windowed
        self._pages: mmap.mmap | None = None
        if device.type != "cpu":
            self.stores = torch.zeros(shape, dtype=dtype, device=device)
            return
        size = prod(shape) * dtype.itemsize
        if used < shape[1]:
            _anonymous(size // shape[1] * used).close()
        self._pages = _anonymous(size, NORESERVE if used < shape[1] else 0)
        with suppress(OSError, AttributeError):  # a system that has no others
            self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        numbers = torch.frombuffer(self._pages, dtype=torch.uint8)[:size]
        self.stores = numbers.view(dtype).view(shape)

    def give_back(self, start: int, count: int) -> None:
        """Give memory of positions back to the system, as far as it is whole pages of its. They
        read as zeros then.
        """
        assert self._pages
        store = self.stores[0].nbytes
        each = store // self.stores.shape[1]
        for number in range(len(self.stores)):
            first, behind = number * store + start * each, number * store + (start + count) * each
            first, behind = -(-first // mmap.PAGESIZE), behind // mmap.PAGESIZE
            if first < behind:
                size = (behind - first) * mmap.PAGESIZE
                self._pages.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, size)


def can_give_back(device: torch.device) -> bool:
    """Whether there may be more positions than memory, and memory be given back."""
    if device.type != "cpu" or platform.system() != "Linux":
        return False
    try:
        with open("/proc/sys/vm/overcommit_memory", encoding="ascii") as file:
            return file.read().strip() != "2"  # which has all that is reserved count as used
    except OSError:
        return False


def _anonymous(size: int, flags: int = 0) -> mmap.mmap:
    try:
        return mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes") from error
