"""The app without a browser: what it takes, what it draws, and how it says no."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from packaging.requirements import Requirement
from PIL import Image
from transformers import AutoModelForSeq2SeqLM

from builders.pictures import picture
from builders.saved_models import SPACE, TEXTS, save_classifier, save_translator
from reluformers.app import FILES, space_files

gr = pytest.importorskip("gradio")
sys.path.insert(0, str(SPACE))  # as Python does for `python app.py`
import drawing  # noqa: E402
import models  # noqa: E402
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
    return serve(app.translation_app(translator, "# Title"))


@pytest.fixture(scope="module")
def classification_client(serve, classifier) -> Client:
    return serve(app.classification_app(classifier, "# Title"))


def attention(weights, visible=None) -> models.AttentionMap:
    weights = np.array(weights, dtype=np.float32)
    visible = np.ones_like(weights, dtype=bool) if visible is None else np.array(visible, dtype=bool)
    queries = [f"q{number}" for number in range(len(weights))]
    keys = [f"k{number}" for number in range(weights.shape[1])]
    return models.AttentionMap(weights, visible, queries, keys, ("query", "key"))


def pixels(figure) -> np.ndarray:
    """What is seen in the middle of each cell of the first axes: RGB [rows, columns, 3]."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())
    axes = figure.axes[0]
    columns, rows = round(axes.get_xlim()[1] + 0.5), round(axes.get_ylim()[0] + 0.5)
    cells = np.zeros((rows, columns, 3), dtype=int)
    for row in range(rows):
        for column in range(columns):
            # beside the middle, where the lines of a hatch cross
            x, y = axes.transData.transform((column + 0.1, row - 0.2))
            cells[row, column] = drawn[len(drawn) - 1 - int(y), int(x), :3]
    return cells


def test_weights_are_those_of_the_pass_that_is_given_the_translation(translator):
    translation = translator.translate(TEXT, 2)
    source, target = torch.tensor([translation.source_ids]), torch.tensor([translation.target_ids])
    outputs = translator.model(input_ids=source, decoder_input_ids=target[:, :-1], output_attentions=True)
    for site in ("encoder", "decoder", "cross"):
        weights = getattr(outputs, f"{site}_attentions")[0][0].detach().numpy()
        np.testing.assert_array_equal(translator.attend(translation, site, 0, 1).weights, weights[1])
        np.testing.assert_allclose(
            translator.attend(translation, site, 0, models.MEAN).weights, weights.mean(0), rtol=1e-6
        )


def test_tokens_stand_at_the_row_that_writes_them(translator):
    translation = translator.translate(TEXT, 1)
    source = translator.tokenizer.convert_ids_to_tokens(translation.source_ids)
    target = translator.tokenizer.convert_ids_to_tokens(translation.target_ids)
    sides = {"cross": (target[1:], source), "encoder": (source, source), "decoder": (target[1:], target[:-1])}
    for site, expected in sides.items():
        shown = translator.attend(translation, site, 0, 0)
        assert (shown.queries, shown.keys) == expected
        assert shown.weights.shape == (len(shown.queries), len(shown.keys))
        assert (shown.visible.all(), site == "decoder") in ((True, False), (False, True))


def test_translation_is_that_of_generate(translator, tmp_path):
    inputs = translator.tokenizer(TEXT, return_tensors="pt")
    limit = min(inputs["input_ids"].shape[1] + models.EXTRA_TOKENS, translator.config.max_position_embeddings - 1)
    expected = translator.model.generate(**inputs, num_beams=3, max_new_tokens=limit)[0]
    translation = translator.translate(f"  {TEXT}\n", 3.0)
    assert translation.target_ids == expected.tolist()
    assert translation.text == translator.tokenizer.decode(expected, skip_special_tokens=True)


