"""A folder as a training run leaves it, and who pushes it: what the tests of the Hub share."""

import json
from pathlib import Path

import torch
from huggingface_hub import HfApi

from builders.hub_server import Hub
from builders.pictures import encode, picture
from reluformers import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformers.publish.folder_check import FolderCheck
from reluformers.translation.tokenization import train_tokenizer

REPO = "acme/tiny"
# what a clean process would find, which takes seconds
CHECKED = FolderCheck("translation", "Model", 0.0, [], is_stored=True)
CARD = """---
library_name: transformers
pipeline_tag: translation
license: apache-2.0
---

# Tiny

![Attention](attention.png)
"""
# what training leaves and nobody else should see
PRIVATE = {
    "training_args.bin": b"pickle",
    "scheduler.pt": b"pickle",
    "pytorch_model.bin": b"pickle",
    "checkpoint-5/optimizer.pt": b"pickle",
    "checkpoint-5/trainer_state.json": b"{}",
    "__pycache__/attention.cpython-311.pyc": b"cache",
    ".env": b"HF_TOKEN=hf_secret",
    "notes.txt": b"call her back",
    "train.py": b"import reluformers",
    "curves.png": b"not shown by the card",
}


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def save_translation_run(folder: Path) -> Path:
    """A translation model as a training run leaves it."""
    tokenizer = train_tokenizer(["in 5 days", "two dogs play in the snow", "a man rides a red bicycle"] * 3, 60)
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 32}
    torch.manual_seed(0)
    model = ReLUFormerForConditionalGeneration(ReLUFormerConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = "data:\n  train: /data/secret/train.jsonl\n  path: bentrevett/multi30k\n"
    results = {"model": "C:\\runs\\x", "data": "../corpora/test.tsv", "bleu": 1.5}
    records = {"recipe.yaml": recipe.encode(), "results.json": json.dumps(results).encode()}
    write_files(folder, {**records, **PRIVATE, "README.md": CARD.encode(), "attention.png": encode(picture(8, 12))})
    return folder


def client(hub: Hub, token: str | None = "hf_writer") -> HfApi:
    return HfApi(hub.endpoint, token=token)


def hub_environment(hub: Hub, home: Path) -> dict[str, str]:
    """What a process that uses the Hub has in its environment beside the usual."""
    values = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_writer", "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    return {**values, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def pushed(hub: Hub, repo_id: str = REPO, revision: str = "main") -> dict[str, bytes | str]:
    """Files of a model on the Hub by name; the content of a large one is its LFS id."""
    repo = hub.repos["models", repo_id]
    return repo.commits[repo.find(revision)]
