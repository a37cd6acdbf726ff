"""Streams: every row exactly once an epoch, for any number of shards and processes, wherever one stops."""

import copy
import gzip
import json
import multiprocessing
import os
import random
import shutil
import time
from itertools import chain
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from datasets import Dataset, load_dataset
from huggingface_hub import HfFileSystem
from safetensors.torch import load_file

from builders.translation_runs import make_recipe, training_logs, write_pairs
from reluformers.data import streaming
from reluformers.data.batching import TokenBudgetBatchSampler
from reluformers.data.sources import describe_file, hub_files
from reluformers.data.streaming import BatchStream, BlockStream
from reluformers.training import checkpoints
from reluformers.training.checkpoints import MANIFEST_FILE, read_manifest
from reluformers.training.identity import check_same_run
from reluformers.translation import TranslationTrainer, train_translation
from reluformers.translation.loading import split_files

KILLS = 20
WORDS = ["red", "green", "big", "small", "old", "dog", "cat", "house"]


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
    for block in stream:
        if stream.epoch:
            return blocks
        blocks.append(list(block["number"]))


@pytest.mark.parametrize(("shards", "processes"), [(1, 1), (5, 1), (4, 2), (5, 2), (3, 3), (2, 3)])
def test_processes_share_every_row_of_an_epoch(tmp_path, monkeypatch, shards, processes):
    monkeypatch.setattr(streaming, "_PIECE", 7)
    sizes = [11 + 3 * shard for shard in range(shards)]
    rows = open_shards(write_shards(tmp_path, sizes))
    blocks = []
    for rank in range(processes):
        blocks += first_epoch(BlockStream(rows, 10, seed=1, rank=rank, world_size=processes))
    assert sorted(chain.from_iterable(blocks)) == list(range(sum(sizes)))
    assert all(len(block) < 10 + 7 for block in blocks)


