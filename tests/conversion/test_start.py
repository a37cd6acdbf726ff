"""One run of a recipe with `model.start`: convert, exchange, fit, train, save."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    MarianMTModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from builders.image_runs import CLASSES, SIZES, make_image_recipe, write_images
from builders.models import build_marian
from builders.translation_runs import write_toy_files
from reluformers.conversion.start import start_model
from reluformers.images.recipe import ImageRecipe
from reluformers.images.run import train_image_classification
from reluformers.translation.recipe import TranslationRecipe
from reluformers.translation.run import train_translation
from reluformers.translation.tokenization import save_tokenizers, train_tokenizer

CARD = "---\nlicense: cc-by-4.0\nbase_model: org/base\n---\n# x\n"
SHORT = {
    "max_steps": 2,
    "lr_scheduler_type": "constant",
    "learning_rate": 1e-3,
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1,
}


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    files = write_toy_files(folder)
    texts = [line for side in files["train"].values() for line in Path(side).read_text().splitlines()]
    tokenizer = train_tokenizer(texts, 100)
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    model = build_marian(len(tokenizer), **layers, activation_function="swish", forced_eos_token_id=2, init_std=0.3)
    model.generation_config = GenerationConfig(
        bad_words_ids=[[0]], num_beams=6, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0
    )
    model.save_pretrained(folder)
    save_tokenizers(folder, tokenizer)
    (folder / "README.md").write_text(CARD)
    return folder, files


def translation_recipe(start, files, training=SHORT, **model) -> TranslationRecipe:
    return TranslationRecipe.from_dict(
        {
            "model": {"start": str(start), **model},
            "data": {"source_lang": "en", "target_lang": "de", **files},
            "training": {**training, "max_tokens": 400},
            "decoding": {"num_beams": 2, "max_new_tokens": 10},
        }
    )


def test_a_translation_model_starts_from_marian(marian, tmp_path):
    folder, files = marian
    lines = []
    taught = {"distillation": 0.5, "attention_distillation": 1.0}
    recipe = translation_recipe(folder, files, preset="reluformer", sites=["encoder", "cross"], dropout=0.2, **taught)
    results = train_translation(recipe, tmp_path, report=lines.append)
    assert any("attention of 2 modules exchanged" in line for line in lines)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    config = model.config
    assert [config.attention_for(site).activation for site in config.sites] == ["relu", "softmax", "relu"]
    assert (config.dropout, config.activation_function, config.model_type) == (0.2, "swish", "reluformer")
    assert model.generation_config.bad_words_ids == [[0]]
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 11)
    assert results["start"] == {"base_model": "org/base", "license": "cc-by-4.0"}
    kept = MarianMTModel.from_pretrained(folder).model.shared.weight
    tuned = model.model.encoder.embed_tokens.weight
    assert not torch.equal(kept, tuned)  # trained, in memory of its own
    torch.testing.assert_close(kept, tuned, atol=0.02, rtol=0)


def test_without_a_preset_the_source_is_trained_as_it_is(marian):
    folder, files = marian
    recipe = translation_recipe(folder, files)
    assert recipe.model_config().attention.preset_name == "softmax"
    assert recipe.calibration_rows == 0
    model = start_model(**recipe.start_options)
    ids = {"input_ids": torch.tensor([[5, 9, 2]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    theirs = MarianMTModel.from_pretrained(folder).eval()
    torch.testing.assert_close(model.eval()(**ids).logits, theirs(**ids).logits)


def test_a_half_precision_source_is_trained_in_float32(marian, tmp_path):
    MarianMTModel.from_pretrained(marian[0]).half().save_pretrained(tmp_path)
    model = start_model(str(tmp_path), None, None)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert {buffer.dtype for buffer in model.buffers() if buffer.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("labels", [CLASSES, pytest.param(["cat", "dog"], marks=pytest.mark.slow)], ids=len)
def test_an_image_model_starts_from_vit(labels, tmp_path):
    id2label = dict(enumerate(labels))
    config = ViTConfig(**SIZES, id2label=id2label, label2id={name: number for number, name in id2label.items()})
    theirs = ViTForImageClassification(config)
    theirs.save_pretrained(tmp_path / "vit")
    size = {"height": 8, "width": 8}
    ViTImageProcessorPil(size=size, image_mean=[0.4] * 3, image_std=[0.3] * 3).save_pretrained(tmp_path / "vit")
    files = {name: write_images(tmp_path, name, 24) for name in ("train", "validation")}
    recipe = make_image_recipe(files, max_steps=2)
    recipe = ImageRecipe.from_dict(
        {**recipe.to_dict(), "model": {"start": str(tmp_path / "vit"), "preset": "relu-vit", "calibration_rows": 20}}
    )
    lines = []
    train_image_classification(recipe, tmp_path / "run", report=lines.append)
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run")
    assert type(model).__name__ == "ReLUViTForImageClassification"
    assert list(model.config.id2label.values()) == CLASSES
    assert json.loads((tmp_path / "run/preprocessor_config.json").read_text())["image_mean"] == [0.4] * 3
    assert any("attention of 2 modules exchanged" in line for line in lines)
    assert any("the head starts anew" in line for line in lines) == (labels != CLASSES)
