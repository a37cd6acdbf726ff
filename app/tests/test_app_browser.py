"""The app as a visitor meets it: in a real browser, with a model behind it."""

import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from builders.browsers import CHROMIUM, DRIVER, open_browser
from builders.saved_models import TEXTS, save_translator
from reluformers.modeling.pipeline_translation import longest_translation
from reluformers.publish.space import SPACE

pytest.importorskip("gradio")
pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

SECONDS = 120
EXAMPLES = TEXTS[:2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]


@pytest.fixture
def browser(tmp_path):
    with open_browser(tmp_path / "profile") as driver:
        yield driver


@pytest.fixture
def serve(tmp_path):
    """Start `app.py` of a folder, as somebody would who has no reluformers; give the address of its page."""
    processes = []

    def start(folder: Path, *options: str) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = tmp_path / "app.log"
        command = [sys.executable, str(SPACE / "app.py"), str(folder), "--port", str(port), *options]
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


def value(browser, element: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, f"#{element} textarea").get_property("value")


def weights_source(browser) -> str:
    """The large picture of the weights, as an address that holds it."""
    return browser.find_element(By.CSS_SELECTOR, ".map img.large").get_attribute("src")


def lit_words(browser, side: str) -> set[int]:
    """Numbers of the words that are lit in the lines of a side, "q" or "k"."""
    found = browser.find_elements(By.CSS_SELECTOR, f"#attention .line .word[data-{side}]")
    return {number for number, word in enumerate(found) if "--lit" in (word.get_attribute("style") or "")}


@pytest.fixture
def translation_page(browser, serve, tmp_path):
    """A page with two examples, as it opens; its model's folder."""
    folder = save_translator(tmp_path / "model")
    browser.get(serve(folder, "--example", EXAMPLES[0], "--example", EXAMPLES[1]))
    until(browser, weights_source)
    return folder


def point_at(browser, side: str, number: int) -> None:
    word = browser.find_element(By.CSS_SELECTOR, f"#attention .line .word[data-{side}='{number}']")
    ActionChains(browser).move_to_element(word).perform()


def test_page_opens_with_an_example_and_translates_at_enter(browser, translation_page):
    assert (value(browser, "text"), value(browser, "answer")) == (
        EXAMPLES[0],
        translate(translation_page, EXAMPLES[0]),
    )
    before = weights_source(browser)
    box = browser.find_element(By.CSS_SELECTOR, "#text textarea")
    box.clear()
    box.send_keys("A horse on green grass.", Keys.ENTER)
    until(browser, lambda page: weights_source(page) != before)
    answer = translate(translation_page, "A horse on green grass.")
    assert (value(browser, "text"), value(browser, "answer")) == ("A horse on green grass.", answer)

    browser.find_element(By.XPATH, f"//div[@id='examples']//button[contains(., '{EXAMPLES[1][:12]}')]").click()
    until(browser, lambda page: value(page, "text") == EXAMPLES[1])
    assert value(browser, "answer") == translate(translation_page, EXAMPLES[1])


def test_words_light_up_where_weights_are_not_zero(browser, translation_page):
    data = json.loads(browser.find_element(By.CSS_SELECTOR, "#attention .map").get_attribute("data-map"))
    codes = np.frombuffer(base64.b64decode(data["weights"]), dtype="<i2")
    weights = codes.reshape(-1, len(data["queries"]), len(data["keys"]))
    head = int(browser.find_element(By.CSS_SELECTOR, "#attention .map").get_attribute("data-head"))

    point_at(browser, "q", 0)
    assert lit_words(browser, "k") == set(np.flatnonzero(weights[head, 0]))
    point_at(browser, "k", 3)
    assert lit_words(browser, "q") == set(np.flatnonzero(weights[head, :, 3]))
    assert lit_words(browser, "k") == set()
    assert browser.find_element(By.CSS_SELECTOR, "#attention output").text.startswith(f"{data['keys'][3]} →")

    # the other head, without the mouse
    other = (head + 1) % len(weights)
    button = browser.find_element(By.CSS_SELECTOR, f"#attention button[data-head='{other}']")
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-pressed") == "true"
    assert weights_source(browser) == button.find_element(By.TAG_NAME, "img").get_attribute("src")
    word = browser.find_element(By.CSS_SELECTOR, "#attention .line .word[data-k='1']")
    word.send_keys(Keys.TAB)
    assert lit_words(browser, "q") == set(np.flatnonzero(weights[other, :, 2]))


def translate(folder: Path, text: str) -> str:
    """What transformers alone makes of the text."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    limit = longest_translation(inputs["input_ids"].shape[1], model.config)
    return tokenizer.decode(model.generate(**inputs, num_beams=4, max_new_tokens=limit)[0], skip_special_tokens=True)
