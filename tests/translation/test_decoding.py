"""Translating texts and the command line that scores a model."""

import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from builders.commands import run_command
from builders.models import build_marian
from reluformers import TranslationPipeline, seq2seq_config
from reluformers.modeling.pipeline_translation import longest_translation
from reluformers.translation.decoding import load_translation_model, translate, wu_length_penalty
from reluformers.translation.tokenization import save_tokenizers, train_tokenizer

TEXTS = ["a cat", "two dogs run over the green grass", "", "a man reads", "the cat and the dog sleep"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 3, 100)


def build(tokenizer, seed: int = 0, **fields):
    torch.manual_seed(seed)
    config = seq2seq_config(
        fields.pop("preset", "softmax"), vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        **{"max_position_embeddings": 64, **fields},
    )  # fmt: skip
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from uniform, so that different sources differ in translation
            parameter.add_(torch.randn_like(parameter) * 0.7)
    return model


@pytest.fixture
def model(tokenizer):
    return build(tokenizer)


def one_by_one(model, tokenizer, texts, **options):
    """Each text alone, without padding."""
    results = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        new_tokens = min(ids.shape[1] + 50, model.config.max_position_embeddings)
        tokens = model.generate(ids, max_new_tokens=new_tokens, do_sample=False, **options)
        results.append(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return results


@pytest.mark.parametrize(
    ("search", "max_tokens"), [({"num_beams": 3, "length_penalty": 0.7}, 4096), ({"num_beams": 1}, 20)], ids=str
)
def test_translations_are_those_of_single_texts_in_the_given_order(model, tokenizer, max_tokens, search):
    # every translation ends at 24 tokens; else a short source may run on as far as the longest of its batch
    model.config.max_position_embeddings = 24
    expected = one_by_one(model, tokenizer, TEXTS, **search)
    assert len(set(expected)) > 2
    assert translate(model, tokenizer, TEXTS, max_tokens=max_tokens, **search) == expected


def test_wu_penalty_is_used(tokenizer):
    differences = 0
    options = {"num_beams": 3, "length_penalty": 1.0}
    for seed in range(3):
        model = build(tokenizer, seed, max_position_embeddings=20)
        wu = translate(model, tokenizer, TEXTS, **options, penalty="wu")
        assert wu == one_by_one(wu_length_penalty(model), tokenizer, TEXTS, **options)
        differences += wu != translate(model, tokenizer, TEXTS, **options)
    assert differences > 0


class Recorder:
    """Keeps what a model was asked to generate from."""

    def __init__(self, model):
        self.calls, self._generate = [], model.generate
        model.generate = self

    def __call__(self, **options):
        self.calls.append(options)
        return self._generate(**options)


def test_batches_keep_the_budget_and_the_rule_of_fifty_more_tokens(tokenizer):
    model = build(tokenizer, max_position_embeddings=200)
    recorder = Recorder(model)
    texts = ["a " * length for length in (1, 9, 3, 30, 2, 2, 7, 1)]
    longest = len(tokenizer(texts[3])["input_ids"])
    translate(model, tokenizer, texts, num_beams=1, max_tokens=20, min_new_tokens=1, penalty="wu")
    shapes = [tuple(call["input_ids"].shape) for call in recorder.calls]
    assert shapes[0] == (1, longest)  # over the budget, so alone
    assert all(rows * length <= 20 for rows, length in shapes[1:])
    assert sum(rows for rows, _ in shapes) == len(texts)
    assert len(shapes) < len(texts)
    for call in recorder.calls:
        assert call["max_length"] == 1 + call["input_ids"].shape[1] + 50
        assert call["min_new_tokens"] == 1
        assert torch.equal(call["attention_mask"].bool(), call["input_ids"] != tokenizer.pad_token_id)


def test_long_sources_are_cut_with_one_warning(model, tokenizer, caplog):
    recorder = Recorder(model)
    with caplog.at_level(logging.WARNING, logger="reluformers"):
        results = translate(model, tokenizer, ["cat " * 200, "a cat", "dog " * 100], num_beams=1)
    assert len(results) == 3
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("reluformers")]
    assert len(warnings) == 1
    assert warnings[0].startswith("2 of 3 texts have more than 64 tokens")
    source = recorder.calls[0]["input_ids"]
    assert source.shape[1] == recorder.calls[0]["max_length"] - 1 == 64
    assert source[0, -1] == tokenizer.eos_token_id


