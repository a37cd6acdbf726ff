"""What a process that trains on a CPU does with freed memory."""

import ctypes
import sys
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

# <malloc.h> of glibc
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
LARGEST = 2**31 - 1
EVERY = 100  # updates


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed, for this process and for good; whether it can (glibc alone).

    Each update frees its logits and their gradients, and makes them again. glibc gives so large pieces back to the
    kernel, which zeroes every page of the next ones: a quarter of the time of a small model.
    """
    mallopt = _of_c_library("mallopt")
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))


class GiveBackMemory(TrainerCallback):
    """Give kept memory that lies free back to the kernel now and then: batches of many lengths scatter the heap."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **others: Any) -> None:
        """Trim the heap after each so many updates."""
        if state.global_step % EVERY == 0 and (trim := _of_c_library("malloc_trim")):
            trim(0)


def _of_c_library(name: str) -> Any:
    """A function of glibc, or None elsewhere."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
