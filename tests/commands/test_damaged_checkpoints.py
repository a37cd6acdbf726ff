"""No command takes a checkpoint that is not as its manifest says, whatever it does with it."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.distributed.checkpoint import save
from transformers import AutoModelForSeq2SeqLM

from builders.commands import refusal_of, run_command
from builders.saved_models import save_translator
from reluformers.saved_models import load_model
from reluformers.training.checkpoints import complete_checkpoint
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


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf")])
def test_pieces_that_are_not_finite_are_not_merged(capsys, tmp_path, value):
    folder, unfinished = tmp_path / "checkpoint-7", save_translator(tmp_path / "unfinished")
    weights = load_model(AutoModelForSeq2SeqLM, unfinished).state_dict()
    name = max(weights)
    weights[name].view(-1)[0] = value
    save({"model": weights}, checkpoint_id=unfinished / SHARDED_WEIGHTS, no_dist=True)
    (unfinished / "model.safetensors").unlink()
    complete_checkpoint(unfinished, folder, {})
    if value == 1.0:
        run_command("merge", folder, "--output", tmp_path / "merged")
        assert load_file(tmp_path / "merged" / "model.safetensors")[name].view(-1)[0] == value
    else:
        assert name in refusal_of(capsys, "merge", folder, "--output", tmp_path / "merged")
        assert not (tmp_path / "merged").exists()
