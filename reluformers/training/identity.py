"""The identity of a run: what it trains with, noted in every checkpoint, and what may differ when it goes on."""

import hashlib
import json
import logging
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset

from .arguments import TaskTrainingArguments
from .recipe import Recipe

logger = logging.getLogger(__name__)

# What may change when a run goes on; it holds from the checkpoint on. Of `data`, the rows are compared in place of the
# names under which they lie.
MAY_CHANGE = frozenset(
    {
        *(f"data.{name}" for name in ("path", "name", "revision", "train", "validation", "test")),
        *(f"training.{name}_strategy" for name in ("eval", "logging", "save")),
        *(f"training.{name}_steps" for name in ("eval", "logging", "save", "max")),
        *(f"training.dataloader_{name}" for name in ("num_workers", "persistent_workers", "pin_memory")),
        "data.check_images",
        "data.num_proc",
        "training.average_last",
        "training.ddp_timeout",
        "training.dataloader_prefetch_factor",
        "training.disable_tqdm",
        "training.early_stopping_patience",
        "training.logging_first_step",
        "training.num_train_epochs",
        "training.per_device_eval_batch_size",
        "training.report_to",
        "training.run_name",
        "training.save_total_limit",
    }
)
# sections all of whose keys may change
MAY_CHANGE_SECTIONS = frozenset({"decoding"})
# of the description of a split: what is known of each of its files
FILES = "files"
_FILE = " (file "
_VERSIONS = ("torch", "transformers", "reluformers")
_ROWS_PER_BLOCK = 100_000


def run_record(recipe: Recipe, args: TaskTrainingArguments) -> dict[str, Any]:
    """What a run trains with, as JSON has it; `data` comes to it when they are read.

    Args:
        recipe: of the run.
        args: its training arguments.
    """
    record = {
        "recipe": recipe.to_dict(),
        "processes": args.world_size,
        "devices_per_process": max(args.n_gpu, 1),
        "mixed_precision": args.mixed_precision,
        "versions": {name: version(name) for name in _VERSIONS},
    }
    return json.loads(json.dumps(record, default=str))


def check_same_run(checkpoint: Path, before: dict[str, Any], now: dict[str, Any], owner: type) -> None:
    """Refuse to go on with what would make another run of it; other versions of libraries are a warning.

    Args:
        checkpoint: where the run goes on.
        before: its record.
        now: the record of this start, perhaps still without `data`.
        owner: dataclass of the training section, whose defaults stand for what a recipe leaves out.

    Raises:
        ValueError: names the first difference.
    """
    before = {"mixed_precision": now["mixed_precision"], **before}  # which older checkpoints do not say
    earlier, asked = _flat(before, owner), _flat(now, owner)
    if "data" not in now:
        earlier = {key: value for key, value in earlier.items() if key not in _flat_data(before)}
    # of files the run may know less, or something else where they were moved from or to the Hub
    unknown = {key for key in earlier.keys() ^ asked.keys() if _FILE in key}
    for key in sorted((earlier.keys() | asked.keys()) - unknown, key=lambda key: (_FILE in key, key)):
        if key in MAY_CHANGE or key.partition(".")[0] in MAY_CHANGE_SECTIONS:
            continue
        was, wanted = (values.get(key, _default(owner, key)) for values in (earlier, asked))
        if was != wanted:
            was, wanted = (textwrap.shorten(repr(value), 100) for value in (was, wanted))
            raise ValueError(
                f"{checkpoint}: the run has {key} {was}, but {wanted} is asked for; go on with the same, or "
                "choose another output folder"
            )
    if unknown:
        logger.warning("%s: does not say all of the files, which may be others: %s", checkpoint, min(unknown))
    if "data" not in now and (others := _other_versions(before, now)):
        logger.warning("%s was written by %s: weights will differ in their last digits", checkpoint, others)


def describe_tokens(dataset: Dataset) -> dict[str, Any]:
    """Number of rows and SHA-256 of `input_ids` and `labels`, row by row."""
    digest, columns = hashlib.sha256(), ["input_ids", "labels"]
    for block in dataset.select_columns(columns).with_format("arrow").iter(batch_size=_ROWS_PER_BLOCK):
        for column in columns:
            digest.update(pc.list_value_length(block[column]).to_numpy().astype(np.int64).tobytes())
            digest.update(pc.list_flatten(block[column]).to_numpy().astype(np.int64).tobytes())
    return {"rows": len(dataset), "sha256": digest.hexdigest()}


def _flat(record: dict[str, Any], owner: type) -> dict[str, Any]:
    values = {}
    for section, content in record["recipe"].items():
        if isinstance(content, dict):
            values.update({f"{section}.{key}": value for key, value in content.items()})
        else:
            values[section] = content
    values |= {name: record[name] for name in ("processes", "devices_per_process")}
    return values | _flat_data(record)


def _flat_data(record: dict[str, Any]) -> dict[str, Any]:
    values = {}
    for split, description in record.get("data", {}).items():
        values.update({f"data.{split} ({what})": value for what, value in description.items() if what != FILES})
        for number, file in enumerate(description.get(FILES, ()), start=1):
            values.update({f"data.{split}{_FILE}{number}: {what})": value for what, value in file.items()})
    return values


def _default(owner: type, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(owner, name, None) if section == "training" else None


def _other_versions(before: dict[str, Any], now: dict[str, Any]) -> str:
    pairs = ((name, before["versions"].get(name), now["versions"][name]) for name in _VERSIONS)
    return ", ".join(f"{name} {was} (now {present})" for name, was, present in pairs if was != present)
