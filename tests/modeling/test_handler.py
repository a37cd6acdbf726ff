"""The endpoint's handler, called as its server calls it: imported from the folder by itself, one body at a time."""

import base64
import importlib.util
import io
import json
import logging
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image

from builders.clean_processes import run_clean
from builders.models import build_model
from builders.pictures import encode, picture
from reluformers.images.processing import build_image_processor
from reluformers.saved_code.registry import endpoint_code
from reluformers.translation.tokenization import train_tokenizer

LINES = ["red green big small", "old dog cat house", "tree runs sees likes", "one two three four five six"]


def save_served(model, folder):
    """As `push --endpoint` does."""
    model.save_pretrained(folder)
    (folder / "handler.py").write_text(endpoint_code(type(model.config)), encoding="utf-8")


@pytest.fixture(scope="module")
def translation_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation")
    tokenizer = train_tokenizer(LINES, vocab_size=60, min_frequency=1)
    model = build_model("reluformer", vocab_size=len(tokenizer))
    save_served(model, folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    model = build_model("relu-vit", "vision")
    save_served(model, folder)
    build_image_processor(model.config).save_pretrained(folder)
    return folder


def open_handler(folder, monkeypatch):
    """As the server does it: the file by itself, under the name `handler`."""
    spec = importlib.util.spec_from_file_location("handler", folder / "handler.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "handler", module)
    spec.loader.exec_module(module)
    return module.EndpointHandler(str(folder))


@pytest.fixture(scope="module")
def translate(translation_folder):
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield open_handler(translation_folder, monkeypatch)


@pytest.fixture(scope="module")
def classify(image_folder):
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield open_handler(image_folder, monkeypatch)


def names_of(handler) -> dict:
    """What stands in its module: two of them have the name `handler`."""
    return type(handler).read.__globals__


SERVE = """
    import importlib.util, json
    from transformers import logging

    logging.disable_progress_bar()
    answers = []
    for folder, body in zip(sys.argv[1::2], sys.argv[2::2]):
        spec = importlib.util.spec_from_file_location("handler", folder + "/handler.py")
        handler = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(handler)
        answers.append(handler.EndpointHandler(folder)(json.loads(body)))
    sys.stdout.write(json.dumps(answers))
"""


def test_both_tasks_in_a_clean_process(translation_folder, image_folder, tmp_path, translate, classify):
    texts = {"inputs": ["old dog", "big cat"], "parameters": {"num_beams": 2, "return_alignments": True}}
    image = {"inputs": base64.b64encode(encode(picture(8, 12))).decode(), "parameters": {"top_k": 2}}
    requests = [str(translation_folder), json.dumps(texts), str(image_folder), json.dumps(image)]
    answers = json.loads(run_clean(SERVE, tmp_path, *requests))
    assert [set(record) for record in answers[0]] == [{"translation_text", "alignments"}] * 2
    assert [set(record) for record in answers[1]] == [{"label", "score"}] * 2
    alone = translate({"inputs": "old dog"})
    assert translate({"inputs": ["old dog"], "parameters": {"num_beams": None}}) == alone
    expected = [translate(texts), classify(image)]
    for name, one, other in zip(("translation_text", "label"), answers, expected, strict=True):
        assert [record[name] for record in one] == [record[name] for record in other]


def test_every_form_of_an_image(classify):
    image = picture(8, 12)
    data = encode(image)
    text = base64.b64encode(data).decode()
    answers = [
        classify({"inputs": value})
        for value in (image, data, text, f"data:image/png;base64,{text}", "\n".join([text[:40], text[40:]]))
    ]
    assert answers[0]
    assert all(answer == answers[0] for answer in answers)
    for answer in classify({"inputs": [data, text]}):
        assert [entry["label"] for entry in answer] == [entry["label"] for entry in answers[0]]
        scores = [entry["score"] for entry in answers[0]]
        assert [entry["score"] for entry in answer] == pytest.approx(scores, rel=1e-5)


def test_what_clients_send_for_any_model(translate, classify):
    alone = {"src_lang": "en", "tgt_lang": "de", "clean_up_tokenization_spaces": True, "truncation": "longest_first"}
    body = {"inputs": "old dog", "parameters": {**alone, "generate_parameters": {"num_beams": 2, "max_length": 4}}}
    beams = {"inputs": "old dog", "parameters": {"num_beams": 2, "max_new_tokens": 3}, "options": {"use_cache": True}}
    assert translate(body) == translate(beams) != translate({"inputs": "old dog"})
    image = {"inputs": encode(picture(8, 12))}
    best = classify({**image, "parameters": {"top_k": 2, "function_to_apply": "sigmoid"}})
    assert [entry["label"] for entry in best] == [entry["label"] for entry in classify(image)][:2]


def error_of(handler, body) -> str:
    """What the server answers with HTTP 400, one line."""
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        handler(body)
    return str(caught.value)


BAD_TEXTS = [
    *((body, "the body must be an object") for body in (None, "old dog", {}, {"inputs": "old dog", "parameter": {}})),
    ({"inputs": None}, "the text must be a string that is not empty, got None"),
    ({"inputs": "a \ud800"}, "surrogates not allowed"),
    ({"inputs": []}, "inputs must be 1 to 32, got 0"),
    ({"inputs": ["dog"] * 33}, "inputs must be 1 to 32, got 33"),
    ({"inputs": ["dog", " "]}, "the text must be a string that is not empty"),
    ({"inputs": "x" * 10_001}, "a text may have 10000 characters at most"),
    ({"inputs": "red dog " * 40, "parameters": {"truncation": False}}, "but the model takes 32"),
]
BAD_PARAMETERS = [
    ([1], "parameters must be an object, got [1]"),
    ({"num_beam": 2}, "unknown parameter 'num_beam'; allowed are num_beams"),
    ({"trust_remote_code": True}, "unknown parameter"),
    *(({"num_beams": value}, "num_beams must be a number from 1 to 8") for value in (9, 0, True, 2.5, "2")),
    ({"length_penalty": float("nan")}, "length_penalty must be a number"),
    ({"return_alignments": "yes"}, "return_alignments must be one of [True, False]"),
    ({"generate_parameters": [2]}, "generate_parameters must be an object, got [2]"),
    ({"generate_parameters": {"num_beams": 9}}, "num_beams must be a number"),
]


@pytest.mark.parametrize(
    ("body", "message"),
    BAD_TEXTS + [({"inputs": "dog", "parameters": value}, message) for value, message in BAD_PARAMETERS],
    ids=lambda value: None,
)
def test_bad_bodies_get_one_clear_line(translate, body, message):
    assert message in error_of(translate, body)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("https://example.com/digit.png", "a path or an address is not opened"),
        *((value, "an image is none of PNG") for value in ("", b"no image", encode(picture(8, 12), "EPS"))),
        (encode(picture(64, 64))[:500], "an image is damaged"),
        (bytes(10 * 2**20 + 1), "at most 10485760 are allowed"),
        ("A" * 16 * 2**20, "at most 10485760 are allowed"),
        ([picture(8, 12), None], "an image must be in base64"),
        ([Image.new("RGB", (1, 51))], "50 times"),  # it is refused before it is enlarged
    ],
    ids=lambda value: None,
)
def test_what_is_no_image_gets_one_clear_line(classify, value, message):
    assert message in error_of(classify, {"inputs": value})


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_of_too_many_pixels_are_not_decoded(classify, monkeypatch):
    bound = 25_000_000
    # under and over what Pillow warns of and what it refuses
    files, decoded = [encode_blank(side) for side in (5_001, 9_000, 15_000)], []
    monkeypatch.setattr(Image.Image, "load", lambda image: decoded.append(image.size))
    messages = [error_of(classify, {"inputs": file}) for file in files]
    assert not decoded
    assert str(bound) in messages[0]
    monkeypatch.undo()
    monkeypatch.setitem(names_of(classify), "MAX_PIXELS", 2 * 8 * 12)
    assert len(classify({"inputs": [encode(picture(8, 12))] * 2})) == 2
    together = "the images have more than 192 pixels, together or alone"
    assert error_of(classify, {"inputs": [encode(picture(8, 12))] * 3}) == together


