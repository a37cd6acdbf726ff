"""`reluformers analyse`: models of this library and of transformers beside each other, in JSON and in a picture."""

import json

import pytest

from builders.commands import run_command
from builders.models import build_marian
from builders.saved_models import TEXTS, save_translator
from reluformers.translation.tokenization import save_tokenizers, train_tokenizer


def test_translation_models(tmp_path):
    save_translator(tmp_path / "ours")
    tokenizer = train_tokenizer(TEXTS, 120)
    build_marian(len(tokenizer), decoder_layers=1, encoder_attention_heads=4).save_pretrained(tmp_path / "marian")
    save_tokenizers(tmp_path / "marian", tokenizer)
    row = json.dumps({"translation": {"en": TEXTS[1], "de": "Zwei <b>Hunde</b> & Gras."}})
    (tmp_path / "test.jsonl").write_text(f"{row}\n{row}\n")
    run_command(
        "analyse", tmp_path / "ours", tmp_path / "marian", tmp_path / "test.jsonl", "--source_lang", "en",
        "--target_lang", "de", "--output", tmp_path / "out" / "analysis.json",
    )  # fmt: skip
    assert (tmp_path / "out" / "analysis.png").stat().st_size > 0
    analysis = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert analysis["data"] == analysis["data"] | {"source": "test.jsonl", "rows": 2, "source_lang": "en"}
    assert str(tmp_path) not in json.dumps(analysis)
    ours, marian = (analysis["models"][name]["statistics"] for name in ("ours", "marian"))
    assert {site: len(layers) for site, layers in ours["zeros"].items()} == {"encoder": 1, "decoder": 2, "cross": 2}
    assert len(marian["zeros"]["encoder"][0]["heads"]) == 4
    assert "null_rate.shuffled" in ours
    assert marian["row_sum"]["cross"][0]["overall"] == pytest.approx(1)