def test_long_translations_end_where_those_of_the_pipeline_end(tokenizer):
    """A model that never ends; sources over 50 tokens, under it, and over the positions, alone and in a batch.

    Folders of earlier versions hold max_new_tokens.
    """
    model = build(tokenizer, max_position_embeddings=100)
    model.generation_config.update(max_length=30, max_new_tokens=3)
    pipe = TranslationPipeline(model, tokenizer, device="cpu")
    texts = ["a cat " * count for count in (60, 25, 15, 2)]
    options = {"num_beams": 1, "suppress_tokens": [tokenizer.eos_token_id]}
    lengths = [longest_translation(len(tokenizer(text)["input_ids"]), model.config) for text in texts]
    assert lengths == [100, 100, 81, 55]
    together = translate(model, tokenizer, texts, batch_size=4, **options)
    assert [answer["translation_text"] for answer in pipe(texts, batch_size=4, **options)] == together
    recorder = Recorder(model)
    alone = translate(model, tokenizer, texts, batch_size=1, **options)
    assert [answer["translation_text"] for answer in pipe(texts, **options)] == alone
    assert [call["max_length"] - 1 for call in recorder.calls] == [*lengths, *lengths]


def test_eight_threads_share_a_model(tokenizer):
    """Each asks for something else: a penalty, alignments, texts that are cut. None changes what another one gets."""
    model = build(tokenizer, max_position_embeddings=16)
    pipe = TranslationPipeline(model, tokenizer, device="cpu")
    stock = build_marian(len(tokenizer), max_position_embeddings=16, forced_eos_token_id=2)
    marian = TranslationPipeline(stock, tokenizer, device="cpu")
    texts = [*TEXTS, "a cat " * 30]
    options = {"num_beams": 3, "length_penalty": 1.5}
    requests = [
        lambda: translate(model, tokenizer, texts, **options),
        lambda: translate(model, tokenizer, texts, penalty="wu", **options),
        lambda: [answer["alignments"] for answer in pipe([text for text in texts if text], return_alignments=True)],
        lambda: [answer["alignments"] for answer in marian(["a cat", "a cat " * 30], return_alignments=True)],
    ]
    expected = [request() for request in requests]
    before = [dict(vars(one)) for one in (model, stock)]
    with ThreadPoolExecutor(8) as threads:
        found = [threads.submit(request) for _ in range(4) for request in requests]
        assert [one.result() for one in found] == expected * 4
    assert [dict(vars(one)) for one in (model, stock)] == before
    assert stock.config._attn_implementation == "sdpa"


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A saved model with its tokenizer."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    build(tokenizer, preset="reluformer").save_pretrained(folder)
    save_tokenizers(folder, tokenizer)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "model"))


def test_a_folder_that_lacks_a_tensor_is_refused(copy):
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.encoder.layers.0.mlp.fc1.weight"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.encoder\.layers\.0\.mlp\.fc1\.weight"):
        load_translation_model(copy)


def test_command_line_searches_as_it_is_told(folder, tmp_path):
    rows = [{"translation": {"en": text or "a", "de": "ein cat"}} for text in TEXTS]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_command(
        "evaluate", folder, "--data", tmp_path / "test.jsonl", "--source_lang", "en", "--target_lang", "de",
        "--num_beams", 2, "length_penalty=0.6", "penalty=wu", "early_stopping=never", "--attention_report",
        "--output", tmp_path / "results.json", "--predictions", tmp_path / "out.txt",
    )  # fmt: skip
    model, tokenizers = load_translation_model(folder)
    search = {"num_beams": 2, "length_penalty": 0.6, "penalty": "wu", "early_stopping": "never", "min_new_tokens": 0}
    expected = translate(model, tokenizers, [text or "a" for text in TEXTS], **search)
    assert (tmp_path / "out.txt").read_text().splitlines() == expected
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["decoding"] == {**search, "max_tokens": 4096}
    assert 0 < results["attention"]["overall"]["zeros"] < 1