def test_a_stream_stops_and_goes_on_at_any_block(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_PIECE", 7)
    rows = open_shards(write_shards(tmp_path, [11, 14, 3]))
    whole, expected = iter(BlockStream(rows, 10, seed=1)), []
    state = BlockStream(rows, 10, seed=1).state_dict()
    for _ in range(8):
        expected.append(list(next(whole)["number"]))
        stream = BlockStream(rows, 10, seed=1)
        stream.load_state_dict(json.loads(json.dumps(state)))
        assert list(next(iter(stream))["number"]) == expected[-1]
        state = stream.state_dict()
    # three epochs, the shards in more than one order
    assert state["epoch"] == 2
    assert sorted(chain.from_iterable(expected[:3])) == list(range(28)) == sorted(chain.from_iterable(expected[3:6]))


def make_batches(rows, **options) -> BatchStream:
    def prepare(block: Dataset) -> Dataset:
        return block.filter(lambda row: row["number"] % 5 != 0)

    def sampler(block: Dataset, seed: int) -> TokenBudgetBatchSampler:
        lengths = np.array(block["number"]) % 9 + 1
        return TokenBudgetBatchSampler(lengths, lengths, 30, seed=seed)

    return BatchStream(BlockStream(rows, 10, **options), prepare, sampler, lambda rows: [r["number"] for r in rows])


def test_batches_stop_and_go_on_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_PIECE", 7)
    rows = open_shards(write_shards(tmp_path, [11, 14, 3]))
    whole, stream = make_batches(rows, seed=2), make_batches(rows, seed=2)
    seen, batches = [], iter(whole)
    while whole.state_dict()["block"]["epoch"] < 2:
        seen.append(next(batches))
        assert sum(number % 9 + 1 for number in seen[-1]) <= 30
        resumed = make_batches(rows, seed=2)
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        goes_on = iter(resumed)
        assert next(goes_on) == seen[-1]
        stream = resumed
    kept = [number for number in range(28) if number % 5]
    assert sorted(chain.from_iterable(seen[:-1])) == sorted(2 * kept)


def test_a_stream_of_nothing_ends(tmp_path):
    files = write_shards(tmp_path, [3])
    with pytest.raises(ValueError, match="process 4 of 5 finds no rows"):
        next(iter(BlockStream(open_shards(files), 10, rank=4, world_size=5)))
    empty = BatchStream(BlockStream(open_shards(files), 10), lambda rows: rows.select([]), None, list)
    with pytest.raises(ValueError, match="cleaning leaves no row of the stream"):
        next(iter(empty))


def streaming_recipe(folder: Path, **training):
    """Five shards of 40 rows; numbers in words, so that each row is another one."""
    rng, files = random.Random(0), []
    for shard in range(5):
        lines = []
        for row in range(40):
            source = " ".join([WORDS[shard], *(WORDS[int(digit)] for digit in f"{row:03o}"), *rng.choices(WORDS, k=2)])
            lines.append(json.dumps({"en": source, "de": source[::-1]}))
        files.append(str(folder / f"{shard}.jsonl"))
        Path(files[-1]).write_text("\n".join(lines) + "\n")
    sides = {"train": files, "validation": write_pairs(folder, "validation", 6)}
    training = {"save_strategy": "steps", "save_steps": 2, "max_steps": 30, "max_tokens": 120, **training}
    recipe = make_recipe(sides, **training)
    recipe.data.streaming, recipe.data.buffer_rows = True, 60
    return recipe


def test_a_streamed_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    recipe = streaming_recipe(tmp_path, max_steps=8, evaluate_bleu=False)
    results = train_translation(recipe, tmp_path / "whole")
    assert results["steps"] == 8
    train_translation(recipe, tmp_path / "resumed", resume=tmp_path / "whole" / "checkpoint-4")
    weights = load_file(tmp_path / "resumed" / "model.safetensors")
    for name, weight in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert torch.equal(weights[name], weight), name
    logs = [training_logs(tmp_path / name) for name in ("whole", "resumed")]
    assert [[entry[key] for key in ("step", "epoch", "loss")] for entry in logs[0]] == [
        [entry[key] for key in ("step", "epoch", "loss")] for entry in logs[1]
    ]
    other = streaming_recipe(tmp_path, max_steps=8, evaluate_bleu=False)
    other.data.buffer_rows = 70
    with pytest.raises(ValueError, match=r"the run has data.buffer_rows 60, but 70 is asked for"):
        train_translation(other, tmp_path / "whole", resume="last")
    other = streaming_recipe(tmp_path, max_steps=8, evaluate_bleu=False)
    other.data.train = other.data.train[::-1]
    with pytest.raises(ValueError, match=r"the run has data.train \(first\)"):
        train_translation(other, tmp_path / "whole", resume="last")


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    """A recipe of five shards, and its run."""
    folder = tmp_path_factory.mktemp("streamed")
    recipe = streaming_recipe(folder, max_steps=2, evaluate_bleu=False)
    train_translation(recipe, folder / "run")
    return recipe, folder / "run"


def in_other_place(recipe, folder: Path):
    """The recipe with copies of its shards under other names."""
    recipe = copy.deepcopy(recipe)
    recipe.data.train = [shutil.copy(path, f"{folder}/part-{Path(path).name}") for path in recipe.data.train]
    return recipe


def swap(files: list[str]) -> None:
    files[1], files[3] = files[3], files[1]


def double(files: list[str]) -> None:
    path = Path(files[2])
    path.write_text(2 * path.read_text())


def replace(files: list[str]) -> None:
    path = Path(files[2])
    path.write_text(path.read_text().replace(WORDS[0], WORDS[0][::-1]))


def replace_by_another(files: list[str]) -> None:
    files[2] = files[1]


def change_the_last_row(files: list[str]) -> None:
    path = Path(files[2])
    path.write_text(path.read_text()[:-4] + "?" + path.read_text()[-3:])


@pytest.mark.parametrize("change", [swap, double, replace, replace_by_another, change_the_last_row])
def test_other_shards_in_the_middle_are_refused(streamed, tmp_path, change):
    recipe = in_other_place(streamed[0], tmp_path)
    change(recipe.data.train)
    with pytest.raises(ValueError, match=r"data\.train \(file [234]"):
        train_translation(recipe, streamed[1], resume="last")


def test_the_same_shards_under_other_names_go_on(streamed, tmp_path, caplog):
    recipe = in_other_place(streamed[0], tmp_path)
    assert train_translation(recipe, streamed[1], resume="last")["steps"] == 2
    assert "files" not in caplog.text


def test_checkpoints_that_know_nothing_of_files_go_on(streamed, tmp_path, caplog):
    """As those of earlier versions, which had the other fields."""
    run = tmp_path / "run"
    shutil.copytree(streamed[1], run)
    manifest = read_manifest(run / "checkpoint-2")
    del manifest["run"]["data"]["train"]["files"]
    (run / "checkpoint-2" / MANIFEST_FILE).unlink()
    checkpoints.complete_checkpoint(run / "checkpoint-2", tmp_path / "checkpoint-2", manifest["run"])
    (tmp_path / "checkpoint-2").rename(run / "checkpoint-2")
    assert train_translation(streamed[0], run, resume="last")["steps"] == 2
    assert "checkpoint-2" in caplog.text
    assert "files" in caplog.text
    recipe = in_other_place(streamed[0], tmp_path)
    recipe.data.train.pop(2)
    with pytest.raises(ValueError, match=r"data\.train \(shards\) 5, but 4"):
        train_translation(recipe, run, resume="last")


def test_two_files_of_parallel_text_are_told_apart(tmp_path):
    files = write_pairs(tmp_path, "train", 50)
    options = {"source_lang": "en", "target_lang": "de"}
    assert split_files({"train": files}, "train", **options) == list(files.values())
    before = describe_file(files["target"])
    Path(files["target"]).write_text(Path(files["target"]).read_text()[:-2] + "?\n")
    assert describe_file(files["target"])["size"] == before["size"]
    assert describe_file(files["target"]) != before


def test_files_on_the_hub_are_told_apart_by_what_it_says(tmp_path, monkeypatch):
    """By size and id of the content, not by commit and name, which may change."""
    names = [Path(path).name for path in write_shards(tmp_path, [3, 2])]
    files = hub_files(str(tmp_path), "train", {})
    assert [Path(file).name for file in files] == names
    assert hub_files(str(tmp_path), "train+train", {}) == 2 * files
    with pytest.raises(ValueError, match="nothing"):
        hub_files(str(tmp_path / "nothing"), "train", {})
    listing = {
        "datasets/a/b@1/x.jsonl": {"size": 7, "blob_id": "abc", "lfs": None, "last_commit": "1"},
        "datasets/a/b@2/y.jsonl": {"size": 7, "blob_id": "abc", "lfs": None, "last_commit": "2"},
        "datasets/a/b@2/x.jsonl": {"size": 7, "blob_id": "def", "lfs": None, "last_commit": "2"},
        "buckets/a/b/x.jsonl": {"size": 7, "xet_hash": "f00"},
    }
    monkeypatch.setattr(HfFileSystem, "info", lambda system, path: listing[path])
    same, moved, other, bucket = (describe_file(f"hf://{path}") for path in listing)
    assert same == moved == {"size": 7, "id": "abc"}
    assert other == {"size": 7, "id": "def"}
    assert bucket == {"size": 7, "id": "f00"}
    monkeypatch.setattr(HfFileSystem, "info", mock.Mock(side_effect=FileNotFoundError("gone")))
    with pytest.raises(ValueError, match=r"x\.jsonl"):
        describe_file("hf://datasets/a/b@1/x.jsonl")


def test_files_that_moved_to_or_from_the_hub_are_compared_as_far_as_they_can_be(streamed, caplog):
    before = read_manifest(streamed[1] / "checkpoint-2")["run"]
    now = copy.deepcopy(before)
    for file in now["data"]["train"]["files"]:
        file["id"] = file.pop("sha256")
    owner = type(streamed[0]).arguments_class
    check_same_run(streamed[1], before, now, owner)
    assert "files" in caplog.text
    now["data"]["train"]["files"][2]["size"] += 1
    with pytest.raises(ValueError, match=r"data\.train \(file 3: size\)"):
        check_same_run(streamed[1], before, now, owner)


def test_a_shard_may_be_empty(tmp_path):
    recipe = streaming_recipe(tmp_path, max_steps=1, save_strategy="no", evaluate_bleu=False)
    with gzip.open(tmp_path / "none.jsonl.gz", "wb"):
        pass
    recipe.data.train = [str(tmp_path / "none.jsonl.gz"), *recipe.data.train]
    assert train_translation(recipe, tmp_path / "run")["steps"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_steps": -1}, "data.streaming needs training.max_steps"),
        (
            {"eval_strategy": "epoch"},
            "training.eval_strategy is epoch, but with data.streaming it must be",
        ),
    ],
)
def test_what_a_stream_cannot_do_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        streaming_recipe(tmp_path, **change).training_arguments(tmp_path)


