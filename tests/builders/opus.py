"""Random weights in the layout of the OPUS-MT repositories."""

import json
from pathlib import Path

import sentencepiece
import torch

from .models import build_marian

ENGLISH = ["two dogs run on the beach .", "a man rides a red bike .", "the children play in the snow ."]
GERMAN = ["zwei hunde rennen am strand .", "ein mann fährt ein rotes rad .", "die kinder spielen im schnee ."]
# One vocabulary with one or two matrices, one with language codes, and two vocabularies of any sizes.
LAYOUTS = ("joint", "two matrices", "codes", "separate", "larger source", "larger target")
FILLERS = {"larger source": (30, 0), "larger target": (0, 30)}


def save_opus(folder: Path, layout: str = "joint") -> Path:
    """`config.json`, `generation_config.json`, `pytorch_model.bin`, two SentencePiece files, `vocab.json` and a
    `tokenizer_config.json` that names no class; with separate vocabularies also `target_vocab.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    sides = [_train_pieces(folder, name, lines) for name, lines in (("source", ENGLISH), ("target", GERMAN))]
    settings = {"source_lang": "en", "target_lang": "de"}
    fields = {}
    if layout in ("joint", "two matrices", "codes"):
        codes = [">>de<<", ">>nl<<"] if layout == "codes" else []
        sizes = [_write_vocabulary(folder / "vocab.json", [*codes, *dict.fromkeys(sides[0] + sides[1]), "<pad>"])] * 2
        if layout == "two matrices":
            fields = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": sizes[1]}
        pad = sizes[0] - 1
    else:
        counts = FILLERS.get(layout, (0, 0))
        sides = [[*pieces, *(f"filler{n}" for n in range(count))] for pieces, count in zip(sides, counts, strict=True)]
        names = ("vocab.json", "target_vocab.json")
        sizes = [_write_vocabulary(folder / name, ["<pad>", *side]) for name, side in zip(names, sides, strict=True)]
        settings["separate_vocabs"] = True
        fields = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": sizes[1]}
        pad = 2
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ends = {"pad_token_id": pad, "eos_token_id": 0, "bos_token_id": 0, "decoder_start_token_id": pad}
    fields |= {**ends, "forced_eos_token_id": 0, "activation_function": "swish", "scale_embedding": True}
    model = build_marian(sizes[0], **fields)
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
    generation = {"bad_words_ids": [[pad]], "renormalize_logits": True, "num_beams": 4, "max_length": 20}
    (folder / "generation_config.json").write_text(json.dumps({**generation, "forced_eos_token_id": 0, **ends}))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


def _train_pieces(folder: Path, name: str, lines: list[str]) -> list[str]:
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
    return [model.IdToPiece(number) for number in range(3, model.GetPieceSize())]


def _write_vocabulary(path: Path, pieces: list[str]) -> int:
    vocabulary = {piece: number for number, piece in enumerate(["</s>", "<unk>", *pieces])}
    path.write_text(json.dumps(vocabulary))
    return len(vocabulary)
