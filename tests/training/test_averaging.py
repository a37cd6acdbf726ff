"""Averaged checkpoints: values, types, shards, files beside the weights, damaged input."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from builders.commands import run_command
from builders.models import build_model
from reluformers.files import MARK
from reluformers.training.averaging import average_checkpoints, last_checkpoints
from reluformers.training.checkpoints import complete_checkpoint


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, 4, generator=generator),
        "half": torch.randn(5, generator=generator).bfloat16(),
        "double": torch.randn(5, generator=generator).double(),
        "scale": torch.randn((), generator=generator),
        "steps": torch.tensor([seed, 2 * seed]),
        "flags": torch.tensor([bool(seed % 2)]),
    }


def checkpoint(folder: Path, seed: int, shards: int = 1) -> Path:
    """A checkpoint as the Trainer leaves it."""
    folder.mkdir(parents=True)
    values = list(tensors(seed).items())
    if shards == 1:
        save_file(dict(values), folder / "model.safetensors", metadata={"format": "pt"})
    else:
        files = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
        for number, file in enumerate(files):
            save_file(dict(values[number::shards]), folder / file, metadata={"format": "pt"})
        names = {key: files[position % shards] for position, (key, _) in enumerate(values)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    for name in ("config.json", "generation_config.json", "modeling_x.py", "target_tokenizer/tokenizer.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps({"model_type": "marian", "of": f"{name} of {seed}"}))
    for name in ("optimizer.pt", "scaler.pt", "rng_state_0.pth", "trainer_state.json", "training_args.bin"):
        (folder / name).write_text("training")
    return folder


def expected_mean(seeds: list[int]) -> dict[str, torch.Tensor]:
    rows = [tensors(seed) for seed in seeds]
    means = {}
    for key in ("weight", "half", "double", "scale"):
        means[key] = torch.stack([row[key].double() for row in rows]).mean(0).to(rows[0][key].dtype)
    return {**means, "steps": rows[-1]["steps"], "flags": rows[-1]["flags"]}


def assert_same(result: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert result.keys() == expected.keys()
    for key, value in result.items():
        torch.testing.assert_close(value, expected[key], msg=key)


def test_sums_are_wider_than_bfloat16(tmp_path):
    # in bfloat16 256 + 1 is 256, so a sum there would forget the small ones
    values = [256.0, 1.0, 1.0, 1.0]
    folders = []
    for number, value in enumerate(values):
        (tmp_path / str(number)).mkdir()
        save_file({"w": torch.tensor([value]).bfloat16()}, tmp_path / str(number) / "model.safetensors")
        folders.append(tmp_path / str(number))
    average_checkpoints(folders, tmp_path / "average")
    mean = load_file(tmp_path / "average" / "model.safetensors")["w"]
    assert mean.dtype == torch.bfloat16
    assert mean.item() == torch.tensor(sum(values) / 4).bfloat16().item() != 64.0
    with safe_open(tmp_path / "average" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # which transformers asks for, whatever the checkpoints say


@pytest.mark.parametrize("shards", [(1, 1, 1), (1, 2, 2), (1, 3, 1)])
def test_floats_are_averaged_and_all_else_comes_from_the_last(tmp_path, shards):
    folders = [checkpoint(tmp_path / f"{seed}", seed, shards[seed]) for seed in (0, 1, 2)]
    output = average_checkpoints(folders, tmp_path / "average")
    assert_same(load_file(output / "model.safetensors"), expected_mean([0, 1, 2]))
    files = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    others = {"config.json", "generation_config.json", "modeling_x.py", "target_tokenizer/tokenizer.json"}
    assert files == {MARK, "model.safetensors", *others}
    for name in others:
        assert f"{name} of 2" in (output / name).read_text()


def test_averaged_model_with_tied_weights_opens(tmp_path):
    models = [build_model("softmax") for _ in range(2)]
    torch.nn.init.normal_(models[1].get_input_embeddings().weight)
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
    average_checkpoints([tmp_path / "0", tmp_path / "1"], tmp_path / "average")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "average")
    embeddings = [model.get_input_embeddings().weight for model in (*models, loaded)]
    torch.testing.assert_close(embeddings[2], (embeddings[0] + embeddings[1]) / 2)
    assert loaded.lm_head.weight is loaded.get_input_embeddings().weight


def test_checkpoints_are_found_in_the_order_of_their_steps(tmp_path):
    for name in ("checkpoint-900", "checkpoint-1000", "checkpoint-20", "checkpoint-best", "other", "checkpoint-1e9"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-5000").write_text("a file")
    assert [path.name for path in last_checkpoints(tmp_path, 2)] == ["checkpoint-900", "checkpoint-1000"]
    assert [path.name for path in last_checkpoints(tmp_path, 1)] == ["checkpoint-1000"]
    with pytest.raises(ValueError, match=str(tmp_path)):
        last_checkpoints(tmp_path, 4)


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def as_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "acme/base"}')


def with_change(**changes):
    def change(folder: Path) -> None:
        kept = {key: value for key, value in {**tensors(2), **changes}.items() if value is not None}
        save_file(kept, folder / "model.safetensors")

    return change


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "damage",
    [
        *(cut_short, without_weights, as_adapter),
        *(with_change(scale=None), with_change(extra=torch.ones(2)), with_change(weight=torch.ones(4, 3))),
        *(with_change(half=torch.tensor([1, 1, value, 1, 1]).bfloat16()) for value in (float("nan"), -float("inf"))),
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


def test_what_belongs_to_training_alone_may_be_gone(tmp_path):
    for step in (1, 2):
        (sealed(tmp_path / "run", step) / "optimizer.pt").unlink()
    run_command("average", tmp_path / "run", "--last", 2, "--output", tmp_path / "average")
    assert_same(load_file(tmp_path / "average" / "model.safetensors"), expected_mean([1, 2]))


def test_one_step_is_not_averaged_twice(tmp_path):
    sealed(tmp_path, 1)
    (tmp_path / "checkpoint-2").symlink_to("checkpoint-1")
    with pytest.raises(ValueError, match="checkpoint-2"):
        average_checkpoints(last_checkpoints(tmp_path, 2), tmp_path / "average")
