"""Random weights in the layout of the OPUS-MT repositories, from download to translation by the command line."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianMTModel,
    MarianTokenizer,
    pipeline,
)

from builders.clean_processes import run_clean
from builders.commands import run_command
from builders.opus import ENGLISH, LAYOUTS, save_opus
from reluformers.app.models import load_model
from reluformers.modeling.pipeline_translation import split_text
from reluformers.publish.release import read_saved_model
from reluformers.serving.server import load_handler
from reluformers.translation.decoding import load_translation_model, translate

SEARCH = {"num_beams": 2, "max_new_tokens": 9}  # the weights are random, and would end nowhere


@pytest.fixture(scope="module")
def opus(tmp_path_factory):
    return save_opus(tmp_path_factory.mktemp("opus-mt-en-de"))


# Of one vocabulary and of two, the layout that asks most in every run, and all of them where there is time.
FEW = ("two matrices", "larger source")


@pytest.fixture(
    scope="module", params=[name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS]
)
def layout(request, tmp_path_factory) -> tuple[Path, list[str]]:
    """A converted folder, and what Marian itself translates."""
    folder = tmp_path_factory.mktemp("layout")
    stock = save_opus(folder / "stock", request.param)
    config = AutoConfig.from_pretrained(stock)
    if transformers.__version__.startswith("5.17.") and config.vocab_size != config.decoder_vocab_size:
        pytest.skip(
            "Marian of transformers 5.17 ends its beam search with an error if two vocabularies differ in size"
        )
    run_command("convert", stock, folder / "ours")
    tokenizer = MarianTokenizer.from_pretrained(stock)
    written = (
        MarianMTModel.from_pretrained(stock)
        .eval()
        .generate(**tokenizer(ENGLISH, return_tensors="pt", padding=True), **SEARCH)
    )
    return folder / "ours", tokenizer.batch_decode(written, skip_special_tokens=True)


def test_every_door_opens_every_layout(layout):
    folder, expected = layout
    model, tokenizers = load_translation_model(folder)
    assert translate(model, tokenizers, ENGLISH, length_penalty=1.0, **SEARCH) == expected
    opened = pipeline("translation", model=str(folder), trust_remote_code=True, device="cpu")
    handler = load_handler(folder)  # as `serve` does
    for answers in (opened(ENGLISH, **SEARCH), handler({"inputs": ENGLISH, "parameters": SEARCH})):
        assert [answer["translation_text"] for answer in answers] == expected
    shown = load_model(str(folder)).translate(ENGLISH[0], 2)
    assert shown.alignment


def test_words_of_every_layout_are_aligned_by_the_source(layout):
    """Marian's tokenizer decodes tokens of the source by the vocabulary of the target."""
    tokenizer = AutoTokenizer.from_pretrained(layout[0])
    for text in ENGLISH:
        words, places = split_text(tokenizer, text, tokenizer(text)["input_ids"])
        assert words == text.split()
        assert places.pop() == len(words)  # </s>
        spelled = [""] * len(words)
        for place, piece in zip(places, tokenizer.tokenize(text), strict=True):
            spelled[place] += piece.replace("▁", "")
        assert spelled == words


def test_a_layout_opens_without_this_library(layout, tmp_path):
    folder, expected = layout
    code = """
        from transformers import pipeline
        pipe = pipeline("translation", model=sys.argv[1], trust_remote_code=True, device="cpu")
        answers = pipe(sys.argv[2:], num_beams=2, max_new_tokens=9, return_alignments=True)
        print([answer["translation_text"] for answer in answers])
    """
    assert run_clean(code, tmp_path, str(folder), *ENGLISH).strip() == str(expected)


def test_it_goes_back(opus, tmp_path):
    run_command("convert", opus, tmp_path / "ours")
    assert {"source.spm", "target.spm", "vocab.json", "README.md"} <= set(read_saved_model(tmp_path / "ours").files)
    run_command("convert", tmp_path / "ours", tmp_path / "back", "--back")
    batch = AutoTokenizer.from_pretrained(tmp_path / "back")(ENGLISH, return_tensors="pt", padding=True)
    theirs, back = (MarianMTModel.from_pretrained(folder) for folder in (opus, tmp_path / "back"))
    torch.testing.assert_close(back.generate(**batch), theirs.generate(**batch))
    assert {"source.spm", "target.spm", "vocab.json"} <= {path.name for path in (tmp_path / "back").iterdir()}


def test_the_attention_is_exchanged_at_some_sites(opus, tmp_path, capsys):
    run_command("convert", opus, tmp_path / "ours", "--preset", "rela-g", "--sites", "cross", "attention_dropout=0.3")
    config = json.loads((tmp_path / "ours/config.json").read_text())
    assert config["model_type"] == "rela"
    assert config["attention_dropout"] == 0.3
    assert config["cross_attention"] is None
    assert config["attention"]["output_norm"] == "gated_rms_norm"
    assert {config[f"{site}_attention"]["activation"] for site in ("encoder", "decoder")} == {"softmax"}
    run_command("convert", tmp_path / "ours", tmp_path / "softmax", "--preset", "softmax")
    batch = {"input_ids": torch.tensor([[5, 9, 0]]), "decoder_input_ids": torch.tensor([[7, 8]])}
    softmax = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "softmax")
    torch.testing.assert_close(softmax(**batch).logits, MarianMTModel.from_pretrained(opus).eval()(**batch).logits)
