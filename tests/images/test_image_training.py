"""Image classifiers from recipes: learning, saving, random changes, evaluation, and what is refused."""

import json

import pytest
import torch

from builders.image_runs import CLASSES, make_image_recipe, make_image_trainer, write_images
from builders.translation_runs import check_accumulated, training_logs
from reluformers.images.run import load_splits, train_image_classification
from reluformers.images.scoring import classify

pytestmark = pytest.mark.xdist_group("image training")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {name: write_images(folder, name, rows) for name, rows in (("train", 60), ("validation", 10), ("test", 17))}


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A finished run of 8 epochs: its folder and results."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    recipe = make_image_recipe(
        files,
        model={"label_smoothing": 0.1},
        augmentation={"crop": "pad", "padding": 1, "flip": True, "mixup": 0.1},
        max_steps=-1,
        num_train_epochs=8,
        lr_scheduler_type="cosine",
        warmup_steps=4,
        eval_strategy="epoch",
    )
    return folder, train_image_classification(recipe, folder)


@pytest.fixture(scope="module")
def splits(files):
    return load_splits(make_image_recipe(files).data)


def test_the_model_learns_and_the_log_says_what_happened(finished):
    folder, results = finished
    assert results["test_accuracy"] > 0.8
    assert results["validation_accuracy"] > 0.8
    assert results["test_top5_accuracy"] >= results["test_accuracy"]
    for entry in training_logs(folder):
        assert entry["images_per_second"] > 0
        assert 0 <= entry["null_rate"] < 1
    history = json.loads((folder / "log_history.json").read_text())
    evaluations = [entry for entry in history if "eval_accuracy" in entry]
    assert [entry["epoch"] for entry in evaluations] == [*range(1, 9)]
    assert evaluations[-1]["eval_loss"] < evaluations[0]["eval_loss"]
    assert evaluations[-1]["eval_accuracy"] == results["validation_accuracy"]
    assert results["steps"] == 64


def test_evaluation_sees_each_image_once(splits, tmp_path):
    trainer = make_image_trainer(splits, tmp_path, model={"label_smoothing": 0.2})
    torch.nn.init.normal_(trainer.model.classifier.weight)
    metrics = trainer.evaluate()
    rows = splits["validation"]
    batch = trainer.data_collator([rows[row] for row in range(len(rows))])
    with torch.no_grad():
        outputs = trainer.model.eval()(**batch)
    ranks = outputs.logits.argsort(-1, descending=True)
    assert metrics["eval_loss"] == pytest.approx(outputs.loss.item(), rel=1e-5)
    assert metrics["eval_accuracy"] == pytest.approx((ranks[:, 0] == batch["labels"]).float().mean().item())
    top5 = (ranks[:, :5] == batch["labels"][:, None]).any(1).float().mean()
    assert metrics["eval_top5_accuracy"] == pytest.approx(top5.item())


def test_the_shares_of_all_processes_make_the_whole(splits, tmp_path, monkeypatch):
    trainer = make_image_trainer(splits, tmp_path)
    torch.nn.init.normal_(trainer.model.classifier.weight)
    trainer.evaluate()
    whole = trainer.classified
    parts = []

    def gather(part):
        parts.extend(part)
        return parts

    monkeypatch.setattr(type(trainer.args), "world_size", 12)
    for rank in range(12):  # the last two have nothing to do
        monkeypatch.setattr(type(trainer.args), "process_index", rank)
        together = classify(trainer.model, trainer.get_eval_dataloader(), gather)
    assert together.loss == pytest.approx(whole.loss)
    assert together.top.tolist() == whole.top.tolist()
    assert together.labels.tolist() == whole.labels.tolist()


def test_accumulated_halves_are_the_whole_batch(splits, tmp_path):
    whole = make_image_trainer(splits, tmp_path, per_device_train_batch_size=8, max_steps=2)
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 2}
    halves = make_image_trainer(splits, tmp_path, **options)
    check_accumulated(whole, halves)
    assert whole.state.global_step == halves.state.global_step == 2


AUGMENTED = {"crop": "resized", "min_area": 0.5, "flip": True, "rand_augment": [1, 9], "mixup": 0.2}


def test_random_changes_depend_on_the_batch_alone(splits, tmp_path):
    trainer = make_image_trainer(splits, tmp_path, augmentation=AUGMENTED)
    with_worker = make_image_trainer(splits, tmp_path, augmentation=AUGMENTED, dataloader_num_workers=1)
    epochs = []
    for loader, epoch in ((trainer, 0), (with_worker, 0), (trainer, 1)):
        batches = loader.get_train_dataloader()
        batches.set_epoch(epoch)
        state = torch.get_rng_state()
        epochs.append(list(batches))
        assert torch.equal(torch.get_rng_state(), state)  # dropout is none of the images' business
    for one, two in zip(*epochs[:2], strict=True):
        assert torch.equal(one["pixel_values"], two["pixel_values"])
        assert torch.equal(one["labels"], two["labels"])
    assert not torch.equal(epochs[0][0]["pixel_values"], epochs[2][0]["pixel_values"])
    assert epochs[0][0]["labels"].shape == (8, len(CLASSES))
    assert sum(len(batch["labels"]) for batch in epochs[0]) == 60