def test_separate_vocabularies_have_their_own_tokens(tmp_path):
    folder = save_translator(tmp_path, separate=True)
    model = models.load_model(str(folder))
    shown = model.attend(model.translate(TEXT, 1), "cross", 0, 0)
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).config.decoder_vocab_size == len(model.target_tokenizer)
    assert set(shown.queries) <= set(model.target_tokenizer.get_vocab())
    assert set(shown.keys) <= set(model.tokenizer.get_vocab())


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
    ("site", "layer", "head", "message"),
    [
        ("middle", 0, 0, "site 'middle'"),
        ("cross", 2, 0, "Layer 3"),
        ("cross", -1, 0, "Layer 0"),
        ("cross", 0, 2, "Head 3"),
    ],
)
def test_unknown_sites_layers_and_heads_are_refused(translator, site, layer, head, message):
    with pytest.raises(ValueError, match=message):
        translator.attend(translator.translate(TEXT, 1), site, layer, head)


@pytest.mark.parametrize("pooling", ["mean", "cls", "attention"])
def test_classes_and_patches_of_every_pooling(tmp_path, image_file, pooling):
    model = models.load_model(str(save_classifier(tmp_path / "model", pooling=pooling)))
    scores, values = model.classify(image_file)
    assert scores.keys() == {"cat", "dog", "horse"}
    assert sum(scores.values()) == pytest.approx(1)
    with torch.no_grad():
        last = model.model(values, output_attentions=True).attentions[-1][0, 1].numpy()
    expected = last[0, 1:] if pooling == "cls" else last.mean(0)
    patches = model.attend(values, 1, 1)
    np.testing.assert_allclose(patches.weights, expected.reshape(2, 3), rtol=1e-6)
    image = Image.open(image_file).convert("RGB").resize((12, 8), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(patches.picture, np.asarray(image) / 255, atol=0.02)
    assert len(model.layer_names()) == 2 + (pooling == "attention")


def test_pooling_query_is_a_layer_of_its_own(classifier, image_file):
    _, values = classifier.classify(image_file)
    patches = classifier.attend(values, 2, 0)
    assert patches.title == "from the pooling query"
    assert patches.weights.any()
    with pytest.raises(ValueError, match="Layer 4 is none of the 3"):
        classifier.attend(values, 3, 0)


def test_bad_images_are_refused(classifier, tmp_path, monkeypatch, image_file):
    text, broken = tmp_path / "text.png", tmp_path / "broken.png"
    text.write_text("no image")
    broken.write_bytes(Path(image_file).read_bytes()[:100])
    for path, message in ((None, "no image: choose one"), (str(text), "can be read"), (str(broken), "can be read")):
        with pytest.raises(ValueError, match=message):
            classifier.classify(path)
    monkeypatch.setattr(models, "MAX_PIXELS", 16 * 24 - 1)
    with pytest.raises(ValueError, match="24 × 16 pixels, at most 383"):
        classifier.classify(image_file)


def test_image_turned_by_its_camera_stands_upright(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # to be turned by 90° clockwise
    picture(16, 24).save(tmp_path / "turned.jpg", exif=exif)
    assert models.open_image(str(tmp_path / "turned.jpg")).size == (16, 24)


def test_zeros_are_white_and_nothing_else_is():
    tiny = 1e-30
    cells = pixels(drawing.draw_attention(attention([[0, 1, tiny], [0.5, 0, 0]])))
    white = (cells > 250).all(-1)
    np.testing.assert_array_equal(white, [[True, False, False], [False, True, True]])


def test_negative_weights_have_colours_of_their_own():
    cells = pixels(drawing.draw_attention(attention([[-1, -0.02, 0, 0.02, 1]])))[0]
    red, blue = cells[:, 0], cells[:, 2]
    assert (np.sign(red - blue) == [1, 1, 0, -1, -1]).all()


def test_null_rows_are_marked_and_masked_cells_are_grey():
    figure = drawing.draw_attention(attention([[0, 9, 9], [1, 2, 9]], visible=[[1, 0, 0], [1, 1, 0]]))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["q0 ∅", "q1"]
    assert [patch.get_hatch() for patch in figure.axes[0].patches] == ["////"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["exactly zero", "∅ null row: all its weights are zero (1)", "not visible (yet to come)"]
    cells = pixels(figure)
    assert len(set(cells[1, 2])) == 1
    assert 200 < cells[1, 2, 0] < 240
    assert (cells[0] < 250).any(-1).all()


def test_dollar_signs_are_tokens_and_no_formulas():
    weights = attention([[1, 0], [1, 1]])
    named = models.AttentionMap(weights.weights, weights.visible, ["$x", r"\frac$"], ["$", "a$_$"], weights.axis_names)
    figure = drawing.draw_attention(named)
    FigureCanvasAgg(figure).draw()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["$x", r"\frac$"]


def test_long_texts_are_drawn_in_part():
    weights = np.eye(drawing.TOKENS_DRAWN + 5, 3)
    figure = drawing.draw_attention(attention(weights))
    assert len(figure.axes[0].get_yticklabels()) == drawing.TOKENS_DRAWN
    assert figure.axes[0].get_title() == "the first 60 of 65 rows and 3 of 3 columns"
    assert max(figure.get_size_inches()) * figure.dpi < 4_000


def test_null_picture_is_marked():
    figure = drawing.draw_patches(models.PatchMap(np.zeros((2, 3)), np.zeros((8, 12, 3)), "from the class token"))
    assert [patch.get_hatch() for patch in figure.axes[1].patches] == ["////"]


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
    text = app.heading(str(folder), None, translator.config)
    assert "`my_model`" in text
    assert str(tmp_path) not in text
    assert "[org/name](https://huggingface.co/org/name), revision `v1`" in app.heading(
        "org/name", "v1", translator.config
    )


def test_page_translates_and_shows_every_site(translation_client, translator):
    answer, plot = translation_client.predict(TEXT, 2, "cross", 1, models.MEAN, api_name="/translate")
    assert answer == translator.translate(TEXT, 2).text
    assert plot["plot"].startswith("data:image/png;base64,")
    layer, _, other = translation_client.predict("encoder", api_name="/change_site")
    assert [number for _, number in layer["choices"]] == [0]
    assert other["plot"] != plot["plot"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 2, "cross", 0, 0), "nothing to translate"),
        (("a" * 2_001, 2, "cross", 0, 0), "at most 2,000"),
        ((TEXT, 500, "cross", 0, 0), "500"),
        ((TEXT, 2, "cross", 77, 0), "77"),
    ],
)
def test_page_says_what_is_wrong(translation_client, arguments, message):
    with pytest.raises(exceptions.AppError, match=message) as caught:
        translation_client.predict(*arguments, api_name="/translate")
    assert "Traceback" not in str(caught.value)


def test_page_classifies(classification_client, image_file, tmp_path):
    answer, plot = classification_client.predict(handle_file(image_file), 2, models.MEAN, api_name="/classify")
    assert {row["label"] for row in answer["confidences"]} == {"cat", "dog", "horse"}
    assert plot["plot"].startswith("data:image/png;base64,")
    (tmp_path / "text.png").write_text("no image")
    for image in (handle_file(str(tmp_path / "text.png")), None):
        with pytest.raises(exceptions.AppError, match="no image"):
            classification_client.predict(image, 2, 0, api_name="/classify")


def test_unexpected_errors_are_not_shown():
    def fail():
        raise RuntimeError("/secret/path")

    with pytest.raises(gr.Error, match="The model failed") as caught:
        app.with_clear_errors(fail)()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a model: its folder or Hub id"),
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
    assert requirements.keys() >= {"torch", "transformers", "gradio", "matplotlib", "pillow"}


def test_space_needs_nothing_of_this_library():
    for name in FILES:
        assert not re.search(
            r"^\s*(from|import) reluformers", (SPACE / name).read_text(encoding="utf-8"), re.MULTILINE
        )
