"""`reluformers analyse`: models of this library and of transformers beside each other, in JSON and in a picture."""

import json

import pytest
import torch

from builders.commands import run_command
from builders.models import build_marian
from builders.saved_models import TEXTS, save_translator
from reluformers.translation.tokenization import save_tokenizers, train_tokenizer


@pytest.fixture(scope="module")
def translators(tmp_path_factory):
    """A ReLUFormer and a Marian model, both with a tokenizer, and sentence pairs."""
    folder = tmp_path_factory.mktemp("translators")
    torch.manual_seed(0)
    save_translator(folder / "ours")
    tokenizer = train_tokenizer(TEXTS, 120)
    fields = {"decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    build_marian(len(tokenizer), **fields).save_pretrained(folder / "marian")
    save_tokenizers(folder / "marian", tokenizer, None)
    pairs = [(TEXTS[0], TEXTS[2]), (TEXTS[1], "Zwei <b>Hunde</b> & Gras."), ("A dog runs.", "Ein Hund am Strand.")]
    lines = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in pairs]
    (folder / "test.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_translation_models(translators, tmp_path):
    run_command(
        "analyse", translators / "ours", translators / "marian", translators / "test.jsonl", "--source_lang", "en",
        "--target_lang", "de", "--output", tmp_path / "out" / "analysis.json",
    )  # fmt: skip
    assert (tmp_path / "out" / "analysis.png").stat().st_size > 0
    analysis = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert analysis["data"] == analysis["data"] | {"source": "test.jsonl", "rows": 3, "source_lang": "en"}
    assert str(tmp_path) not in json.dumps(analysis)
    ours, marian = (analysis["models"][name]["statistics"] for name in ("ours", "marian"))
    assert set(marian) - {"row_sum.right", "entropy.right"} <= set(ours)
    assert {site: len(layers) for site, layers in ours["zeros"].items()} == {"encoder": 1, "decoder": 2, "cross": 2}
    assert len(marian["zeros"]["encoder"][0]["heads"]) == 4
    assert {"null_rate.shuffled", "null_rate.variance"} <= set(ours)
    assert marian["row_sum"]["cross"][0]["overall"] == pytest.approx(1)
    assert all(layer["overall"] == 0 for layer in marian["null_rate"]["cross"])
