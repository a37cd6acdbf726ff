"""The pieces of code in docs/how-to.md, and two of other pages, do what they say on small models."""

import re
from pathlib import Path

import pytest
import torch

from builders.commands import run_command
from builders.opus import ENGLISH, save_opus
from builders.saved_models import save_classifier, save_translator

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "how-to.md"


def pieces(page: Path = PAGE) -> dict[str, str]:
    """Heading → code below it."""
    parts = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {part.partition("\n")[0]: re.findall(r"```python\n(.*?)```", part, re.DOTALL) for part in parts}
    assert all(len(code) <= 1 for code in found.values()), found.keys()
    return {heading: code[0] for heading, code in found.items() if code}


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> dict:
    """What the first piece makes, in a folder with both models."""
    folder = tmp_path_factory.mktemp("how_to")
    save_translator(folder / "models" / "tatoeba-en-de")
    save_classifier(folder / "models" / "digits-relu-vit")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names: dict = {"torch": torch}
        exec(next(iter(pieces().values())), names)
        yield names


def run_piece(heading: str, opened: dict, page: Path = PAGE) -> dict:
    names = dict(opened)
    exec(pieces(page)[heading], names)
    return names


SEEN_BELOW = ("Translate with an OPUS-MT model", "Log the attention of any model in training")


@pytest.mark.slow
@pytest.mark.parametrize("heading", [heading for heading in list(pieces())[1:] if heading not in SEEN_BELOW])
def test_a_piece_runs(opened, heading):
    run_piece(heading, opened)


@pytest.mark.slow
def test_onnx(opened):
    pytest.importorskip("onnxruntime")
    names = run_piece("In Python", opened, DOCS / "everywhere.md")
    logits = {name: found["logits"] for name, found in names["record"]["precisions"].items()}
    assert logits["fp32"] < 1e-5 < logits["int8"] < 0.1


def test_opus_model(opened, capsys):
    """The commands of the page, on random weights of the same layout."""
    stock = save_opus(Path("opus-mt-en-de"))
    Path("news.en").write_text("".join(f"{line}\n" for line in ENGLISH))
    convert, translate = re.findall(r"^reluformers (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[:2]
    run_command(*convert.replace("Helsinki-NLP/opus-mt-en-de", str(stock)).split())
    run_command(*translate.split(), "--batch_size", 1)
    assert "compiled code does not know" not in capsys.readouterr().err
    assert len(Path("news.de").read_text().splitlines()) == len(ENGLISH)
    assert run_piece("Translate with an OPUS-MT model", opened)["translate_english"].model.config.model_type


def test_attention_in_the_log(opened):
    names = run_piece("Log the attention of any model in training", opened)
    entries = [entry for entry in names["watched"].state.log_history if "attention_zeros" in entry]
    assert [entry["step"] for entry in entries] == [2, 4]
    assert all(0 < entry["attention_zeros"] < 1 for entry in entries)
