"""Distillation from the original, by hand and through whole runs, of both tasks."""

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM

from builders.image_runs import CLASSES, SIZES, make_image_recipe, write_images
from builders.translation_runs import check_resuming, make_recipe, training_logs, write_toy_files
from reluformers.images import run as image_run
from reluformers.images.recipe import ImageRecipe
from reluformers.modeling.attention import MultiHeadAttention
from reluformers.translation import run as translation_run
from reluformers.translation.recipe import TranslationRecipe
from reluformers.translation.run import train_translation

pytestmark = pytest.mark.xdist_group("transfer")

TASKS = {"translation": "dropout", "images": "hidden_dropout_prob"}  # and what a task calls its dropout
AUTO_CLASSES = {"translation": AutoModelForSeq2SeqLM, "images": AutoModelForImageClassification}


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """By task: a softmax model of two layers whose attention is not even, and the recipe's sections beside `model`."""
    folder = tmp_path_factory.mktemp("starts")
    recipe = make_recipe(write_toy_files(folder), preset="softmax", max_steps=1, save_strategy="no")
    recipe.model |= {"encoder_layers": 2, "attention_dropout": 0.0, "label_smoothing": 0.1}
    recipe.decoding.max_new_tokens = 3
    train_translation(recipe, folder / "translation")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "translation")
    files = {name: write_images(folder, name, 24) for name in ("train", "validation")}
    images = make_image_recipe(files, save_strategy="steps", save_steps=2)
    labels = dict(enumerate(CLASSES))
    config = ImageRecipe.from_dict({"model": {"preset": "softmax", **SIZES, "label_smoothing": 0.1}}).model_config(
        id2label=labels, label2id={name: number for number, name in labels.items()}
    )
    vision = AutoModelForImageClassification.from_config(config)
    torch.nn.init.normal_(vision.classifier.weight)
    for each, name in ((model, "translation"), (vision, "images")):
        for module in each.modules():
            if isinstance(module, MultiHeadAttention):
                torch.nn.init.normal_(module.q_proj.weight, std=0.5)
                torch.nn.init.normal_(module.k_proj.weight, std=0.5)
        each.save_pretrained(folder / name)
    sections = {"translation": recipe.to_dict(), "images": images.to_dict()}
    sections["translation"]["training"] |= {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    sections["translation"]["training"] |= {"max_tokens": 100, "num_train_epochs": 3}
    for each in sections.values():
        each.pop("model")
    sections["translation"].pop("tokenizer")
    return folder, sections


def recipe_of(starts, task, training=(), **model):
    folder, sections = starts
    given = {"start": str(folder / task), TASKS[task]: 0.0, "label_smoothing": 0.1, **model}
    owner = TranslationRecipe if task == "translation" else ImageRecipe
    training = {**sections[task]["training"], **dict(training)}
    return owner.from_dict({**sections[task], "model": given, "training": training})


def begin(starts, task, folder, training=(), **model):
    """Trainer, original and hooks as at an update of a run, and a batch of it."""
    recipe = recipe_of(starts, task, training, **model)
    args = recipe.training_arguments(folder)
    if task == "translation":
        prepared = translation_run.prepare_data(recipe, folder, reuse_tokenizers=False)
        trainer = translation_run.build_trainer(recipe, args, prepared, translation_run.build_model(recipe, prepared))
    else:
        splits = image_run.load_splits(recipe.data)
        trainer = image_run.build_trainer(recipe, args, splits, *image_run.build_model(recipe, splits["train"], None))
    transfer = trainer.callback_handler.callbacks[-1]
    trainer.state.logging_steps = 1
    transfer.on_train_begin(trainer.args, trainer.state, trainer.control)
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    trainer.model.train()
    return trainer, transfer, AUTO_CLASSES[task].from_pretrained(starts[0] / task).eval(), batch


def by_hand(ours, theirs, labels, weight, smoothing=0.1):
    """Σ (1 − w)·CE + w·KL over the predictions that count, and their number, in float64."""
    ours, theirs = (logits.double().flatten(0, -2).log_softmax(-1) for logits in (ours, theirs))
    labels, total, count = labels.flatten(), 0.0, 0
    for q, p, label in zip(ours, theirs, labels, strict=True):
        if label != -100:
            target = torch.full_like(q, smoothing / len(q))
            target[label] += 1 - smoothing
            total = total - (1 - weight) * (target * q).sum() + weight * (p.exp() * (p - q)).sum()
            count += 1
    return total, count


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_is_cross_entropy_and_divergence(starts, tmp_path, task):
    model = {"preset": "relu-vit", "distillation": 0.3}
    if task == "translation":
        model = {"preset": "reluformer", "distillation": 0.3, "normalization_loss_weight": 0.5}
    trainer, _, original, batch = begin(starts, task, tmp_path, **model)
    items = 37 if task == "translation" else None
    loss, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True, num_items_in_batch=items)
    total, count = by_hand(outputs.logits.detach(), original(**batch).logits, batch["labels"], 0.3)
    items = items or count
    regulariser = outputs.regularization_loss * count / items if task == "translation" else 0.0
    assert loss.item() == pytest.approx(float(total / items + regulariser), rel=1e-5)
    divergence, _ = by_hand(outputs.logits.detach(), original(**batch).logits, batch["labels"], 1.0)
    assert trainer.statistics["distillation_loss"].item() == pytest.approx(float(divergence / count), rel=1e-4)
    assert divergence > 1e-3
    # evaluations know none of it
    trainer.model.eval()
    plain = functional.cross_entropy(trainer.model(**batch).logits.flatten(0, -2), batch["labels"].flatten())
    assert float(trainer.model(**batch).loss) == pytest.approx(float(plain), rel=1e-5)


