"""What a process that trains on a CPU does with freed memory."""

import ctypes
import sys

# <malloc.h> of glibc
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed, for this process and for good; whether it can (glibc alone).

    Each update frees its logits and their gradients, and makes them again. glibc gives so large pieces back to the
    kernel, which zeroes every page of the next ones: a quarter of the time of a small model.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))
