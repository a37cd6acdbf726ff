"""What the app computes of a model: weights, words, patches, and what it refuses."""

import base64
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import models
from builders.pictures import picture
from builders.saved_models import TEXTS, save_classifier, save_translator

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
    pieces = ["▁be", "ach", "▁", "h", "at", ".", "</s>", "▁日", "本"]

    class Pieces:
        all_special_ids = (6,)

        def convert_ids_to_tokens(self, ids):
            return [pieces[number] for number in ids]

        def decode(self, ids):
            return "".join(self.convert_ids_to_tokens(ids)).replace("▁", " ")

    found = models.split_words(Pieces(), range(len(pieces)))
    assert [word.text for word in found] == ["beach", "hat", ".", "</s>", "日", "本"]
    assert [word.start for word in found] == [0, 2, 5, 6, 7, 8]
    assert [word.blank for word in found] == [True, True, False, True, True, False]


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
    scores, values = model.classify(model.open_file(image_file, os.path.dirname(image_file)))
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


def test_only_ordinary_images_below_a_folder_are_opened(classifier, tmp_path, image_file):
    picture(8, 12).save(tmp_path / "script.png", "EPS")  # which Pillow gives to Ghostscript
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "broken.png").write_bytes(Path(image_file).read_bytes()[:100])
    Image.new("RGB", (1, 51)).save(tmp_path / "narrow.png")
    os.mkfifo(tmp_path / "pipe.png")
    inside, outside = tmp_path / "inside", tmp_path / "outside.png"
    inside.mkdir()
    picture(8, 12).save(outside)
    (inside / "link.png").symlink_to(outside)
    assert classifier.open_file(str(outside), str(tmp_path)).size == (12, 8)
    assert classifier.open_file(str(inside / "link.png"), str(tmp_path)).size == (12, 8)
    for name in ("script", "text", "broken", "narrow", "pipe", "none", "inside/../..", "\0"):
        with pytest.raises(ValueError):
            classifier.open_file(str(tmp_path / f"{name}.png"), str(tmp_path))
    for path in (outside, inside / "link.png", inside / "../outside.png", "/dev/stdin", "/dev/zero", None):
        with pytest.raises(ValueError):
            classifier.open_file(path and str(path), str(inside))


def test_a_drawing_comes_in_a_data_address(classifier, image_file):
    address = "data:image/png;base64," + base64.b64encode(Path(image_file).read_bytes()).decode()
    assert classifier.open_image(address).size == (24, 16)
    for sent in (None, "", 3, image_file, "data:image/png;base64,AAAA"):
        with pytest.raises(ValueError):
            classifier.open_image(sent)