@pytest.mark.parametrize(("task", "accelerated"), [("translation", "fused"), ("images", "eager")])
def test_the_difference_of_the_heads(starts, tmp_path, task, accelerated):
    """Σ over real queries and channels of (o − o')², over that of (o' − mean)²; then the mean over the modules."""
    sites = ["cross"] if task == "translation" else ["encoder"]
    options = {"preset": "relu-vit", "sites": sites, "attention_distillation": 3.0}
    trainer, transfer, original, batch = begin(starts, task, tmp_path, **options)
    trainer.model.set_attn_implementation(accelerated)
    assert all(name.endswith("cross_attn" if task == "translation" else "self_attn") for name in transfer.pairs)
    heard = {"ours": [], "theirs": []}
    for which, model in (("ours", trainer.model), ("theirs", original)):
        for name in transfer.pairs:
            projection = model.get_submodule(name).out_proj
            projection.register_forward_pre_hook(lambda _, given, which=which: heard[which].append(given[0].detach()))
    items = 37 if task == "translation" else None
    loss, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True, num_items_in_batch=items)
    original(**batch)
    parts = []
    for ours, theirs in zip(heard["ours"], heard["theirs"], strict=True):
        real = batch["labels"] >= 0 if task == "translation" else torch.ones(ours.shape[:2], dtype=torch.bool)
        ours, theirs = ours[real].double(), theirs[real].double()
        parts.append((ours - theirs).square().mean() / theirs.var(correction=0))
    assert len(parts) == len(transfer.pairs)
    expected = torch.stack(parts).mean()
    assert trainer.statistics["attention_loss"].item() == pytest.approx(float(expected), rel=1e-4)
    task_loss, count = by_hand(outputs.logits.detach(), outputs.logits.detach(), batch["labels"], 0.0)
    items = items or count
    assert loss.item() == pytest.approx(float(task_loss + 3 * expected * count) / items, rel=1e-5)
    # its gradient reaches what the attention is made of
    trainer.model.zero_grad()
    loss.backward()
    assert all(module.q_proj.weight.grad.abs().max() > 0 for module, _ in transfer.pairs.values())
    assert all(weight.grad is None for weight in transfer.original.parameters())


def test_checkpointed_layers_have_the_same_gradient(starts, tmp_path):
    trainer, _, _, batch = begin(starts, "translation", tmp_path, preset="rela", **EVERYTHING)
    gradients = []
    for is_checkpointed in (False, True):
        if is_checkpointed:
            trainer.model.gradient_checkpointing_enable()
        trainer.model.zero_grad()
        trainer.compute_loss(trainer.model, batch).backward()
        gradients.append([weight.grad.clone() for weight in trainer.model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])
    trainer.callback_handler.callbacks[-1].on_train_end(trainer.args, trainer.state, trainer.control)
    assert not trainer.model._forward_hooks


EVERYTHING = {"distillation": 0.5, "attention_distillation": 0.5}


def test_a_resumed_run_ends_with_the_same_weights(starts, tmp_path):
    training = {"gradient_accumulation_steps": 2, "max_steps": 3}
    recipe = recipe_of(starts, "translation", training, preset="reluformer", dropout=0.1, **EVERYTHING)
    whole, _ = check_resuming(train_translation, recipe, tmp_path)
    assert all({"distillation_loss", "attention_loss"} <= entry.keys() for entry in training_logs(whole))
    # A checkpoint opens like that of a model that was trained alone.
    _, report = AutoModelForSeq2SeqLM.from_pretrained(whole / "checkpoint-2", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@pytest.mark.parametrize(
    ("training", "model", "named"),
    [
        ({}, {"preset": "softmax", "attention_distillation": 1.0}, "model.preset"),
        ({}, {"distillation": float("nan")}, r"model\.distillation"),
        ({"torch_compile": True}, {"distillation": 0.5}, "torch_compile"),
        ({}, {"distillation": 0.5, "problem_type": "multi_label_classification"}, r"model\.distillation"),
    ],
)
def test_what_does_not_go_together_is_named(starts, tmp_path, training, model, named):
    with pytest.raises(ValueError, match=named):
        begin(starts, "images", tmp_path, training=training, **model)


def test_other_classes_cannot_be_distilled_but_attention_can(starts, tmp_path):
    folder, sections = starts
    files = {name: write_images(tmp_path, name, 8, ["cat", "dog"]) for name in ("train", "validation")}
    moved = (folder, {"images": sections["images"] | {"data": files}})
    with pytest.raises(ValueError, match=r"model\.distillation"):
        begin(moved, "images", tmp_path, distillation=0.5)
    trainer, *_, batch = begin(moved, "images", tmp_path, preset="rela", attention_distillation=1.0)
    trainer.compute_loss(trainer.model, batch)
    assert trainer.statistics["attention_loss"] > 0
