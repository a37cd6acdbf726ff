"""The app without a browser: what it takes, what it draws, and how it says no."""

import base64
import json
import re
import socket
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from packaging.requirements import Requirement
from PIL import Image
from transformers import AutoModelForSeq2SeqLM, pipeline

from builders.pictures import picture
from builders.saved_models import SPACE, TEXTS, save_classifier, save_translator
from reluformers import seq2seq_config, vision_config
from reluformers.app import FILES, space_files

gr = pytest.importorskip("gradio")
sys.path.insert(0, str(SPACE))  # as Python does for `python app.py`
import models  # noqa: E402
import pages  # noqa: E402
import view  # noqa: E402
from gradio_client import Client, exceptions, handle_file  # noqa: E402

import app  # noqa: E402

TEXT = TEXTS[1]


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> models.Translator:
    return models.load_model(str(save_translator(tmp_path_factory.mktemp("translator"))))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> models.Classifier:
    return models.load_model(str(save_classifier(tmp_path_factory.mktemp("classifier"), pooling="attention")))


@pytest.fixture
def image_file(tmp_path) -> str:
    picture(16, 24).save(tmp_path / "image.png")
    return str(tmp_path / "image.png")


@pytest.fixture(scope="module")
def serve():
    """Start a page in this process and give a client of it."""
    pages = []

    def start(page: gr.Blocks) -> Client:
        pages.append(page)
        _, address, _ = page.queue().launch(prevent_thread_lock=True, quiet=True, ssr_mode=False)
        return Client(address, verbose=False, analytics_enabled=False)

    yield start
    for page in pages:
        page.close(verbose=False)


@pytest.fixture(scope="module")
def translation_client(serve, translator) -> Client:
    return serve(pages.translation_app({"one": translator}, "# Title", [TEXT]))


@pytest.fixture(scope="module")
def classification_client(serve, classifier) -> Client:
    return serve(pages.classification_app({"one": classifier}, "# Title"))


def words(texts) -> list[models.Word]:
    return [models.Word(text, number > 0, number) for number, text in enumerate(texts)]


def attention(weights, visible=None, queries=None, keys=None) -> models.AttentionMap:
    """Weights [heads, queries, keys] with names."""
    weights = np.array(weights, dtype=np.float32)
    visible = np.ones_like(weights[0], dtype=bool) if visible is None else np.array(visible, dtype=bool)
    queries = words(queries or [f"q{number}" for number in range(weights.shape[1])])
    keys = words(keys or [f"k{number}" for number in range(weights.shape[2])])
    weights = np.where(visible, weights, 0)
    return models.AttentionMap(weights, visible, queries, keys, ("query", "key"), models.Zeros.count(weights, visible))


def data_of(html: str) -> dict:
    """What `view.js` reads, with the weights as numbers [heads, queries, keys]."""
    data = json.loads(unescape(re.search('data-map="([^"]*)"', html)[1]))
    codes = np.frombuffer(base64.b64decode(data["weights"]), dtype="<i2").reshape(
        -1, len(data["queries"]), len(data["keys"])
    )
    return {**data, "weights": codes * data["unit"]}


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


def test_tokens_of_a_word_are_summed_as_keys_and_averaged_as_queries():
    weights = np.array([[[1, 2, 4], [0, 0, 8], [0, 0, 0]]])
    joined, last = models.Word("ab", False, 0), models.Word("c", True, 2)
    np.testing.assert_array_equal(models.merge_words(weights, [joined, last], [joined, last]), [[[1.5, 6], [0, 0]]])


def test_decoder_hides_what_is_yet_to_come(translator):
    translation = translator.translate(TEXT, 1)
    shown = translator.attend(translation, "decoder", 0)
    assert shown.visible[0, 0]
    assert shown.visible[-1].all()
    assert not translator.attend(translation, "decoder", 0).weights[:, ~shown.visible].any()
    assert translator.attend(translation, "cross", 0).visible.all()


