"""No command takes a checkpoint that is not as its manifest says, whatever it does with it."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import save
from transformers import AutoModelForSeq2SeqLM

from builders.commands import refusal_of, run_command
from builders.saved_models import save_translator
from reluformers.saved_models import load_model
from reluformers.training.checkpoints import MANIFEST_FILE, _digest, complete_checkpoint
from reluformers.training.sharding import SHARDED_WEIGHTS

LANGUAGES = "--source_lang en --target_lang de"
COMMANDS = [
    f"evaluate {{folder}} --data {{place}}/pairs.jsonl {LANGUAGES}",
    f"analyse {{folder}} {{place}}/pairs.jsonl {LANGUAGES} --output {{place}}/analysis.json",
    f"align {{folder}} {{place}}/pairs.jsonl {LANGUAGES} --output {{place}}/links",
    f"filter {{folder}} {{place}}/pairs.jsonl {LANGUAGES} --output {{place}}/kept.jsonl",
    "convert {folder} {place}/converted",
    "convert {folder} {place}/converted --back",
    "card {folder} --repo_id a/b --output {place}/card",
    "check {folder}",
    "app {folder}",
    "app ORG/NAME --compare {folder}",
    "push {folder} a/b",
    "average {folder}/.. --last 1 --output {place}/averaged",
    "train {place}/recipe.yaml model.start={folder} --output_dir {place}/trained",
]


@pytest.fixture
def checkpoint(tmp_path):
    """A sealed checkpoint of a translation model."""
    folder = tmp_path / "run" / "checkpoint-7"
    unfinished = save_translator(tmp_path / "run" / "unfinished")
    (unfinished / "optimizer.pt").write_text("training")
    complete_checkpoint(unfinished, folder, {})
    (tmp_path / "pairs.jsonl").write_text('{"translation": {"en": "a man", "de": "ein Mann"}}\n')
    shutil.copy(tmp_path / "pairs.jsonl", tmp_path / "held_out.jsonl")
    data = (
        f"{{train: {tmp_path}/pairs.jsonl, validation: {tmp_path}/held_out.jsonl, source_lang: en, target_lang: de}}"
    )
    (tmp_path / "recipe.yaml").write_text(f"task: translation\ndata: {data}\ntraining: {{max_steps: 1}}\n")
    return folder


def change_weights(folder: Path) -> str:
    """Another last byte: a file that opens like the one that was written."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return path.name


def change_tokenizer(folder: Path) -> str:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    return path.name


@pytest.mark.parametrize("damage", [change_weights, change_tokenizer])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_checkpoint_is_named(capsys, checkpoint, tmp_path, command, damage):
    name, before = damage(checkpoint), sorted(tmp_path.iterdir())
    line = refusal_of(capsys, *command.format(folder=checkpoint, place=tmp_path).split())
    assert f"checkpoint-7/{name}" in line
    assert sorted(tmp_path.iterdir()) == before


def test_a_link_by_another_name_is_followed(capsys, checkpoint, tmp_path):
    change_weights(checkpoint)
    (tmp_path / "best").symlink_to(checkpoint)
    assert "model.safetensors" in refusal_of(capsys, "convert", tmp_path / "best", tmp_path / "converted")


@pytest.mark.parametrize("command", COMMANDS[:1])
def test_a_whole_one_is_taken_without_what_belongs_to_training(checkpoint, tmp_path, command):
    (checkpoint / "optimizer.pt").unlink()
    run_command(*command.format(folder=checkpoint, place=tmp_path).split())


def test_other_folders_have_manifests_of_their_own(tmp_path):
    folder = save_translator(tmp_path / "model")
    (folder / "manifest.json").write_text("[]")
    run_command("convert", folder, tmp_path / "converted")


