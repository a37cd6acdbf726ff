"""One run in a folder at a time."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_FILE = ".lock"
OWNER_FILE = ".owner"
# the workers of a killed run hold its lock until they notice
_PATIENCE = 10.0  # seconds


@contextmanager
def only_run(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Keep other runs out of a folder for the time of a block.

    The system frees the lock when its process ends, however it ends, so none is ever stale.

    Args:
        folder: of the run; it is made, and goes again if nothing comes to lie in it.
        patience: how long to wait for another run to end, in seconds.

    Raises:
        ValueError: another run is there; names its process and machine.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        what = "a file" if folder.exists() else f"a link to {os.path.realpath(folder)}, which is not there"
        raise ValueError(f"{folder}: is {what}, but the output must be a folder")
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder / OWNER_FILE
    try:
        lock = FileLock(folder / LOCK_FILE).acquire(timeout=patience)
    except Timeout:
        name = owner.read_text(encoding="utf-8").strip() if owner.is_file() else "another process"
        raise ValueError(
            f"{folder}: {name} is training here; wait for it or end it, or choose another --output_dir"
        ) from None
    with lock:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        try:
            yield
        finally:
            owner.unlink(missing_ok=True)
            if is_new and [path.name for path in folder.iterdir()] == [LOCK_FILE]:
                shutil.rmtree(folder)
