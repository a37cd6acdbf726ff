"""Runs jobs: several at once on this machine, one process each."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .row import RUNS_ELSEWHERE, Job

_POLL_SECONDS = 0.5


def run_here(jobs: Sequence[Job], folder: Path, workers: int) -> bool:
    """Run jobs in processes of their own; one that fails does not stop the others.

    Args:
        jobs: in the order in which they start; those that are done are passed over.
        folder: for the jobs' files and what they print.
        workers: processes at a time.

    Returns:
        Whether all are done.
    """
    waiting = [job for job in jobs if not job.is_done]
    done = len(jobs) - len(waiting)
    print(f"{done} of {len(jobs)} runs are done, {min(workers, len(waiting))} at a time", flush=True)
    running: dict[subprocess.Popen, Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                running[_start(job, folder, workers)] = job
            time.sleep(_POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                print(_outcome(process, running.pop(process), folder), flush=True)
    finally:
        for process in running:  # what they have trained since the last checkpoint is trained again
            process.kill()
            process.wait()
    return all(job.is_done for job in jobs)


def _start(job: Job, folder: Path, workers: int) -> subprocess.Popen:
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    # waiting threads that spin would take the cores of the other runs
    environment = {"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1", **os.environ}
    path = _log(job, folder).with_suffix(".json")
    job.save(path)
    command = [sys.executable, "-m", "reluformers_research.row", str(path)]
    with _log(job, folder).open("a", encoding="utf-8") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _log(job: Job, folder: Path) -> Path:
    return folder / "jobs" / f"{job.name}.log"


def _outcome(process: subprocess.Popen, job: Job, folder: Path) -> str:
    if process.returncode == 0:
        return f"{job.name}: done"
    if process.returncode == RUNS_ELSEWHERE:
        return f"{job.name}: another process works on it"
    path = _log(job, folder)
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"{job.name}: failed ({lines[-1] if lines else f'status {process.returncode}'}); see {path}"