def test_a_translation_is_read_in_another_vocabulary(translator, tmp_path):
    other = models.load_model(str(save_translator(tmp_path, separate=True)))
    read = other.read(TEXT, TEXTS[2])
    assert read.source_ids == other.tokenizer(TEXT)["input_ids"]
    assert other.target_tokenizer.decode(read.target_ids, skip_special_tokens=True) == TEXTS[2]
    # as `generate` begins and ends
    ends = (other.model.generation_config.decoder_start_token_id, other.config.eos_token_id)
    assert (read.target_ids[0], read.target_ids[-1]) == ends
    assert len(other.read(TEXT * 9, TEXT * 9).target_ids) == other.config.max_position_embeddings
    page = pages.translation_app({"one": translator, "two": other}, "# Title", [TEXT])
    [html] = [block.value for block in page.blocks.values() if isinstance(block, gr.HTML)]
    assert re.findall("<h3>(.*?)</h3>", html) == ["one", "two"]


def test_translation_is_that_of_generate(translator, tmp_path):
    inputs = translator.tokenizer(TEXT, return_tensors="pt")
    limit = min(inputs["input_ids"].shape[1] + models.EXTRA_TOKENS, translator.config.max_position_embeddings - 1)
    expected = translator.model.generate(**inputs, num_beams=3, max_new_tokens=limit)[0]
    translation = translator.translate(f"  {TEXT}\n", 3.0)
    assert translation.target_ids == expected.tolist()
    assert translation.text == translator.tokenizer.decode(expected, skip_special_tokens=True)


def test_separate_vocabularies_have_their_own_words(tmp_path):
    folder = save_translator(tmp_path, separate=True)
    model = models.load_model(str(folder))
    shown = model.attend(model.translate(TEXT, 1), "cross", 0)
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).config.decoder_vocab_size == len(model.target_tokenizer)
    assert "".join(word.text for word in shown.keys) == TEXT.replace(" ", "") + "</s>"
    assert "beach" not in model.target_tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("text", "beams", "message"),
    [
        ("", 1, "nothing to translate"),
        (" \n", 1, "nothing to translate"),
        (None, 1, "nothing to translate"),
        (["a"], 1, "nothing to translate"),
        ("a" * (models.MAX_CHARACTERS + 1), 1, "2,001 characters, at most 2,000"),
        ("é " * 40, 1, r"\d+ tokens, the model takes 64"),
        ("a \udcff", 1, "not valid Unicode"),
        ("a", 0, "beams is 0,"),
        ("a", models.MAX_BEAMS + 1, "beams is 9,"),
        ("a", 1.5, "beams is 1.5,"),
        ("a", "4", "beams is 4,"),
        ("a", float("nan"), "beams is nan,"),
    ],
)
def test_bad_text_and_beams_are_refused(translator, text, beams, message):
    with pytest.raises(ValueError, match=message):
        translator.translate(text, beams)


