"""The endpoint's handler, called as its server calls it: imported from the folder by itself, one body at a time."""

import base64
import importlib.util
import json
import logging
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
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


def test_what_clients_send_for_any_model(translate, classify):
    others = {"src_lang": "en", "clean_up_tokenization_spaces": True, "truncation": "longest_first"}
    body = {"inputs": "old dog", "parameters": {**others, "generate_parameters": {"num_beams": 2, "max_length": 4}}}
    beams = {"inputs": "old dog", "parameters": {"num_beams": 2, "max_new_tokens": 3}, "options": {"use_cache": True}}
    assert translate(body) == translate(beams) != translate({"inputs": "old dog"})
    assert translate({"inputs": "red dog " * 40, "parameters": {"truncation": True}})
    image = {"inputs": encode(picture(8, 12))}
    assert classify({**image, "parameters": {"top_k": 2}}) == classify(image)[:2]


def test_a_fault_of_the_model_is_logged_and_not_shown(translate, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise RuntimeError("secret /path\nof the server")

    monkeypatch.setattr(translate, "pipeline", fail)
    fault = "^the model failed on this request; the log of the endpoint says why$"
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match=fault):
        translate({"inputs": "old dog"})
    assert "secret" in caplog.text


def test_every_form_of_an_image(classify):
    image = picture(8, 12)
    data = encode(image)
    text = base64.b64encode(data).decode()
    expected = classify({"inputs": image})
    assert expected
    for form in (data, text, f"data:image/png;base64,{text}", f"{text[:40]}\n{text[40:]}"):
        assert classify({"inputs": form}) == expected
    labels = [entry["label"] for entry in expected]
    for answer in classify({"inputs": [data, text]}):
        assert [entry["label"] for entry in answer] == labels


def refuse(handler, body) -> str:
    """What the server answers with HTTP 400, one line."""
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        handler(body)
    return str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        None,
        "old dog",
        {},
        {"inputs": "old dog", "parameter": {}},
        *({"inputs": inputs} for inputs in (None, "a \ud800", [], ["dog"] * 33, ["dog", " "], "x" * 10_001)),
        {"inputs": "red dog " * 40},
        *(
            {"inputs": "dog", "parameters": parameters}
            for parameters in (
                [1],
                {"trust_remote_code": True},
                *({"num_beams": value} for value in (9, 0, True, 2.5, "2")),
                {"length_penalty": float("nan")},
                {"return_alignments": "yes"},
                {"generate_parameters": {"num_beams": 9}},
            )
        ),
    ],
)
def test_bad_bodies_are_refused(translate, body):
    refuse(translate, body)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("https://example.com/digit.png", "not opened"),
        *((data, "none of PNG") for data in (b"no image", encode(picture(8, 12), "EPS"))),
        *((encode(picture(24, 32), kind)[:300], "an image is") for kind in ("PNG", "JPEG", "WEBP")),
        *((data, "10485760") for data in (bytes(10 * 2**20 + 1), "A" * 16 * 2**20)),
        (Image.new("RGB", (1, 51)), "50 times"),  # it is refused before it is enlarged
        (Image.new("RGB", (0, 4)), ""),
    ],
)
def test_what_is_no_image_is_refused(classify, image, message):
    assert message in refuse(classify, {"inputs": image})


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_of_too_many_pixels_are_not_decoded(classify, monkeypatch):
    data = bytearray(encode(Image.new("1", (8, 8))))
    decoded = []
    monkeypatch.setattr(Image.Image, "load", lambda image: decoded.append(image.size))
    for side in (5_001, 9_000, 15_000):  # under and over what Pillow warns of and what it refuses
        data[16:24] = struct.pack(">II", side, side)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
        refuse(classify, {"inputs": bytes(data)})
    assert not decoded
    monkeypatch.undo()
    monkeypatch.setitem(type(classify).read.__globals__, "MAX_PIXELS", 2 * 8 * 12)
    images = [encode(picture(8, 12))] * 3
    assert len(classify({"inputs": images[:2]})) == 2
    assert "192" in refuse(classify, {"inputs": images})


def test_requests_of_eight_threads_leave_nothing_on_the_model(classify):
    requests = [
        {"inputs": encode(picture(8 + 4 * number, 12, seed=number)), "parameters": parameters}
        for number in range(8)
        for parameters in ({"top_k": 1 + number % 3}, {"function_to_apply": "none"})
    ]
    alone = [classify(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(classify, requests)) == alone
