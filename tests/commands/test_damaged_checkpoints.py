"""No command takes a checkpoint that is not as its manifest says, whatever it does with it."""

import json
import shutil
from pathlib import Path

import pytest

from builders.commands import refusal_of, run_command
from builders.saved_models import save_translator
from reluformers.training.checkpoints import MANIFEST_FILE, _digest, complete_checkpoint

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
    save_translator(folder)
    (folder / "optimizer.pt").write_text("training")
    complete_checkpoint(folder, {})
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


@pytest.mark.parametrize("change", [{"step": "7"}, {"format_version": None}])
@pytest.mark.parametrize(
    "command", ["convert {folder} {place}/x", "average {folder}/.. --last 1 --output {place}/averaged"]
)
def test_manifests_of_another_shape_are_refused(capsys, checkpoint, tmp_path, command, change):
    path = checkpoint / MANIFEST_FILE
    content = json.loads(path.read_text()) | change
    del content["sha256"]
    path.write_text(json.dumps({"sha256": _digest(content), **content}))
    assert MANIFEST_FILE in refusal_of(capsys, *command.format(folder=checkpoint, place=tmp_path).split())
