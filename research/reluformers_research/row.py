"""One row of a table with one seed: train, score, write the record. A process of its own: `python -m … JOB.json`."""

import functools
import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from huggingface_hub.utils.sha import sha_fileobj
from torch.nn import functional

from reluformers.data.batching import IGNORED_LABEL
from reluformers.data.names import source_name
from reluformers.data.sources import check_apart
from reluformers.errors import DivergenceError, run_main
from reluformers.evaluation.scorer import ScoringOptions
from reluformers.files import write_json
from reluformers.saved_models import to_accelerator
from reluformers.training.callbacks import median_speed
from reluformers.training.checkpoints import checkpoints_of
from reluformers.training.recipe import Recipe
from reluformers.training.run_files import LOG_FILE

from .causal.scoring import UNITS
from .records import LOSS, RunRecord, has_record
from .tables import public_sections
from .tasks import Task, task_named

_MANY = 100  # files of a folder, of which more have one checksum together
RUNS_ELSEWHERE = 75  # exit status of a row that another process works on: EX_TEMPFAIL


@dataclass
class Job:
    """What a process has to do.

    Args:
        name: of the run.
        recipe: sections, with the places of the data.
        evaluate: further options of `reluformers evaluate`.
        folder: of the training run.
        records: folder of the records.
    """

    name: str
    recipe: dict[str, Any]
    evaluate: dict[str, Any]
    folder: str
    records: str

    @property
    def task(self) -> Task:
        """The task of its recipe."""
        return task_named(self.recipe["task"])

    def to_recipe(self) -> Recipe:
        """The recipe, with the paths of the data."""
        return self.task.recipe_class.from_dict(self.recipe)

    @property
    def is_done(self) -> bool:
        """Whether its record is there."""
        return has_record(Path(self.records), self.name)

    def save(self, path: Path) -> None:
        """Write it for the process."""
        write_json(path, asdict(self))


