"""Streams: every row exactly once an epoch, for any number of shards and processes, wherever one stops."""

import copy
import json
import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, load_dataset

from builders.translation_runs import make_recipe, training_logs, write_pairs
from reluformers.data import streaming
from reluformers.data.batching import TokenBudgetBatchSampler
from reluformers.data.streaming import BatchStream, BlockStream
from reluformers.translation.run import train_translation

pytestmark = pytest.mark.xdist_group("streaming")


def write_shards(folder: Path, sizes: list[int]) -> list[str]:
    """JSON lines of numbered rows; a row is so many tokens long as its number says."""
    numbers = iter(range(sum(sizes)))
    for shard, size in enumerate(sizes):
        rows = [json.dumps({"number": next(numbers)}) for _ in range(size)]
        (folder / f"{shard}.jsonl").write_text("\n".join(rows) + "\n")
    return [str(folder / f"{shard}.jsonl") for shard in range(len(sizes))]


def open_shards(files: list[str]):
    return load_dataset("json", data_files={"data": files}, split="data", streaming=True)


def first_epoch(stream: BlockStream) -> list[list[int]]:
    blocks = []
    for block in stream.blocks():
        if block.epoch:
            return blocks
        blocks.append(list(block.rows["number"]))


@pytest.mark.parametrize(("shards", "processes"), [(5, 1), (4, 2), (5, 2), (2, 3)])
def test_processes_share_every_row_of_an_epoch(tmp_path, monkeypatch, shards, processes):
    monkeypatch.setattr(streaming, "_PIECE", 7)
    sizes = [11 + 3 * shard for shard in range(shards)]
    rows = open_shards(write_shards(tmp_path, sizes))
    blocks = []
    for rank in range(processes):
        blocks += first_epoch(BlockStream(rows, 10, seed=1, rank=rank, world_size=processes))
    assert sorted(chain.from_iterable(blocks)) == list(range(sum(sizes)))
    assert all(len(block) < 10 + 7 for block in blocks)


def make_batches(rows, **options) -> BatchStream:
    def prepare(block: Dataset) -> Dataset:
        return block.filter(lambda row: row["number"] % 5 != 0)

    def sampler(block: Dataset, seed: int) -> TokenBudgetBatchSampler:
        lengths = np.array(block["number"]) % 9 + 1
        return TokenBudgetBatchSampler(lengths, lengths, 30, seed=seed)

    return BatchStream(BlockStream(rows, 10, **options), prepare, sampler, lambda rows: [r["number"] for r in rows])


def rest_of_epoch(stream: BatchStream, epoch: int = 0) -> list[list[int]]:
    batches = []
    for batch in stream:
        if stream.state["epoch"] > epoch:
            return batches
        batches.append(batch)


def test_batches_hold_every_row_of_an_epoch_and_no_row_is_lost_by_going_on(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_PIECE", 7)
    rows = open_shards(write_shards(tmp_path, [11, 14, 3]))
    kept = [number for number in range(28) if number % 5]
    seen = rest_of_epoch(make_batches(rows, seed=2))
    assert all(sum(number % 9 + 1 for number in batch) <= 30 for batch in seen)
    assert sorted(chain.from_iterable(seen)) == kept
    stopped = make_batches(rows, seed=2)
    batches = iter(stopped)
    for epoch in (0, 1):
        before = []
        for _ in seen:
            before += next(batches)
            resumed = make_batches(rows, seed=2)
            resumed.state = json.loads(json.dumps(stopped.state))
            if resumed.state["epoch"] == epoch:
                after = chain.from_iterable(rest_of_epoch(resumed, epoch))
                assert {*before, *after} == {*kept}


def test_a_stream_of_nothing_ends(tmp_path):
    files = write_shards(tmp_path, [3])
    with pytest.raises(ValueError, match="process 4 of 5"):
        next(BlockStream(open_shards(files), 10, rank=4, world_size=5).blocks())
    empty = BatchStream(BlockStream(open_shards(files), 10), lambda rows: rows.select([]), None, list)
    with pytest.raises(ValueError, match="cleaning"):
        next(iter(empty))


def streaming_recipe(folder: Path, **training):
    """Five shards of 40 rows."""
    files = []
    for shard in range(5):
        sides = write_pairs(folder, f"shard {shard}", 40).values()
        texts = [Path(side).read_text().splitlines() for side in sides]
        rows = [json.dumps(dict(zip(("en", "de"), row, strict=True))) for row in zip(*texts, strict=True)]
        files.append(str(folder / f"{shard}.jsonl"))
        Path(files[-1]).write_text("\n".join(rows) + "\n")
    sides = {"train": files, "validation": write_pairs(folder, "validation", 6)}
    training = {"save_strategy": "steps", "save_steps": 2, "max_steps": 30, "max_tokens": 120, **training}
    recipe = make_recipe(sides, **training)
    recipe.data.streaming, recipe.data.buffer_rows = True, 20
    return recipe


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    """A recipe of five shards, and its run."""
    folder = tmp_path_factory.mktemp("streamed")
    recipe = streaming_recipe(folder, max_steps=8, evaluate_bleu=False)
    assert train_translation(recipe, folder / "run")["steps"] == 8
    return recipe, folder / "run"


def test_a_streamed_run_goes_on_in_its_epoch(streamed, tmp_path):
    recipe, run = streamed
    shutil.copytree(run / "checkpoint-4", tmp_path / "checkpoint-4")
    train_translation(recipe, tmp_path / "resumed", resume=tmp_path / "checkpoint-4")
    logs = [training_logs(folder) for folder in (run, tmp_path / "resumed")]
    assert [[entry[key] for key in ("step", "learning_rate")] for entry in logs[0]] == [
        [entry[key] for key in ("step", "learning_rate")] for entry in logs[1]
    ]
    assert logs[1][4]["epoch"] == logs[0][4]["epoch"]
    places = [run / "checkpoint-4", tmp_path / "resumed" / "checkpoint-6"]
    before, after = (json.loads((place / "stream_0.json").read_text())["number"] for place in places)
    assert after >= before > 0
    other = copy.deepcopy(recipe)
    other.data.train = other.data.train[::-1]
    with pytest.raises(ValueError, match=r"data.train \(first\)"):
        train_translation(other, run, resume="last")
    # the same shards under other names go on
    other.data.train = [shutil.copy(path, f"{tmp_path}/part-{Path(path).name}") for path in recipe.data.train]
    assert train_translation(other, run, resume="last")["steps"] == 8


@pytest.mark.parametrize("change", [{"max_steps": -1}, {"eval_strategy": "epoch"}])
def test_what_a_stream_cannot_do_is_refused(tmp_path, change):
    with pytest.raises(ValueError, match="streaming"):
        streaming_recipe(tmp_path, **change).training_arguments(tmp_path)
