"""Averaged checkpoints: values, types, shards, files beside the weights, damaged input."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from reluformers.files import MARK
from reluformers.training.averaging import average_checkpoints, last_checkpoints
from reluformers.training.checkpoints import complete_checkpoint


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, 4, generator=generator),
        "half": torch.tensor([256.0 if seed == 0 else 1.0, seed]).bfloat16(),  # in bfloat16 256 + 1 is 256
        "double": torch.randn(5, generator=generator).double(),
        "scale": torch.randn((), generator=generator),
        "steps": torch.tensor([seed, 2 * seed]),
        "flags": torch.tensor([bool(seed % 2)]),
    }


OTHERS = {"generation_config.json", "modeling_x.py", "target_tokenizer/tokenizer.json"}


def checkpoint(folder: Path, seed: int, shard_bytes: int = 1000) -> Path:
    """A checkpoint as the Trainer leaves it."""
    folder.mkdir(parents=True)
    save_torch_state_dict(tensors(seed), folder, max_shard_size=shard_bytes)
    for name in OTHERS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps({"of": f"{name} of {seed}"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "marian", "transformers_version": f"5.{seed}"}))
    for name in ("optimizer.pt", "rng_state_0.pth", "trainer_state.json"):
        (folder / name).write_text("training")
    return folder


def expected_mean(seeds: list[int]) -> dict[str, torch.Tensor]:
    rows = [tensors(seed) for seed in seeds]
    means = {}
    for key in ("weight", "half", "double", "scale"):
        rows_of_key = [row[key].double() for row in rows]
        means[key] = torch.stack(rows_of_key).mean(0).to(rows[0][key].dtype)
    return {**means, "steps": rows[-1]["steps"], "flags": rows[-1]["flags"]}


def assert_same(result: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert result.keys() == expected.keys()
    for key, value in result.items():
        # A sum in bfloat16 would be off by more.
        torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-6, msg=key)


@pytest.mark.parametrize("last_shard_bytes", [1000, 60])
def test_floats_are_averaged_and_all_else_comes_from_the_last(tmp_path, last_shard_bytes):
    shard_bytes = (1000, 50, last_shard_bytes)
    folders = [checkpoint(tmp_path / f"{seed}", seed, shard_bytes[seed]) for seed in (0, 1, 2)]
    output = average_checkpoints(folders, tmp_path / "average")
    assert_same(load_file(output / "model.safetensors"), expected_mean([0, 1, 2]))
    files = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    assert files == {MARK, "model.safetensors", "config.json", *OTHERS}
    for name in OTHERS:
        assert f"{name} of 2" in (output / name).read_text()


def test_checkpoints_are_found_in_the_order_of_their_steps(tmp_path):
    for name in ("checkpoint-900", "checkpoint-1000", "checkpoint-20", "checkpoint-best"):
        (tmp_path / name).mkdir()
    assert [path.name for path in last_checkpoints(tmp_path, 2)] == ["checkpoint-900", "checkpoint-1000"]
    with pytest.raises(ValueError, match=str(tmp_path)):
        last_checkpoints(tmp_path, 4)


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def with_change(**changes):
    def change(folder: Path) -> None:
        kept = {key: value for key, value in {**tensors(2), **changes}.items() if value is not None}
        save_file(kept, folder / "model.safetensors")

    return change


def of_another_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "bart"}))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "damage",
    [
        cut_short,
        of_another_model,
        with_change(scale=None),
        with_change(extra=torch.ones(2)),
        with_change(weight=torch.ones(4, 3)),
        with_change(half=torch.tensor([1, float("nan")]).bfloat16()),
    ],
)
def test_damaged_or_different_checkpoints_are_named_and_nothing_is_left(tmp_path, damage, place):
    folders = [checkpoint(tmp_path / f"checkpoint-{seed}", seed) for seed in (1, 2)]
    damage(folders[place])
    with pytest.raises((ValueError, OSError, SafetensorError)):
        average_checkpoints(folders, tmp_path / "average")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2"]


def test_output_is_new_and_apart_from_checkpoints(tmp_path):
    run = tmp_path / "run"
    folders = [checkpoint(run / f"checkpoint-{seed}", seed) for seed in (1, 2, 3)]
    other = checkpoint(tmp_path / "other" / "checkpoint-1", 1).parent
    before = sorted(tmp_path.rglob("*"))
    for output in (run, folders[1], other):
        with pytest.raises(ValueError, match=str(output)):
            average_checkpoints(folders[1:], output, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before
    for overwrite in (False, True):
        average_checkpoints(folders, run / "averaged", overwrite=overwrite)


def sealed(run: Path, step: int) -> Path:
    """A checkpoint as our trainer leaves it."""
    folder = checkpoint(run / f"checkpoint-{step}", step)
    complete_checkpoint(folder, {})
    return folder


def test_one_step_is_not_averaged_twice(tmp_path):
    sealed(tmp_path, 1)
    (tmp_path / "checkpoint-2").symlink_to("checkpoint-1")
    with pytest.raises(ValueError, match="checkpoint-2"):
        average_checkpoints(last_checkpoints(tmp_path, 2), tmp_path / "average")