def peak_memory() -> int:
    """Most memory that was in use so far, in bytes: of the GPU, where there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_job(path: str | Path) -> None:
    """Do a job unless it is done; goes on where an earlier process was stopped, and ends where another is at it."""
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    try:
        with FileLock(f"{path}.lock", timeout=0):
            if not job.is_done:
                _run(job)
    except Timeout:
        print(f"{job.name}: another process works on it")
        sys.exit(RUNS_ELSEWHERE)


def _run(job: Job) -> None:
    task = job.task
    recipe = job.to_recipe()
    # scored below, from the saved folder, as anybody would
    trained = replace(recipe, data=replace(recipe.data, test=None))
    is_resumed = bool(checkpoints_of(job.folder))
    data = {split: _source(recipe, split) for split in ("train", "validation", "test")}
    try:
        results = task.train(trained, job.folder, resume="auto", report=print)
    except DivergenceError as error:
        # so it would every time
        record = RunRecord(job.name, public_sections(recipe), job.evaluate, data=data, diverged=str(error))
        record.save(Path(job.records))
        print(f"{job.name}: {error}")
        return
    scorer = task.scorer(scoring_options(job))
    evaluation = scorer.run()
    evaluation.model = None
    evaluation.data.source = source_name(recipe.data.path or recipe.data.test)
    log = json.loads((Path(job.folder) / LOG_FILE).read_text(encoding="utf-8"))
    record = RunRecord(
        name=job.name,
        recipe=public_sections(recipe),
        evaluate=job.evaluate,
        evaluation=evaluation,
        results={name: value for name, value in results.items() if name != "examples"},
        data=data,
        tokenizer=_checksum(Path(job.folder) / "tokenizer.json"),
        log=[entry for entry in log if any(name.startswith("eval_") for name in entry)],
        seconds=results.get("training_seconds"),
        processor_seconds=None if is_resumed else round(time.process_time(), 1),
        memory=round(peak_memory() / 2**30, 3),
        tokens_per_second=median_speed(log, task.speeds),
        counts=scorer.row_statistics(scorer.answers) | validation_losses(job),
        translations=scorer.answers if isinstance(scorer.answers, list) else None,
    )
    record.save(Path(job.records))
    print(f"{job.name}: {task.main_metric} {record.score:.4f}")


def validation_losses(job: Job) -> dict[str, np.ndarray]:
    """`LOSS` → millionths of nats and tokens of each row of the validation set, where there is one.

    Rows are in the order of `Scorer.attention_batches`, which is that of all runs of the same data.
    """
    if "validation" not in job.to_recipe().data.sources() or job.task.main_metric == LOSS:
        return {}
    scorer = job.task.scorer(scoring_options(job, "validation"))
    scorer.load()
    to_accelerator(scorer.model).eval()
    rows = []
    for batch in scorer.attention_batches():
        inputs = {name: tensor.to(scorer.model.device) for name, tensor in batch.items()}
        with torch.inference_mode():
            logits = scorer.model(**inputs).logits.float()
        labels = inputs["labels"]
        losses = functional.cross_entropy(logits.movedim(-1, 1), labels, reduction="none").view(len(labels), -1)
        counted = labels.view(len(labels), -1) != IGNORED_LABEL
        sums = (UNITS * losses.double().sum(1)).round(), counted.sum(1)
        rows.append(torch.stack([part.long().cpu() for part in sums], dim=1))
    return {LOSS: torch.cat(rows).numpy()}


def scoring_options(job: Job, split: str = "test") -> ScoringOptions:
    """Options of `reluformers evaluate` for the test set of a job, or another split."""
    recipe = job.to_recipe()
    data = recipe.data
    source = data.sources()[split]
    if data.path is None:
        places = {"data": {split: source}, "split": split, "data_config": None, "data_revision": None}
    else:
        places = {"data": data.path, "split": source, "data_config": data.name, "data_revision": data.revision}
    scorer = job.task.scorer
    own = {**scorer.recipe_options(recipe), **job.evaluate}
    return scorer.options_class(model=job.folder, attention_report=True, **places, **own)


def _source(recipe: Recipe, split: str) -> Mapping[str, Any] | None:
    """Where a split was read from: a name, and the checksum of files."""
    data = recipe.data
    source = data.sources().get(split)
    if source is None:
        return None
    if data.path is not None:
        known = {"name": source_name(data.path), "split": source, "config": data.name, "revision": data.revision}
        files = _files(Path(os.path.expanduser(data.path)))
        known["sha256"] = [_checksum(file) for file in files] if len(files) <= _MANY else [_sum_of_sums(files)]
        return {name: value for name, value in known.items() if value not in (None, [])}
    files = source.values() if isinstance(source, dict) else [source] if isinstance(source, str) else source
    return {"name": source_name(source), "sha256": [_checksum(Path(os.path.expanduser(file))) for file in files]}


def check_job(job: Job) -> None:
    """Refuse what would stop a run, or spoil its score, only after it has been trained.

    Raises:
        ValueError: the recipe does not say what to train and to score on, or trains on what it is scored on; a file is
            not there.
        TypeError: an option of the scoring is not known.
    """
    recipe = job.to_recipe()
    sources = recipe.data.sources()
    for split in ("train", "test"):
        if split not in sources:
            raise ValueError(f"data.{split} is not given: add data.{split}=…")
    for split in sources:
        if None in _source(recipe, split).get("sha256", []):
            raise ValueError(f"data.{split}: no such file")
    check_apart(recipe.data.path, sources)
    scoring_options(job)


def check_data(job: Job, record: RunRecord) -> None:
    """Refuse to take a finished run for one of other files that have the same names, or that is scored otherwise.

    Raises:
        ValueError: a file is not the one that the run was trained or scored on, or an option of the scoring differs.
    """
    path = Path(job.records) / job.name
    if scoring_options(replace(job, evaluate=record.evaluate)) != scoring_options(job):
        raise ValueError(
            f"{path}: was scored with {record.evaluate}, but {job.evaluate} is asked for; give another --records"
        )
    for split, known in record.data.items():
        sums = [(one or {}).get("sha256", [None]) for one in (known, _source(job.to_recipe(), split))]
        if sums[0] != sums[1] and None not in (*sums[0], *sums[1]):  # as far as the files are here
            raise ValueError(f"{path}: its data.{split} is another file of that name; give --records another folder")


def _files(path: Path) -> tuple[Path, ...]:
    """Files of a folder on this machine, or the file itself; none of a data set of the Hub."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return tuple(file for file in files if file.is_file() and not file.name.startswith("."))


@functools.cache
def _sum_of_sums(files: tuple[Path, ...]) -> str:
    """One checksum of a folder with a file for each image."""
    return hashlib.sha256("".join(map(_checksum, files)).encode()).hexdigest()


@functools.cache
def _checksum(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return sha_fileobj(file).hex()


if __name__ == "__main__":
    run_main(lambda: run_job(sys.argv[1]))
