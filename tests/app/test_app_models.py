"""What the app computes of a model: weights, words, patches, and what it refuses."""

import os
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import models
from builders.pictures import mutations, picture
from builders.saved_models import TEXTS, save_classifier, save_translator
from reluformers.modeling import image_input

TEXT = TEXTS[1]


def test_weights_are_those_of_the_pass_that_is_given_the_translation(translator):
    translation = translator.translate(TEXT, 2)
    source, target = torch.tensor([translation.source_ids]), torch.tensor([translation.target_ids])
    with torch.no_grad():
        outputs = translator.model(input_ids=source, decoder_input_ids=target[:, :-1], output_attentions=True)
    for site in ("encoder", "decoder", "cross"):
        weights = getattr(outputs, f"{site}_attentions")[0][0].numpy()
        shown = translator.attend(translation, site, 0)
        # what a head gives to all words is what it gives to all tokens, on average over the tokens of a word
        lengths = np.diff([*(word.start for word in shown.queries), weights.shape[1]])
        np.testing.assert_allclose((shown.weights.sum(-1) * lengths).sum(-1), weights.sum((-1, -2)), rtol=1e-5)
        seen = np.tril(np.ones_like(weights[0], dtype=bool)) if site == "decoder" else np.ones_like(weights[0], bool)
        assert shown.zeros.by_head == pytest.approx([(head[seen] == 0).mean() for head in weights])
        assert shown.zeros.nulls == pytest.approx([(head.sum(-1) == 0).mean() for head in weights])
        assert shown.zeros.in_mean == pytest.approx((weights.mean(0)[seen] == 0).mean())


def test_tokens_become_words(translator):
    pieces = ["▁be", "ach", "▁", "h", "at", ".", "▁5", "</s>", "</s>", "▁日", "本"]

    class Pieces:
        all_special_ids = (7, 8)

        def convert_ids_to_tokens(self, ids):
            return [pieces[number] for number in ids]

        def decode(self, ids):
            return "".join(self.convert_ids_to_tokens(ids)).replace("▁", " ")

    found = models.split_words(Pieces(), range(len(pieces)))
    assert [word.text for word in found] == ["beach", "hat", ".", "5", "</s>", "</s>", "日", "本"]
    assert [word.start for word in found] == [0, 2, 5, 6, 7, 8, 9, 10]
    assert [word.blank for word in found] == [True, True, False, True, True, True, True, False]


def test_a_translation_is_read_in_another_vocabulary(tmp_path):
    other = models.load_model(str(save_translator(tmp_path, separate=True)))
    read = other.read(TEXT, TEXTS[2])
    assert read.source_ids == other.tokenizer(TEXT)["input_ids"]
    assert other.target_tokenizer.decode(read.target_ids, skip_special_tokens=True) == TEXTS[2]
    # as `generate` begins and ends
    ends = (other.model.generation_config.decoder_start_token_id, other.config.eos_token_id)
    assert (read.target_ids[0], read.target_ids[-1]) == ends
    assert len(other.read(TEXT * 9, TEXT * 9).target_ids) == other.config.max_position_embeddings