@pytest.mark.parametrize(
    ("site", "layer", "message"),
    [("middle", 0, "site 'middle'"), ("cross", 2, "Layer 3"), ("cross", -1, "Layer 0")],
)
def test_unknown_sites_and_layers_are_refused(translator, site, layer, message):
    with pytest.raises(ValueError, match=message):
        translator.attend(translator.translate(TEXT, 1), site, layer)


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
    counted = last[:, :1, 1:] if pooling == "cls" else last
    assert patches.zeros.by_head == pytest.approx((counted == 0).mean((1, 2)).tolist())
    image = Image.open(image_file).convert("RGB").resize((12, 8), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(patches.picture, np.asarray(image) / 255, atol=0.02)
    assert len(model.layer_names()) == 2 + (pooling == "attention")


def test_pooling_query_is_a_layer_of_its_own(classifier, image_file):
    _, values = classifier.classify(models.open_image(image_file))
    patches = classifier.attend(values, 2)
    assert patches.title == "what the pooling query gives"
    assert patches.weights.any()
    with pytest.raises(ValueError, match="Layer 4 is none of the 3"):
        classifier.attend(values, 3)


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


def test_image_turned_by_its_camera_stands_upright(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # to be turned by 90° clockwise
    picture(16, 24).save(tmp_path / "turned.jpg", exif=exif)
    assert models.open_image(str(tmp_path / "turned.jpg")).size == (16, 24)


def test_sketch_is_a_png_in_a_data_address(image_file):
    start = "data:image/png;base64,"
    drawn = base64.b64encode(Path(image_file).read_bytes()).decode()
    assert models.open_sketch(start + drawn).size == (24, 16)
    for address, message in (
        (None, "no drawing"),
        ({"path": "/etc/passwd"}, "no drawing"),
        ("file:///etc/passwd", "no drawing"),
        (f"{start}AAAA", "can be read"),
        (f"{start}§", "can be read"),
    ):
        with pytest.raises(ValueError, match=message):
            models.open_sketch(address)


def test_zeros_are_transparent_and_nothing_else_is():
    tiny = 1e-30
    opacity = np.asarray(view.paint(np.array([[0, 1, tiny], [0.5, 0, 0]])))[..., 3]
    np.testing.assert_array_equal(opacity == 0, [[True, False, False], [False, True, True]])
    assert opacity[opacity > 0].min() > 30


def test_negative_weights_have_colours_of_their_own():
    pixels = np.asarray(view.paint(np.array([[-1, -0.02, 0, 0.02, 1]])))[0].astype(int)
    assert (np.sign(pixels[:, 0] - pixels[:, 2]) == [1, 1, -1, -1, -1]).all()
    assert pixels[2, 3] == 0


def test_null_rows_and_masked_cells_are_marked():
    weights, visible = np.array([[0, 0, 0], [1, 2, 0]]), np.array([[1, 0, 0], [1, 1, 0]], dtype=bool)
    pixels = np.asarray(view.paint(weights, visible))
    assert tuple(pixels[0, 0, :3]) == view.NULL
    assert {tuple(pixels[place][:3]) for place in ((0, 1), (0, 2), (1, 2))} == {view.MASKED}
    html = view.text_view([("one", attention([weights], visible))])
    assert "∅ null row" in html
    assert "not visible" in html
    assert "50\u00a0% of the rows are null rows" in html
    clean = view.text_view([("one", attention([[[1, 1]]]))])
    assert "null" not in clean
    assert "not visible" not in clean


def test_mean_of_the_heads_hides_zeros():
    html = view.text_view([("one", attention([[[1, 0]], [[0, 1]]]))])
    assert "<b>50\u00a0%</b> of these weights are exactly zero" in html
    assert "The mean of the heads hides it: 0\u00a0%" in html
    assert html.count("50\u00a0% zeros") >= 4  # what is seen and what is read out, of each head
    softmax = view.text_view([("one", attention([[[0.9, 0.1]]]))])
    assert "<b>0\u00a0%</b>" in softmax
    assert "that is how softmax gives weights" in softmax


def test_shares_are_rounded_to_none_and_all_only_if_they_are():
    shown = [view.percent(share).replace("\u00a0", "") for share in (0, 1e-6, 0.5, 0.9999, 1)]
    assert shown == ["0%", "under 1%", "50%", "over 99%", "100%"]


def test_weights_reach_the_browser():
    weights = np.array([[[0, 1e-9, 2], [0.5, 0, 0]], [[1, -1, 0], [0, 0, 0.25]]])
    data = data_of(view.text_view([("one", attention(weights))]))
    np.testing.assert_allclose(data["weights"], weights, atol=1e-4)
    np.testing.assert_array_equal(data["weights"] == 0, weights == 0)
    assert (data["queries"], data["keys"]) == (["q0", "q1"], ["k0", "k1", "k2"])


def test_sharpest_head_comes_first():
    weights = [[[1, 1, 1]], [[0, 1, 0]], [[0, 0, 0]]]
    assert view.sharpest(np.array(weights)) == 1
    assert 'data-head="1"' in view.text_view([("one", attention(weights))])


def test_words_are_no_markup():
    bad = ["<script>alert(1)</script>", '"><b>', "&amp;"]
    html = view.text_view([("one", attention([[[1, 0, 1]]], queries=bad[:1], keys=bad))])
    assert "<script" not in html
    assert "<b>&amp;quot" not in html
    assert data_of(html)["keys"] == bad


def test_every_picture_says_what_it_shows(classifier, image_file):
    patches = classifier.attend(classifier.classify(models.open_image(image_file))[1], 0)
    pictures = re.findall(
        "<img[^>]*>",
        view.text_view(
            [
                ("one", attention([[[1, 0]]])),
            ]
        ),
    )
    pictures += re.findall("<img[^>]*>", view.image_view([("one", patches)]))
    assert len(pictures) == 2 + 3 + 2 * classifier.config.num_attention_heads
    # the image behind the weights is said once
    decoration = [picture for picture in pictures if 'alt=""' in picture]
    assert len(decoration) == 1 + classifier.config.num_attention_heads
    assert all(re.search('alt="[^"]{10,}"', picture) for picture in pictures if picture not in decoration)


def test_model_of_the_command_line_comes_first(monkeypatch):
    environment = {"MODEL_ID": "env/model", "MODEL_REVISION": "v2"}
    monkeypatch.setattr(app, "MODEL_ID", "pushed/model")
    monkeypatch.setattr(app, "MODEL_REVISION", "v3")
    # a revision belongs to its model
    assert app.choose_model("my/model", None, environment) == ("my/model", None)
    assert app.choose_model(None, None, environment) == ("env/model", "v2")
    assert app.choose_model(None, "v9", environment) == ("env/model", "v9")
    assert app.choose_model(None, None, {}) == ("pushed/model", "v3")


def test_heading_names_a_folder_without_its_place(tmp_path, translator):
    folder = tmp_path / "my_model"
    folder.mkdir()
    text = pages.heading(str(folder), None, translator.config)
    assert "`my_model`" in text
    assert str(tmp_path) not in text
    assert "[org/name](https://huggingface.co/org/name), revision `v1`" in pages.heading(
        "org/name", "v1", translator.config
    )


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (seq2seq_config("qknorm"), "qknorm"),
        (seq2seq_config("reluformer", attention={"activation": "relu2"}), "relu2"),
        (
            seq2seq_config("reluformer", cross_attention={"preset": "rela-g", "activation": "relu2"}),
            "encoder reluformer, decoder reluformer, cross relu2",
        ),
        (vision_config("relu-vit", size="S/16"), "relu-vit"),
        (
            vision_config("relu-vit", size="S/16", pooling="attention", pooling_attention="softmax"),
            "encoder relu-vit, pooling softmax",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_heading_names_the_attention_of_every_site(config, named):
    assert pages.heading("org/name", None, config).endswith(f"Preset: **{named}**")


def test_programs_translate_and_get_the_weights(translation_client, translator):
    assert translation_client.predict(TEXT, 2, api_name="/translate") == translator.translate(TEXT, 2).text
    answer = translation_client.predict(TEXT, "encoder", 1, api_name="/attention")
    shown = translator.attend(translator.translate(TEXT, pages.BEAMS), "encoder", 0)
    np.testing.assert_allclose(answer["weights"], shown.weights, rtol=1e-6)
    assert answer["zeros"] == shown.zeros.by_head
    assert answer["keys"][:2] == ["Two", "dogs"]
    assert answer["alignment"] == []  # of cross-attention alone


@pytest.mark.parametrize("separate", [False, True])
def test_words_are_aligned_as_by_the_pipeline(tmp_path, separate):
    folder = save_translator(tmp_path, separate=separate)
    model = models.load_model(str(folder))
    translation = model.translate(f" {TEXT}", 2)
    [expected] = pipeline("translation", model=folder, trust_remote_code=True)(
        TEXT, num_beams=2, return_alignments=True, max_new_tokens=len(translation.target_ids) - 1
    )
    shown = model.attend(translation, "cross", 0)
    assert shown.alignment == [(link["target"], link["source"]) for link in expected["alignments"]]
    html = view.text_view([("one", shown)])
    assert "word alignment" in html
    assert all(f"{target}\u00a0← {source or '∅'}" in unescape(html) for target, source in shown.alignment)
    assert "word alignment" not in view.text_view([("one", model.attend(translation, "encoder", 0))])
    assert not model.align(model.read(TEXT, ""))


def test_a_model_whose_code_cannot_align_is_shown_without(tmp_path, monkeypatch):
    model = models.load_model(str(save_translator(tmp_path)))
    monkeypatch.delattr(type(model.pipeline), "align")
    shown = model.attend(model.translate(TEXT, 1), "cross", 0)
    assert shown.weights.size
    assert not shown.alignment
    assert "word alignment" not in view.text_view([("one", shown)])


def test_programs_see_named_endpoints_alone(translation_client, classification_client):
    for client, names in ((translation_client, {"/translate", "/attention"}), (classification_client, {"/classify"})):
        endpoints = client.view_api(return_format="dict")["named_endpoints"]
        assert set(endpoints) == names
        assert all(endpoint["description"] for endpoint in endpoints.values())


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("/translate", ("", 2), "nothing to translate"),
        ("/translate", ("a" * 2_001, 2), "at most 2,000"),
        ("/translate", (TEXT, 500), "500"),
        ("/attention", (TEXT, "cross", 77), "77"),
        ("/attention", (TEXT, "middle", 1), "middle"),
    ],
)
def test_programs_are_told_what_is_wrong(translation_client, name, arguments, message):
    with pytest.raises(exceptions.AppError, match=message) as caught:
        translation_client.predict(*arguments, api_name=name)
    assert "Traceback" not in str(caught.value)


def test_programs_classify(classification_client, image_file, tmp_path):
    answer = classification_client.predict(handle_file(image_file), api_name="/classify")
    assert {row["label"] for row in answer["confidences"]} == {"cat", "dog", "horse"}
    (tmp_path / "text.png").write_text("no image")
    for image in (handle_file(str(tmp_path / "text.png")), None):
        with pytest.raises(exceptions.AppError, match="no image"):
            classification_client.predict(image, api_name="/classify")


def test_page_opens_with_its_first_example(translator):
    page = pages.translation_app({"one": translator}, "# Title", TEXTS[:2])
    values = {block.elem_id: block.value for block in page.blocks.values() if hasattr(block, "value")}
    translation = translator.translate(TEXTS[0], pages.BEAMS)
    assert (values["text"], values["answer"]) == (TEXTS[0], translation.text)
    assert data_of(values["attention"])["queries"] == [
        word.text for word in translator.attend(translation, "cross", 1).queries
    ]
    buttons = [block.value for block in page.blocks.values() if isinstance(block, gr.Button)]
    assert buttons == ["Translate", *TEXTS[:2]]


def test_examples_are_those_of_the_run_else_of_the_card(tmp_path):
    def widget(*examples):
        (tmp_path / "README.md").write_text(f"---\nwidget: {json.dumps(examples)}\n---\n")
        return models.find_examples(str(tmp_path))

    assert models.find_examples(str(tmp_path)) == []
    (tmp_path / "results.json").write_text("{}")
    assert models.find_examples(str(tmp_path)) == []
    assert widget({"text": "a", "output": {"text": "b"}}, {"text": "c"}) == ["a", "c"]
    picture(4, 4).save(tmp_path / "one.png")
    assert widget({"src": "one.png"}, {"src": "none.png"}, {}) == [str(tmp_path / "one.png")]
    rows = [{"source": str(number), "reference": "r", "output": "o"} for number in range(9)]
    (tmp_path / "results.json").write_text(json.dumps({"examples": rows}))
    assert models.find_examples(str(tmp_path)) == ["0", "1", "2", "3", "4"]


def test_image_page_opens_with_its_first_example(classifier, image_file):
    page = pages.classification_app({"one": classifier}, "# Title", [image_file])
    values = {block.elem_id: block.value for block in page.blocks.values() if hasattr(block, "value")}
    assert values["answer"]["label"] in {"cat", "dog", "horse"}
    assert "over the image" in values["attention"]


def test_small_images_can_be_drawn(classifier, tmp_path):
    def has_pad(model):
        page = pages.classification_app({"one": model}, "# Title")
        return any(getattr(block, "elem_id", None) == "pad" for block in page.blocks.values())

    assert has_pad(classifier)
    classifier_of_photos = models.load_model(str(save_classifier(tmp_path)))
    classifier_of_photos.config.image_size = [33, 12]
    assert not has_pad(classifier_of_photos)


def test_models_of_two_kinds_are_not_compared(tmp_path):
    one, two = str(save_translator(tmp_path / "one")), str(save_classifier(tmp_path / "two"))
    with pytest.raises(ValueError, match="of another kind"):
        pages.build_app(one, compare=two)


def test_unexpected_errors_are_not_shown():
    def break_down():
        raise RuntimeError("/secret/path")

    with pytest.raises(gr.Error, match="The model failed") as caught:
        pages.fail(break_down)()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "error: name a model: its folder or Hub id"),
        (("./none",), "error: ./none: there is no such folder"),
        (("{empty}",), "error: .+"),
    ],
)
def test_command_says_in_one_line_that_there_is_no_model(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["app.py", *(argument.format(empty=tmp_path) for argument in arguments)])
    monkeypatch.delenv("MODEL_ID", raising=False)
    with pytest.raises(SystemExit) as caught:
        app.main()
    assert caught.value.code == 2
    assert re.search(f"{message}\n$", capsys.readouterr().err)


