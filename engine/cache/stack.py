"""A tensor that stacks the keys and values of several layers of the same shape. Unused parts of the
tensor's memory can be returned to the system.
"""

from __future__ import annotations

import mmap
import platform
from contextlib import suppress
from math import prod

import torch

NORESERVE = 0x4000  # MAP_NORESERVE of Linux on x86-64 and ARM; Python has the name from 3.13 on


class Stack:
    """Holds the tensor `stores`, [stores, positions, heads, size], which is initially zero.

    On a CPU, the system provides a page of memory when the page is first written. The stack asks
    the system for small pages: with huge pages, a new session would touch a huge page for each
    layer, and all sessions would wait until the system provides these pages. At most `used`
    positions are in use at once. Raises MemoryError if there is no memory for `used` positions.
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
        with suppress(OSError, AttributeError):  # the system may lack huge pages
            self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        numbers = torch.frombuffer(self._pages, dtype=torch.uint8)[:size]
        self.stores = numbers.view(dtype).view(shape)

    def give_back(self, start: int, count: int) -> None:
        """Give the memory of `count` positions, starting at `start`, back to the system. Only whole
        memory pages are given back, and they read as zeros afterwards.
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
    """Return whether a stack on this device can reserve more positions than fit into memory, and
    can return memory to the system.
    """
    if device.type != "cpu" or platform.system() != "Linux":
        return False
    try:
        with open("/proc/sys/vm/overcommit_memory", encoding="ascii") as file:
            # with the value 2, Linux counts all reserved memory as used
            return file.read().strip() != "2"
    except OSError:
        return False


def _anonymous(size: int, flags: int = 0) -> mmap.mmap:
    try:
        return mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes") from error