@pytest.mark.parametrize("pooling", ["mean", "cls", "attention"])
def test_classes_and_patches_of_every_pooling(tmp_path, image_file, pooling):
    model = models.load_model(str(save_classifier(tmp_path / "model", pooling=pooling)))
    scores, values = model.classify(models.open_image(image_file))
    assert scores.keys() == {"cat", "dog", "horse"}
    assert sum(scores.values()) == pytest.approx(1)
    with torch.no_grad():
        last = model.model(values, output_attentions=True).attentions[-1][0].numpy()
    expected = last[:, 0, 1:] if pooling == "cls" else last.mean(1)
    patches = model.attend(values, 1)
    np.testing.assert_allclose(patches.weights, expected.reshape(-1, 2, 3), rtol=1e-6)
    assert patches.zeros.nulls == pytest.approx(
        (last[:, :1] == 0).all(-1).mean(-1).tolist() if pooling == "cls" else (last == 0).all(-1).mean(-1).tolist()
    )
    counted = last[:, :1, 1:] if pooling == "cls" else last
    assert patches.zeros.by_head == pytest.approx((counted == 0).mean((1, 2)).tolist())
    image = Image.open(image_file).convert("RGB").resize((12, 8), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(patches.picture, np.asarray(image) / 255, atol=0.02)
    assert len(model.layer_names()) == 2 + (pooling == "attention")


def test_threads_see_only_their_own_pooling_query(classifier):
    layer = len(classifier.layer_names()) - 1
    pixels = [torch.randn(1, 3, 8, 12, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    alone = [classifier.attend(values, layer).weights for values in pixels]
    assert not np.allclose(alone[0], alone[1])
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            for one, other in zip(
                pool.map(lambda values: classifier.attend(values, layer), pixels), alone, strict=True
            ):
                np.testing.assert_allclose(one.weights, other, rtol=1e-5)


def test_bad_images_are_refused(tmp_path, monkeypatch, image_file):
    text, broken = tmp_path / "text.png", tmp_path / "broken.png"
    text.write_text("no image")
    broken.write_bytes(Path(image_file).read_bytes()[:100])
    for path, message in ((None, "no image: choose one"), (str(text), "can be read"), (str(broken), "can be read")):
        with pytest.raises(ValueError, match=message):
            models.open_image(path)
    monkeypatch.setattr(models, "MAX_PIXELS", 16 * 24 - 1)
    with pytest.raises(ValueError, match="24 × 16 pixels, at most 383"):
        models.open_image(image_file)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [300, pytest.param(60_000, marks=pytest.mark.slow)])
def test_mutated_images_are_opened_or_refused(number):
    outcomes = set()
    for data in mutations(number, seed=number):
        try:
            outcomes.add(models.open_image(BytesIO(data)).mode)
        except ValueError as error:
            outcomes.add(type(error))
    assert outcomes == {"RGB", ValueError}  # the page's own error, none of Pillow's


def test_page_and_handler_read_the_same_images():
    for name in ("IMAGE_FORMATS", "MAX_PIXELS", "MAX_RATIO"):
        assert getattr(models, name) == getattr(image_input, name)


def test_only_ordinary_files_of_images_are_opened(tmp_path, image_file):
    picture(8, 12).save(tmp_path / "script.png", "EPS")  # which Pillow gives to Ghostscript
    os.mkfifo(tmp_path / "pipe.png")
    inside, outside = tmp_path / "inside", tmp_path / "outside.png"
    inside.mkdir()
    picture(8, 12).save(outside)
    (inside / "link.png").symlink_to(outside)
    (inside / "pipe.png").symlink_to(tmp_path / "pipe.png")
    assert models.open_image(str(outside), str(tmp_path)).size == (12, 8)
    assert models.open_image(str(inside / "link.png")).size == (12, 8)  # of the page's owner
    for path in ("script.png", "pipe.png", "inside", "none.png", "\0", "a" * 5_000):
        with pytest.raises(ValueError, match="no image"):
            models.open_image(str(tmp_path / path))
    for path in (
        outside,
        inside / "link.png",
        inside / "pipe.png",
        inside / "../outside.png",
        "/dev/stdin",
        "/dev/zero",
    ):
        with pytest.raises(ValueError, match="no image"):
            models.open_image(str(path), str(inside))


@pytest.mark.parametrize("size", [(1, 51), (5000, 1)])
def test_a_narrow_image_is_refused_before_it_is_enlarged(size):
    file = BytesIO()
    Image.new("RGB", size).save(file, "PNG")
    with pytest.raises(ValueError, match=str(models.MAX_RATIO)):
        models.open_image(file)
    Image.new("RGB", (1, 50)).save(whole := BytesIO(), "PNG")
    assert models.open_image(whole).size == (1, 50)


ODD_CARDS = ["widget: [a: b: {", "widget: 3", "widget: {text: a}", "widget: [3, [], {text: [1]}]", "- a"]