def test_command_names_model_and_address_before_it_loads_anything(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    # where no library is found, so that nothing can be imported before that line
    command = [
        sys.executable,
        "-S",
        "-c",
        "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
        "sys.argv[0] = 'app.py'; runpy.run_path(sys.path[0] + '/app.py', run_name='__main__')",
    ]
    done = subprocess.run([*command, str(SPACE), "./mine", "--port", str(port)], capture_output=True, text=True)
    assert done.stdout == f"Loading ./mine; the page comes to http://127.0.0.1:{port} in some seconds\n"
    assert "No module named" in done.stderr


def test_first_free_port_is_taken(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(app, "FIRST_PORT", taken.getsockname()[1])
        assert app.free_port({}) > taken.getsockname()[1]
        monkeypatch.setattr(app, "PORTS", 1)
        with pytest.raises(OSError, match="is free: name one with --port"):
            app.free_port({})
    assert app.free_port({"GRADIO_SERVER_PORT": "1234"}) == 1234


def test_space_is_filled_in_with_the_model():
    files = space_files("org/my-model", "v1", licence="mit")
    assert tuple(files) == FILES
    assert '\nMODEL_ID = "org/my-model"\nMODEL_REVISION = "v1"\n' in files["app.py"]
    assert "{{" not in files["README.md"]
    _, front, _ = files["README.md"].split("---\n", 2)
    values = yaml.safe_load(front)
    assert (values["sdk"], values["app_file"], values["license"]) == ("gradio", "app.py", "mit")
    assert values["models"] == ["org/my-model"]
    assert len(values["short_description"]) <= 60
    requirements = {line.name: line for line in map(Requirement, files["requirements.txt"].splitlines())}
    assert requirements["gradio"].specifier.contains(values["sdk_version"])
    assert requirements.keys() >= {"torch", "transformers", "gradio", "numpy", "pillow"}


def test_space_needs_nothing_of_this_library():
    for name in FILES:
        assert not re.search(
            r"^\s*(from|import) reluformers", (SPACE / name).read_text(encoding="utf-8"), re.MULTILINE
        )
