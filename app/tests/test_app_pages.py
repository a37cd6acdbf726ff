"""The app's pages, endpoints and command, without a browser."""

import os
import subprocess
import sys
import uuid
from html import unescape
from pathlib import Path

import httpx
import numpy as np
import pytest
from transformers import pipeline

from builders.clean_processes import run_clean
from builders.hub_folders import REPO
from builders.saved_models import TEXTS, save_translator
from reluformers.publish.space import SPACE, space_files

gr = pytest.importorskip("gradio")
import pages  # noqa: E402
import view  # noqa: E402
from gradio_client import Client, exceptions, handle_file  # noqa: E402

import models  # noqa: E402

TEXT = TEXTS[1]


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
    html = unescape(view.text_view([("one", shown)]))
    assert all(f"{target}\u00a0← {source or '∅'}" in html for target, source in shown.alignment)
    assert not model.read(TEXT, "").alignment


def test_programs_classify(classification_client, image_file, tmp_path):
    answer = classification_client.predict(handle_file(image_file), api_name="/classify")
    assert {row["label"] for row in answer["confidences"]} == {"cat", "dog", "horse"}
    (tmp_path / "text.png").write_text("no image")
    for image in (handle_file(str(tmp_path / "text.png")), None):
        with pytest.raises(exceptions.AppError, match="image"):
            classification_client.predict(image, api_name="/classify")


@pytest.mark.parametrize("meta", [{}, {"meta": {"_type": "gradio.FileData"}}, {"is_stream": True, "url": "x"}])
def test_programs_open_no_file_of_the_server(classification_client, image_file, meta):
    cache = Path(gr.Image().GRADIO_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    link = cache / f"{uuid.uuid4()}.png"  # a folder that all processes of this user share
    link.symlink_to(image_file)
    try:
        for path in (image_file, f"{cache}/../{Path(image_file).relative_to('/')}", str(link), "/dev/stdin"):
            status, events = call(classification_client, "classify", {"path": path, **meta})
            assert "confidences" not in events
            assert "error" in events or status != 200
    finally:
        link.unlink()


def call(client: Client, name: str, *values) -> tuple[int, str]:
    """Status and events of a call as any program can make it, past what Gradio's client does to files."""
    address = f"{client.src.rstrip('/')}/gradio_api/call/{name}"
    posted = httpx.post(address, json={"data": list(values)})
    if posted.status_code != 200:
        return posted.status_code, posted.text
    return 200, httpx.get(f"{address}/{posted.json()['event_id']}", timeout=60).text


def test_programs_open_what_they_have_uploaded(classification_client, image_file):
    files = {"files": Path(image_file).read_bytes()}
    [path] = httpx.post(f"{classification_client.src.rstrip('/')}/gradio_api/upload", files=files).json()
    status, events = call(classification_client, "classify", {"path": path, "meta": {"_type": "gradio.FileData"}})
    assert (status, "confidences" in events) == (200, True)


def test_unexpected_errors_are_not_shown():
    def break_down():
        raise RuntimeError("/secret/path")

    with pytest.raises(gr.Error, match="The model failed") as caught:
        pages.fail(break_down)()
    assert "secret" not in str(caught.value)


SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "NVIDIA_API_KEY", "WANDB_API_KEY", "MY_OWN")


@pytest.mark.parametrize(("names", "is_hidden"), [(["model", "--compare", "model"], True), (["org/name"], False)])
def test_code_of_a_folder_gets_no_token(tmp_path, monkeypatch, names, is_hidden):
    """Not even in the block that the process began with, which no change of `os.environ` reaches."""
    (tmp_path / "model").mkdir()
    compared = names[-1] if len(names) > 1 else None
    for name in ("pages", "view", "models"):
        (tmp_path / f"{name}.py").write_text("print(open('/proc/self/environ').read()); raise SystemExit")
    environment = {**os.environ, **dict.fromkeys(SECRETS, "hf_secret"), "GRADIO_SERVER_PORT": "7999"}
    program = (
        f"import sys; sys.path.append({str(SPACE)!r}); import app; app.open_page({names[0]!r}, compare={compared!r})"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True).stdout
    block = dict(line.partition("=")[::2] for line in shown.splitlines()[-1].split("\0"))
    assert ("hf_secret" not in block.values()) == is_hidden
    assert (block.get("HF_TOKEN_PATH") == os.devnull) == is_hidden
    assert {"PATH", "HF_HUB_OFFLINE", "GRADIO_SERVER_PORT"} <= block.keys()


@pytest.mark.slow
def test_a_space_needs_nothing_of_this_library(tmp_path, classifier):
    for name, text in space_files(REPO, "v1").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    code = """
        sys.path.insert(0, ".")
        import models, pages
        print(type(models.load_model(sys.argv[1])).__name__)
        assert not any(name.startswith("reluformers") for name in sys.modules)
    """
    assert run_clean(code, tmp_path, classifier.config.name_or_path).split()[-1] == "Classifier"