def save_pieces(folder: Path, change=lambda weights: None, break_record=lambda path: None) -> Path:
    """A sealed checkpoint in pieces."""
    unfinished = save_translator(folder / "unfinished")
    weights = load_model(AutoModelForSeq2SeqLM, unfinished).state_dict()
    change(weights)
    save({"model": weights}, checkpoint_id=unfinished / SHARDED_WEIGHTS, no_dist=True)
    break_record(unfinished / SHARDED_WEIGHTS / ".metadata")
    (unfinished / "model.safetensors").unlink()
    complete_checkpoint(unfinished, folder / "checkpoint-7", {})
    return folder / "checkpoint-7"


class Call:
    """Pickled, a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_merging_runs_no_code_of_pieces(capsys, tmp_path):
    ran = tmp_path / "ran"

    def add_call(path):
        record = pickle.loads(path.read_bytes())
        record.planner_data = Call(ran.touch)
        path.write_bytes(pickle.dumps(record))

    folder = save_pieces(tmp_path, break_record=add_call)
    assert ".metadata" in refusal_of(capsys, "merge", folder, "--output", tmp_path / "merged")
    assert not ran.exists()


def test_merging_unpickles_no_piece(capsys, tmp_path):
    ran = tmp_path / "ran"
    folder = save_pieces(tmp_path, change=lambda weights: weights.update(evil=Call(ran.touch)))
    ran.unlink(missing_ok=True)
    assert "evil" in refusal_of(capsys, "merge", folder, "--output", tmp_path / "merged")
    assert not ran.exists()


def _elsewhere(record):
    for place in record.storage_data.values():
        place.relative_path = "../checkpoint.pt"


def _huge(record):
    next(iter(record.state_dict_metadata.values())).size = torch.Size([10**12])


@pytest.mark.parametrize("change", [_elsewhere, _huge, lambda record: record.storage_data.clear()])
def test_records_of_pieces_that_lie_are_refused(capsys, tmp_path, change):
    def break_record(path):
        record = pickle.loads(path.read_bytes())
        change(record)
        path.write_bytes(pickle.dumps(record))

    folder = save_pieces(tmp_path, break_record=break_record)
    assert str(folder) in refusal_of(capsys, "merge", folder, "--output", tmp_path / "merged")


@pytest.mark.parametrize("content", [b"", b"x", pickle.dumps(None), pickle.dumps({"a": 1})])
def test_records_of_pieces_that_are_none_are_refused(capsys, tmp_path, content):
    folder = save_pieces(tmp_path, break_record=lambda path: path.write_bytes(content))
    assert str(folder) in refusal_of(capsys, "merge", folder, "--output", tmp_path / "merged")


def test_pieces_of_another_model_are_not_merged(capsys, tmp_path):
    folder = save_pieces(tmp_path, change=lambda weights: weights.popitem())
    assert str(folder) in refusal_of(capsys, "merge", folder, "--output", tmp_path / "merged")


@pytest.mark.parametrize(
    "change", [{"files": []}, {"files": {"config.json": 3}}, {"run": None}, {"step": "7"}, {"format_version": None}]
)
@pytest.mark.parametrize(
    "command", ["convert {folder} {place}/x", "average {folder}/.. --last 1 --output {place}/averaged"]
)
def test_manifests_of_another_shape_are_refused(capsys, checkpoint, tmp_path, command, change):
    path = checkpoint / MANIFEST_FILE
    content = json.loads(path.read_text()) | change
    del content["sha256"]
    path.write_text(json.dumps({"sha256": _digest(content), **content}))
    assert MANIFEST_FILE in refusal_of(capsys, *command.format(folder=checkpoint, place=tmp_path).split())


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf")])
def test_pieces_that_are_not_finite_are_not_merged(capsys, tmp_path, value):
    names = []

    def change(weights):
        names.append(max(weights))
        weights[names[0]].view(-1)[0] = value

    folder = save_pieces(tmp_path, change)
    (name,) = names
    if value == 1.0:
        run_command("merge", folder, "--output", tmp_path / "merged")
        assert load_file(tmp_path / "merged" / "model.safetensors")[name].view(-1)[0] == value
    else:
        assert name in refusal_of(capsys, "merge", folder, "--output", tmp_path / "merged")
        assert not (tmp_path / "merged").exists()