def encode_blank(side: int) -> bytes:
    """A PNG that says it has this many pixels a side and holds a few of them."""
    data = bytearray(encode(Image.new("1", (8, 8))))
    data[16:24] = struct.pack(">II", side, side)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


@pytest.mark.filterwarnings("ignore")
def test_broken_files_of_every_format_are_answered_or_refused(classify):
    for kind in ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP"):
        assert error_of(classify, {"inputs": encode(picture(24, 32), kind)[:300]})
    for kind, is_answered in (("JPEG", True), ("PNG", False), ("WEBP", False)):
        body = {"inputs": encode(picture(8, 12), kind, exif=b"Exif\0\0" + b"\xff" * 8)}
        assert classify(body) if is_answered else "damaged" in error_of(classify, body)


def test_requests_of_eight_threads_leave_nothing_on_the_model(classify):
    def state() -> str:
        parts = [(name, {**vars(module), "config": None}) for name, module in classify.pipeline.model.named_modules()]
        return repr((parts, classify.pipeline.model.config.to_dict(), classify.pipeline._forward_params))

    requests = [
        {"inputs": [encode(picture(8 + 4 * number, 12, seed=number))] * (1 + number % 3), "parameters": parameters}
        for number in range(8)
        for parameters in ({"top_k": 1 + number % 3}, {"function_to_apply": "none"})
    ]
    alone, before = [classify(request) for request in requests], state()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            together = list(pool.map(classify, requests))
            assert [[entry["label"] for entry in answer] for answers in together for answer in answers] == [
                [entry["label"] for entry in answer] for answers in alone for answer in answers
            ]
            torch.testing.assert_close(scores_in(together), scores_in(alone))
    assert state() == before


def scores_in(answers: list) -> list[float]:
    return [entry["score"] for answer in answers for row in answer for entry in row]


def test_an_image_that_the_server_opened_is_of_these_formats_too(classify):
    with Image.open(io.BytesIO(encode(picture(8, 12), "EPS"))) as postscript:
        assert "of format PNG, JPEG" in error_of(classify, {"inputs": postscript})
    assert classify({"inputs": Image.open(io.BytesIO(encode(picture(8, 12), "MPO", save_all=True)))})
    assert error_of(classify, {"inputs": Image.new("RGB", (0, 4))})


def test_a_fault_of_the_model_is_logged_and_not_shown(translate, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise RuntimeError("secret /path\nof the server")

    monkeypatch.setattr(translate, "pipeline", fail)
    fault = "^the model failed on this request; the log of the endpoint says why$"
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match=fault):
        translate({"inputs": "old dog"})
    assert "secret" in caplog.text


def test_without_pillow_texts_are_translated_and_images_refused(translation_folder, classify, monkeypatch):
    assert "PIL" not in (translation_folder / "handler.py").read_text()
    monkeypatch.setitem(names_of(classify), "Image", None)
    assert "Pillow, which is not installed" in error_of(classify, {"inputs": "AAAA"})
