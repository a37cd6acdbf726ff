"""Memory that a training process keeps."""

import os
import platform
import subprocess
import sys

import pytest

# page faults of tensors that are made and freed again and again, of 64 MB and touched as a whole
FAULTS = """
import resource, torch
from reluformers.training.callbacks import keep_freed_memory
if {keeps}:
    assert keep_freed_memory()
for _ in range(4):  # the heap grows
    torch.zeros(2**24).add_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    torch.zeros(2**24).add_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


# resident pages once 64 MB are freed, after an update and after another
PAGES = """
import torch
from transformers import TrainerState
from reluformers.training.callbacks import EVERY, GiveBackMemory, keep_freed_memory
assert keep_freed_memory()
def pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
pieces = [torch.zeros(2**20).add_(1) for _ in range(16)]
last = torch.zeros(2**20).add_(1)  # what is free lies below it
del pieces
for update in (EVERY - 1, EVERY):
    GiveBackMemory().on_step_end(None, TrainerState(global_step=update), None)
    print(pages())
"""
glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt and malloc_trim")


def numbers(script: str) -> list[int]:
    command = [sys.executable, "-c", script]
    return [int(word) for word in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


@pytest.mark.slow
@glibc_only
def test_scattered_memory_is_given_back_now_and_then():
    before, after = numbers(PAGES)
    assert (before - after) * os.sysconf("SC_PAGESIZE") > 2**25


@pytest.mark.slow
@glibc_only
def test_freed_memory_is_kept_for_what_is_allocated_next():
    (kept,), (given_back,) = (numbers(FAULTS.format(keeps=keeps)) for keeps in (True, False))
    assert kept < given_back / 2
