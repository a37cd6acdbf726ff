"""Random weights in the layout of the OPUS-MT repositories, from download to translation by the command line."""

import json

import pytest
import sentencepiece
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel, MarianTokenizer, pipeline

from builders.commands import run_command
from builders.models import build_marian
from reluformers.publish.release import select_files
from reluformers.translation.decoding import load_translation_model

ENGLISH = ["two dogs run on the beach .", "a man rides a red bike .", "the children play in the snow ."]
GERMAN = ["zwei hunde rennen am strand .", "ein mann fährt ein rotes rad .", "die kinder spielen im schnee ."]


@pytest.fixture(scope="module")
def opus(tmp_path_factory):
    """`config.json`, `generation_config.json`, `pytorch_model.bin`, two SentencePiece files, `vocab.json` and a
    `tokenizer_config.json` that names no class."""
    folder = tmp_path_factory.mktemp("opus-mt-en-de")
    pieces = {}
    for name, lines in (("source", ENGLISH), ("target", GERMAN)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=str(folder / name),
            vocab_size=48,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        (folder / f"{name}.vocab").unlink()
        model = sentencepiece.SentencePieceProcessor(str(folder / f"{name}.spm"))
        pieces |= dict.fromkeys(model.IdToPiece(i) for i in range(3, model.GetPieceSize()))
    vocabulary = {piece: number for number, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    pad = vocabulary["<pad>"]
    ends = {"pad_token_id": pad, "eos_token_id": 0, "bos_token_id": 0, "decoder_start_token_id": pad}
    fields = {**ends, "forced_eos_token_id": 0, "activation_function": "swish", "scale_embedding": True}
    model = build_marian(len(vocabulary), **fields)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.requires_grad and tensor.dim() > 1:
                tensor.normal_(0, 0.4)
        model.final_logits_bias.normal_()
    content = json.loads(model.config.to_json_string()) | {
        "architectures": ["MarianMTModel"], "_name_or_path": "/tmp/Helsinki-NLP/opus-mt-en-de",
        "add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False,
        "normalize_embedding": False, "static_position_embeddings": True, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content))
    generation = {"bad_words_ids": [[pad]], "num_beams": 4, "max_length": 20, "forced_eos_token_id": 0, **ends}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


def test_it_translates_as_before_and_goes_back(opus, tmp_path, capsys):
    run_command("convert", opus, tmp_path / "ours")
    assert "Seq2SeqTransformerForConditionalGeneration" in capsys.readouterr().out
    theirs = MarianMTModel.from_pretrained(opus).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert isinstance(tokenizer, MarianTokenizer)
    batch = tokenizer(ENGLISH, return_tensors="pt", padding=True)
    written = theirs.generate(**batch, max_new_tokens=9)  # the weights are random, and would end nowhere
    expected = MarianTokenizer.from_pretrained(opus).batch_decode(written, skip_special_tokens=True)
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert tokenizer.batch_decode(ours.generate(**batch, max_new_tokens=9), skip_special_tokens=True) == expected
    translator = pipeline("translation", model=str(tmp_path / "ours"), trust_remote_code=True)
    assert [result["translation_text"] for result in translator(ENGLISH, max_new_tokens=9)] == expected
    load_translation_model(tmp_path / "ours")  # which checks that model and tokenizer fit
    assert {"source.spm", "target.spm", "vocab.json", "README.md"} <= set(select_files(tmp_path / "ours"))
    run_command("convert", tmp_path / "ours", tmp_path / "back", "--back")
    back = MarianMTModel.from_pretrained(tmp_path / "back")
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
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    run_command("convert", tmp_path / "ours", tmp_path / "softmax", "--preset", "softmax")
    batch = {"input_ids": torch.tensor([[5, 9, 0]]), "decoder_input_ids": torch.tensor([[7, 8]])}
    softmax = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "softmax")
    torch.testing.assert_close(softmax(**batch).logits, MarianMTModel.from_pretrained(opus).eval()(**batch).logits)
