"""One run in a folder at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

LOCK_FILE = ".lock"
# the workers of a killed run hold its lock until they notice
_PATIENCE = 10.0  # seconds


@contextmanager
def only_run(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Keep other runs out of a folder, which is made, for the time of a block.

    The system frees the lock when its process ends, however it ends, so none is ever stale. filelock's `Timeout`, an
    OSError, says that another run is still there after `patience` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK_FILE, timeout=patience):
        yield