def train_and_note(recipe, folder: Path, notes: Path) -> None:
    """Train on, and write down the rows of each update."""
    step = TranslationTrainer.training_step

    def note(trainer, model, inputs, *arguments):
        rows = trainer.processing_class.batch_decode(inputs["input_ids"], skip_special_tokens=True)
        content = json.dumps({"epoch": trainer._stream.state_dict()["block"]["epoch"], "rows": rows})
        path = notes / f"{trainer.state.global_step}.json"
        if path.is_file():
            # an update that is done again is done with the same rows
            assert path.read_text() == content
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(content)
        temporary.replace(path)
        return step(trainer, model, inputs, *arguments)

    TranslationTrainer.training_step = note
    train_translation(recipe, folder, resume="auto", report=lambda line: None)


@pytest.mark.slow
def test_every_row_comes_once_over_twenty_kills(tmp_path):
    recipe = streaming_recipe(tmp_path, max_steps=60, evaluate_bleu=False)
    context, rng = multiprocessing.get_context("fork"), random.Random(5)
    runs = {name: (tmp_path / name, tmp_path / f"{name}_notes") for name in ("whole", "killed")}
    for _, notes in runs.values():
        notes.mkdir()
    process = context.Process(target=train_and_note, args=(recipe, *runs["whole"]))
    process.start()
    process.join()
    assert process.exitcode == 0
    folder, notes = runs["killed"]
    kills = 0
    while kills < KILLS:
        process = context.Process(target=train_and_note, args=(recipe, folder, notes))
        process.start()
        # somewhere in the next two to five updates
        before, more = len(list(notes.glob("*.json"))), rng.randint(2, 5)
        while process.is_alive() and len(list(notes.glob("*.json"))) < min(before + more, 55):
            time.sleep(0.01)
        time.sleep(rng.random() * 0.1)
        assert process.is_alive(), process.exitcode
        process.kill()
        process.join()
        kills += 1
    process = context.Process(target=train_and_note, args=(recipe, folder, notes))
    process.start()
    process.join()
    assert process.exitcode == 0
    weights = [load_file(folder / "model.safetensors") for folder, _ in runs.values()]
    for name, weight in weights[0].items():
        assert torch.equal(weights[1][name], weight), name
    updates = [json.loads((notes / f"{step}.json").read_text()) for step in range(60)]
    epochs = {}
    for update in updates:
        epochs.setdefault(update["epoch"], []).extend(update["rows"])
    expected = [json.loads(line)["en"] for path in recipe.data.train for line in Path(path).read_text().splitlines()]
    assert len(set(expected)) == 200
    complete = [rows for epoch, rows in epochs.items() if epoch < max(epochs)]
    assert complete
    for rows in complete:
        assert sorted(rows) == sorted(expected)
