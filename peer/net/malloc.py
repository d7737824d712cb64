"""glibc hands chunk-sized buffers back to the kernel after every use and faults their pages in again, which costs more
than the gRPC calls they are for. Keeping them halves a receiver's processor time; the price is that freed memory stays
with the process (its resident size is the high-water mark).

It also gives nearly every thread a heap of its own, up to eight for each core, and each keeps its own high-water mark:
with gRPC's threads, which come and go, that is a resident size that creeps up for hours. Two heaps are enough, for most
of the work is done under Python's lock; a swap costs no more processor time with them."""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_M_ARENA_MAX = -8
ARENAS = 2


def tune() -> str:
    """Once at a daemon's start. Returns what was done and why, for the log."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return "malloc left alone: not glibc"
    libc = ctypes.CDLL(None)
    buffers = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20))
    set_to = (*buffers, (_M_ARENA_MAX, ARENAS))
    if all(libc.mallopt(name, value) == 1 for name, value in set_to):
        return "malloc keeps freed buffers: chunk buffers are reused without page faults"
    return "malloc left alone: mallopt refused"
