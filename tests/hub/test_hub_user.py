"""Somebody with `hf` and transformers, and nothing of ours, downloads a release, fine-tunes it and pushes it again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builders.clean_processes import run_clean
from builders.hub_folders import hub_environment, pushed
from builders.hub_server import serve_hub
from builders.models import build_model
from reluformers.translation.tokenization import save_tokenizers, train_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "hub.md"
LINES = ["a dog runs", "a cat sleeps", "ein Hund rennt", "eine Katze schläft"]
SECTION = "Fine-tune it"
NAME = "acme/toy"

REPORT = """
    import json
    import torch
    from transformers import pipeline
    from transformers.utils import logging

    logging.disable_progress_bar()
    assert "reluformers" not in sys.modules
    batch = tokenizer("a dog runs", text_target="ein Hund rennt", return_tensors="pt")

    def open_model(place, **options):
        found = AutoModelForSeq2SeqLM.from_pretrained(place, trust_remote_code=True, **options)
        with torch.no_grad():
            return found(**batch).loss.item()

    texts = ["a dog runs", "a cat sleeps"]
    translate = pipeline(model="ORG/NAME", trust_remote_code=True, max_new_tokens=5)
    translate_here = pipeline("translation", model="tuned", trust_remote_code=True)
    report = {
        "first": [open_model("model"), open_model("ORG/NAME", revision="v1")],
        "second": [open_model("tuned"), open_model("ORG/NAME")],
        "kept": model.eval()(**batch).loss.item(),
        "answers": translate(texts, batch_size=2),
        "alone": [translate_here(text, max_new_tokens=5)[0] for text in texts],
    }
    print("\\n" + json.dumps(report))
"""


def page_block(heading: str, kind: str, containing: str) -> str:
    """The block of code below a heading of the page that contains some words."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (block,) = (text for text in re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) if containing in text)
    return block.replace("ORG/NAME", NAME)


@pytest.fixture
def hub():
    with serve_hub() as server:
        yield server


@pytest.fixture
def environment(hub, tmp_path):
    return hub_environment(hub, tmp_path / "home")


def run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """A command of this environment, in a folder."""
    program = Path(sys.executable).with_name(command[0])
    result = subprocess.run(
        [program, *command[1:]], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_download_fine_tune_and_push_as_the_page_says(tmp_path, hub, environment):
    tokenizer = train_tokenizer(LINES, vocab_size=60, min_frequency=1)
    released = tmp_path / "released"
    build_model("reluformer", vocab_size=len(tokenizer)).save_pretrained(released)
    tokenizer.save_pretrained(released)
    run(f"hf upload {NAME} released".split(), tmp_path, environment)
    run(f"hf repos tag create {NAME} v1".split(), tmp_path, environment)
    run(page_block(SECTION, "bash", "hf download").split(), tmp_path, environment)

    code = page_block(SECTION, "python", "Seq2SeqTrainer")
    report = "".join(line.removeprefix("    ") for line in REPORT.splitlines(keepends=True)).replace("ORG/NAME", NAME)
    hidden = ("datasets", "evaluate", "peft")
    output = run_clean(code + report, tmp_path, hidden=hidden, **environment, ACCELERATE_USE_CPU="true")
    report = json.loads(output.splitlines()[-1])
    first, second = report["first"], report["second"]
    assert first[0] == pytest.approx(first[1])
    assert second[0] == pytest.approx(second[1])
    assert second[0] == pytest.approx(report["kept"])
    assert second[0] < first[0] - 1e-3
    assert report["answers"] == report["alone"]
    first, second = pushed(hub, NAME, "v1"), pushed(hub, NAME)
    code = {name for name in first if name.endswith(".py")}
    assert code == {path.name for path in released.glob("*.py")} == {name for name in second if name.endswith(".py")}
    assert code <= {path.name for path in (tmp_path / "tuned").iterdir()}
    assert first["model.safetensors"] != second["model.safetensors"]
    assert isinstance(second["model.safetensors"], str)
    assert not [name for name in second if name.endswith((".bin", ".pt"))]


OPEN_TWO = """
    import json
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

    name, options = sys.argv[1], {"revision": "v1", "trust_remote_code": True}
    found = [
        pipeline("translation", model=name, **options),
        pipeline("translation", model=name, trust_remote_code=True),
    ]
    model = AutoModelForSeq2SeqLM.from_pretrained(name, **options)
    found.append(type(found[0])(model, AutoTokenizer.from_pretrained(name, revision="v1")))
    sys.stdout.write("\\n" + json.dumps([len(pipe.target_tokenizer) for pipe in found]))
"""


@pytest.mark.slow
def test_the_target_tokenizer_is_of_the_revision_of_the_model(tmp_path, hub, environment):
    source, target, later = (train_tokenizer(LINES, vocab_size=size, min_frequency=1) for size in (60, 50, 40))
    sizes = {"vocab_size": len(source), "decoder_vocab_size": len(target), "tying": "none"}
    build_model("reluformer", **sizes).save_pretrained(tmp_path / "released")
    save_tokenizers(tmp_path / "released", source, target)
    later.save_pretrained(tmp_path / "later")
    run(f"hf upload {NAME} released".split(), tmp_path, environment)
    run(f"hf repos tag create {NAME} v1".split(), tmp_path, environment)
    run(f"hf upload {NAME} later target_tokenizer".split(), tmp_path, environment)
    output = run_clean(OPEN_TWO, tmp_path, NAME, **environment)
    assert json.loads(output.splitlines()[-1]) == [len(target), len(later), len(target)]
