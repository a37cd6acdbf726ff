"""Memory that a training process keeps."""

import platform
import subprocess
import sys

import pytest

# page faults of tensors that are made and freed again and again, of 64 MB and touched as a whole
FAULTS = """
import resource, torch
from reluformers.training.memory import keep_freed_memory
if {keeps}:
    assert keep_freed_memory()
for _ in range(4):  # the heap grows
    torch.zeros(2**24).add_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    torch.zeros(2**24).add_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keeps: bool) -> int:
    command = [sys.executable, "-c", FAULTS.format(keeps=keeps)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_memory_is_kept_for_what_is_allocated_next():
    assert faults(True) < faults(False) / 2
