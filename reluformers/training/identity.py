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
_VERSIONS = ("torch", "transformers", "reluformers")
_ROWS_PER_BLOCK = 100_000


def run_record(recipe: Recipe, args: TaskTrainingArguments) -> dict[str, Any]:
    """What a run trains with, as JSON has it; `data` comes to it when they are read."""
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
        now: the record of this start; of its `data`, what both describe is compared.
        owner: dataclass of the training section, whose defaults stand for what a recipe leaves out.
    """
    earlier, asked = _flat(before, now), _flat(now, before)
    for key in sorted(earlier.keys() | asked.keys()):
        section, _, name = key.partition(".")
        if key in MAY_CHANGE or section in MAY_CHANGE_SECTIONS:
            continue
        default = getattr(owner, name, None) if section == "training" else None
        was, wanted = earlier.get(key, default), asked.get(key, default)
        if was != wanted:
            was, wanted = (textwrap.shorten(repr(value), 100) for value in (was, wanted))
            raise ValueError(f"{checkpoint}: the run has {key} {was}, but {wanted} is asked for")
    if before["versions"] != now["versions"]:
        logger.warning(
            "%s was written by %s: weights will differ in their last digits", checkpoint, before["versions"]
        )


def describe_tokens(dataset: Dataset) -> dict[str, Any]:
    """Number of rows and SHA-256 of `input_ids` and `labels`, row by row."""
    digest, columns = hashlib.sha256(), ["input_ids", "labels"]
    for block in dataset.select_columns(columns).with_format("arrow").iter(batch_size=_ROWS_PER_BLOCK):
        for column in columns:
            digest.update(pc.list_value_length(block[column]).to_numpy().astype(np.int64).tobytes())
            digest.update(pc.list_flatten(block[column]).to_numpy().astype(np.int64).tobytes())
    return {"rows": len(dataset), "sha256": digest.hexdigest()}


def _flat(record: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Name → value of everything that is compared with another record."""
    values = {name: record[name] for name in ("processes", "devices_per_process")}
    for section, content in record["recipe"].items():
        parts = content.items() if isinstance(content, dict) else [("", content)]
        values |= {f"{section}.{key}": value for key, value in parts}
    for split, description in record.get("data", {}).items():
        known = other.get("data", {}).get(split, {})
        values |= {f"data.{split} ({what})": value for what, value in description.items() if what in known}
    return values
