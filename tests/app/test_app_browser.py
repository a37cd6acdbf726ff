"""The app as a visitor meets it: in a real browser, with a model behind it.

The screenshots go to the folder that the environment variable SCREENSHOTS names, else to the test's own; APP_MODEL and
APP_IMAGE_MODEL name models to take in place of untrained ones.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from builders.pictures import picture
from builders.saved_models import SPACE, save_classifier, save_translator

pytest.importorskip("gradio")
webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SECONDS = 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]


@pytest.fixture
def browser(tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1600"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def serve(tmp_path):
    """Start `app.py` of a folder, as somebody would who has no reluformers; give the address of its page."""
    processes = []

    def start(folder: Path) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = tmp_path / "app.log"
        command = [sys.executable, str(SPACE / "app.py"), str(folder), "--port", str(port)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
        with log.open("w") as output:
            processes.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and processes[-1].poll() is None:
            try:
                urllib.request.urlopen(address, timeout=5).close()
                return address
            except OSError:
                time.sleep(0.3)
        raise RuntimeError(f"the app did not start:\n{log.read_text()}")

    yield start
    for process in processes:
        process.terminate()
        process.wait(20)


def until(browser, condition):
    """What the condition gives once it is true."""
    return WebDriverWait(browser, SECONDS, ignored_exceptions=[Exception]).until(condition)


def plot_source(browser) -> str:
    return browser.find_element(By.CSS_SELECTOR, "#plot img").get_attribute("src")


def choose(browser, element: str, choice: str) -> None:
    """Take a choice of a dropdown as a visitor does, with the mouse."""
    browser.find_element(By.CSS_SELECTOR, f"#{element} input").click()
    xpath = f"//ul[@role='listbox']//li[contains(., '{choice}')]"
    until(browser, lambda page: page.find_element(By.XPATH, xpath)).click()


def take_screenshot(browser, tmp_path: Path, name: str) -> None:
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    height = browser.execute_script("return document.documentElement.scrollHeight")
    browser.set_window_size(1200, max(800, min(height + 150, 4000)))
    time.sleep(1)  # the page is laid out anew
    assert browser.save_screenshot(str(path))
    assert path.stat().st_size > 10_000


def test_a_sentence_is_translated_and_its_attention_shown(browser, serve, tmp_path):
    folder = Path(os.environ.get("APP_MODEL") or save_translator(tmp_path / "model"))
    text = "A man in a blue hat is riding a horse on the beach."
    browser.get(serve(folder))
    until(browser, lambda page: page.find_element(By.CSS_SELECTOR, "#text textarea")).send_keys(text)
    browser.find_element(By.ID, "run").click()
    until(browser, lambda page: plot_source(page))
    answer = browser.find_element(By.CSS_SELECTOR, "#answer textarea").get_property("value")
    assert answer == translate(folder, text)
    take_screenshot(browser, tmp_path, "translation.png")

    before = plot_source(browser)
    choose(browser, "site", "decoder")
    until(browser, lambda page: plot_source(page) != before)
    take_screenshot(browser, tmp_path, "decoder_attention.png")

    box = browser.find_element(By.CSS_SELECTOR, "#text textarea")
    box.clear()
    box.send_keys("   ")
    browser.find_element(By.ID, "run").click()
    until(browser, lambda page: "There is nothing to translate" in page.find_element(By.TAG_NAME, "body").text)
    take_screenshot(browser, tmp_path, "empty_text.png")


def translate(folder: Path, text: str) -> str:
    """What transformers alone makes of the text."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    limit = min(inputs["input_ids"].shape[1] + 50, model.config.max_position_embeddings - 1)
    return tokenizer.decode(model.generate(**inputs, num_beams=4, max_new_tokens=limit)[0], skip_special_tokens=True)


def test_an_image_is_classified_and_its_attention_shown(browser, serve, tmp_path):
    folder = Path(os.environ.get("APP_IMAGE_MODEL") or save_classifier(tmp_path / "model"))
    labels = json.loads((folder / "config.json").read_text())["id2label"].values()
    file = tmp_path / "image.png"
    picture(64, 64).save(file)
    browser.get(serve(folder))
    until(browser, lambda page: page.find_element(By.CSS_SELECTOR, "#image input[type=file]")).send_keys(str(file))
    until(browser, lambda page: page.find_element(By.CSS_SELECTOR, "#image img"))
    browser.find_element(By.ID, "run").click()
    until(browser, lambda page: plot_source(page))
    shown = browser.find_element(By.ID, "answer").text
    assert sum(label in shown for label in labels) >= 2
    take_screenshot(browser, tmp_path, "classification.png")
