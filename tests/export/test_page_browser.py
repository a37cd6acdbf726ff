"""The page without a server of ours, as a visitor meets it: its answers are those of PyTorch, and it works offline."""

import functools
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, pipeline

from builders.browsers import CHROMIUM, DRIVER, open_browser
from builders.pictures import picture
from builders.saved_models import TEXTS, disturb, save_classifier, save_translator
from reluformers.export.onnx_folder import export_onnx
from reluformers.export.page import CDN, export_page
from reluformers.files import read_json, write_json
from reluformers.translation.decoding import load_translation_model, translate

pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

NPM = shutil.which("npm")
SECONDS = 240
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
    pytest.mark.skipif(not NPM, reason="needs npm"),
]


@pytest.fixture
def browser(tmp_path):
    with open_browser(tmp_path / "profile") as driver:
        yield driver


class Server:
    """`python -m http.server` of a folder, that can be stopped."""

    def __init__(self, folder: Path, *, shared: bool = False):
        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def end_headers(self):
                if shared:
                    self.send_header("Access-Control-Allow-Origin", "*")
                super().end_headers()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve():
    servers = []

    def start(folder: Path, **options) -> Server:
        servers.append(Server(folder, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.server.server_close()


def bundled(models: list[Path], folder: Path, **options) -> Path:
    """Write a page with its JavaScript, or skip where npm does not reach its registry."""
    try:
        export_page(models, folder, bundle=True, **options)
    except FileNotFoundError as error:
        pytest.skip(f"npm does not fetch its packages: {error}")
    return folder


def open_page(browser, address: str) -> None:
    browser.get(address)
    wait(browser, lambda: data(browser, "ready"))
    assert data(browser, "ready") == "true", browser.find_element(By.ID, "status").text


def data(browser, name: str) -> str | None:
    return browser.execute_script(f"return document.documentElement.dataset.{name} ?? null;")


def wait(browser, condition) -> None:
    WebDriverWait(browser, SECONDS).until(lambda _: condition())


def ask(browser, section, text: str, beams: int) -> str:
    before = int(data(browser, "answered") or 0)
    field = section.find_element(By.TAG_NAME, "textarea")
    field.clear()
    field.send_keys(text)
    section.find_element(By.CSS_SELECTOR, f"input[value='{beams}']").click()
    field.send_keys(Keys.ENTER)
    wait(browser, lambda: int(data(browser, "answered") or 0) > before)
    return browser.execute_script("return arguments[0].textContent", section.find_element(By.CLASS_NAME, "answer"))


def test_answers_attention_and_offline(browser, serve, tmp_path):
    names = ("one", "two", "pictures")
    one, two, pictures = folders = [tmp_path / name for name in names]
    save_translator(one, "rela-g")
    save_translator(two, "entmax15", separate=True)
    save_classifier(pictures)
    for folder in (one, two):
        disturb(folder, AutoModelForSeq2SeqLM)
    disturb(pictures, AutoModelForImageClassification)
    picture(9, 17).save(pictures / "example.png")
    write_json(pictures / "results.json", {"examples": [{"src": "example.png"}]})
    exported = [tmp_path / "onnx" / name for name in names]
    for source, target in zip(folders, exported, strict=True):
        export_onnx(source, target, precisions=["fp32"], attentions=True)
    server = serve(bundled(exported, tmp_path / "page", precision="fp32"))
    open_page(browser, server.address)
    sections = browser.find_elements(By.CSS_SELECTOR, "#models > section")
    for folder, section in zip((one, two), sections, strict=False):
        for beams in (1, 4):
            wanted = translate(*load_translation_model(folder), TEXTS, num_beams=beams)
            assert [ask(browser, section, text, beams) for text in TEXTS] == wanted
    # exact zeros of a pass that is given the translation
    section, text = sections[0], TEXTS[0]
    ask(browser, section, text, 1)
    model, (tokenizer, _) = load_translation_model(one)
    model.set_attn_implementation("eager")
    batch = tokenizer([text], return_tensors="pt")
    tokens = model.generate(**batch, num_beams=1, max_length=65)[:, :-1]
    with torch.no_grad():
        outputs = model(**batch, decoder_input_ids=tokens, output_attentions=True)
    Select(section.find_element(By.CLASS_NAME, "head")).select_by_value("0")
    for site in ("cross", "encoder"):
        Select(section.find_element(By.CLASS_NAME, "site")).select_by_value(site)
        Select(section.find_element(By.CLASS_NAME, "layer")).select_by_value("0")
        weights = outputs[f"{site}_attentions"][0][0, 0]
        cells = section.find_elements(By.CSS_SELECTOR, ".scroll td.some")
        assert len(cells) == int((weights != 0).sum()) < weights.numel()
    # an image of another size than the model's
    section = sections[2]
    section.find_element(By.CSS_SELECTOR, ".examples button").click()
    wait(browser, lambda: data(browser, "classified"))
    classify = pipeline("image-classification", model=str(pictures), trust_remote_code=True)
    wanted = classify(Image.open(pictures / "example.png").convert("RGB"))
    rows = section.find_elements(By.CSS_SELECTOR, ".classes tbody tr")
    assert [row.find_element(By.TAG_NAME, "th").text for row in rows] == [answer["label"] for answer in wanted]
    # without a network
    wait(browser, lambda: data(browser, "offline"))
    server.stop()
    open_page(browser, server.address)
    sections = browser.find_elements(By.CSS_SELECTOR, "#models > section")
    assert ask(browser, sections[0], TEXTS[0], 4) == translate(*load_translation_model(one), TEXTS[:1], num_beams=4)[0]


def test_only_what_is_pinned_is_run(browser, serve, tmp_path):
    exported = tmp_path / "onnx"
    export_onnx(save_classifier(tmp_path / "model"), exported, precisions=["fp32"], attentions=True)
    page = bundled([exported], tmp_path / "page", precision="fp32")
    network = serve(page / "runtime", shared=True)
    linked = tmp_path / "linked"
    export_page([exported], linked, precision="fp32")
    content = read_json(linked / "page.json")
    assert all(entry["url"].startswith(f"{CDN}/npm/") for entry in content["runtime"].values())
    for entry in content["runtime"].values():
        entry["url"] = f"{network.address}/{entry['url'].rpartition('/')[2]}"
    write_json(linked / "page.json", content)
    index = linked / "index.html"
    index.write_text(index.read_text(encoding="utf-8").replace(CDN, network.address), encoding="utf-8")
    server = serve(linked)
    open_page(browser, server.address)
    for entry in content["runtime"].values():
        entry["integrity"] = f"sha384-{64 * 'A'}"
    write_json(linked / "page.json", content)
    browser.delete_all_cookies()
    other = serve(linked)  # another origin, which has no service worker
    browser.get(other.address)
    wait(browser, lambda: data(browser, "ready"))
    assert data(browser, "ready") == "failed"
