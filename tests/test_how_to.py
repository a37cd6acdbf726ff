"""The pieces of code in docs/how-to.md do what they say, one after the other, on small models."""

import re
from pathlib import Path

import pytest
import torch

from builders.saved_models import save_classifier, save_translator

PAGE = Path(__file__).parents[1] / "docs" / "how-to.md"


def pieces() -> dict[str, str]:
    """Heading → code below it."""
    parts = re.split(r"^## … ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {part.partition("\n")[0]: re.findall(r"```python\n(.*?)```", part, re.DOTALL) for part in parts}
    assert all(len(code) == 1 for code in found.values()), found.keys()
    return {heading: code[0] for heading, code in found.items()}


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


def run_piece(heading: str, opened: dict) -> dict:
    names = dict(opened)
    exec(pieces()[heading], names)
    return names


def logits_of(model, opened: dict) -> torch.Tensor:
    batch = opened["tokenizer"](["in 5 days", "3 hours"], padding=True, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(**batch, decoder_input_ids=torch.tensor([[1, 5], [1, 7]])).logits.float()


@pytest.mark.slow
def test_lora(opened):
    before = logits_of(opened["model"], opened)
    names = run_piece("fine-tune with LoRA", opened)
    assert not torch.equal(logits_of(names["merged"], opened), before)
    again = type(names["merged"]).from_pretrained("./tuned_lora_merged")
    torch.testing.assert_close(logits_of(again, opened), logits_of(names["merged"], opened))


@pytest.mark.slow
def test_language_tag(opened, capsys):
    names = run_piece("add a language tag", opened)
    assert capsys.readouterr().out.startswith("['<2de>', ")
    ids = names["tagging"]("<2de> in 5 days", return_tensors="pt")["input_ids"]
    assert ids[0, 0] == len(opened["tokenizer"])
    assert names["wider"](input_ids=ids, labels=ids).logits.shape[-1] == len(names["tagging"])


@pytest.mark.slow
def test_image_classifier(opened):
    names = run_piece("fine-tune an image classifier", opened)
    assert names["classifier"].config.num_labels == 2
    assert names["trainer"].state.global_step == 2


@pytest.mark.slow
def test_bf16(opened):
    wanted = logits_of(type(opened["model"]).from_pretrained("./models/tatoeba-en-de"), opened)
    found = logits_of(run_piece("compute in bf16", opened)["half"], opened)
    assert not torch.equal(found, wanted)
    assert (found - wanted).norm() < 0.05 * wanted.norm()


@pytest.mark.slow
def test_compile(opened):
    names = run_piece("compile", opened)
    start = torch.tensor([[1]])
    with torch.no_grad():
        wanted = opened["model"].eval()(**names["batch"], decoder_input_ids=start, use_cache=False).logits
        found = names["compiled"](**names["batch"], decoder_input_ids=start, use_cache=False).logits
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_int8(opened):
    names = run_piece("compute in int8", opened)
    assert not isinstance(names["translate"].model.lm_head, torch.nn.Linear)
    assert names["translate"]("in 5 days")[0]["translation_text"]


@pytest.mark.slow
def test_onnx_and_int8(opened):
    pytest.importorskip("onnxruntime")
    record = run_piece("export to ONNX", opened)["record"]
    logits = {name: found["logits"] for name, found in record["precisions"].items()}
    assert logits["fp32"] < 1e-5 < logits["int8"] < 0.1
    names = run_piece("translate with onnxruntime", opened)
    exact, _ = names["load_onnx_translator"]("./translator-onnx", "fp32")
    search = {"texts": ["in 5 days", "3 hours"], "num_beams": 5}
    model = type(opened["model"]).from_pretrained("./models/tatoeba-en-de")  # as LoRA has changed the one that is open
    wanted = names["translate"](model.eval(), names["tokenizers"], **search)
    assert names["translate"](exact, names["tokenizers"], **search) == wanted


def test_every_piece_has_a_test():
    text = Path(__file__).read_text(encoding="utf-8")
    headings = list(pieces())[1:]
    assert len(headings) >= 6
    for heading in headings:
        assert f'"{heading}"' in text, heading
