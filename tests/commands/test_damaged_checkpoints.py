"""No command takes a checkpoint that is not as its manifest says, whatever it does with it."""

from pathlib import Path

import pytest

from builders.commands import ON_A_FOLDER, command_on, lay_out, refusal_of, run_command
from builders.saved_models import save_translator
from reluformers.training.checkpoints import complete_checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    """A sealed checkpoint of a translation model."""
    folder = tmp_path / "run" / "checkpoint-7"
    save_translator(folder)
    (folder / "optimizer.pt").write_text("training")
    complete_checkpoint(folder, {})
    lay_out(tmp_path)
    return folder


def change_weights(folder: Path) -> str:
    """Another last byte: a file that opens like the one that was written."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return path.name


@pytest.mark.parametrize("command", ON_A_FOLDER)
def test_a_damaged_checkpoint_is_named(capsys, checkpoint, tmp_path, command):
    name, before = change_weights(checkpoint), sorted(tmp_path.iterdir())
    line = refusal_of(capsys, *command_on(checkpoint, command, tmp_path))
    assert f"checkpoint-7/{name}" in line
    assert sorted(tmp_path.iterdir()) == before


def test_a_damaged_tokenizer_is_found_through_a_link(capsys, checkpoint, tmp_path):
    path = checkpoint / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    (tmp_path / "best").symlink_to(checkpoint)
    assert "tokenizer.json" in refusal_of(capsys, "convert", tmp_path / "best", tmp_path / "converted")


def test_a_whole_one_is_taken_without_what_belongs_to_training(checkpoint, tmp_path):
    (checkpoint / "optimizer.pt").unlink()
    run_command(*command_on(checkpoint, "evaluate", tmp_path))


def test_other_folders_have_manifests_of_their_own(tmp_path):
    folder = save_translator(tmp_path / "model")
    (folder / "manifest.json").write_text("[]")
    run_command("convert", folder, tmp_path / "converted")
