"""Opens a folder as a stranger will, before strangers do."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save

from reluformers.files import read_json, write_json
from reluformers.saved_models import load_model, read_results
from reluformers.tasks import task_of_model_type

from .clean_process import answer_in_clean_process
from .release import CHECK_FILE, read_config

LOGIT_TOLERANCE = 1e-5
# A summary of logits may differ by this share of their spread, as other CPUs add up in another order.
SUMMARY_TOLERANCE = 1e-3
CHECK_VERSION = 1
NUM_STORED = 4


class FolderCheck(NamedTuple):
    """What a folder holds: its task, the class of the code in it, and how far its logits are from the library's.

    `answers` are what the code says to a few inputs, and `is_stored` whether the folder holds the same ones.
    """

    task: str
    model_class: str
    difference: float
    answers: list[dict[str, Any]]
    is_stored: bool


def check_folder(folder: Path, renew: bool = False, store: bool = False) -> FolderCheck:
    """Compare the installed classes, and the answers stored in a folder, with a process that has only the folder.

    Args:
        folder: of a saved model.
        renew: leave out the stored answers, which are to be written anew.
        store: write the answers into the folder if it has none, or they are left out.

    Raises:
        ValueError: its weights are not finite, it does not open there, the logits differ by more than
            `LOGIT_TOLERANCE`, `generate` of the installed transformers does not give what the model computes, or the
            answers are not the stored ones.
    """
    task = task_of_model_type(read_config(folder)["model_type"])
    is_used = (folder / CHECK_FILE).is_file() and not renew
    stored = read_json(folder / CHECK_FILE)["answers"] if is_used else []
    model = load_model(task.auto_class, folder, dtype=torch.float32)
    inputs = task.example_inputs(model.config)
    with torch.no_grad():
        inputs["logits"] = model(**inputs).logits.contiguous()
    if "input_ids" in inputs:
        texts = [answer["text"] for answer in stored] if stored else _texts(folder, inputs["input_ids"])
        inputs["texts"] = torch.tensor(list(json.dumps(texts).encode()), dtype=torch.uint8)
    answer = answer_in_clean_process("compare", folder, save(inputs))
    differences = find_differences(stored, answer["answers"]) if stored else []
    if not answer["difference"] <= LOGIT_TOLERANCE:  # `not <=` also refuses a NaN.
        fault = f"the code in it computes other logits than reluformers, by {answer['difference']:.1e}"
    elif fault := answer["generation_fault"]:
        fault = f"transformers {transformers.__version__} does not fit the code in it: {fault}"
    elif differences:
        fault = f"answers otherwise than {CHECK_FILE} says, which `reluformers check --write` renews: {differences[0]}"
    if fault:
        raise ValueError(f"{folder}: {fault}")
    if store and not stored:
        # Anybody can see later that the model still gives these answers.
        write_json(folder / CHECK_FILE, {"format_version": CHECK_VERSION, "answers": answer["answers"]})
    return FolderCheck(task.name, answer["model_class"], answer["difference"], answer["answers"], bool(stored))


def _texts(folder: Path, tokens: torch.Tensor) -> list[str]:
    """Source texts for a translation model: examples of its run, or else what its tokenizer makes of tokens."""
    if examples := read_results(folder).get("examples"):
        return [example["source"] for example in examples[:NUM_STORED]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    rows = [*tokens, *tokens.flip(1)][:NUM_STORED]
    return [text for text in (tokenizer.decode(row, skip_special_tokens=True).strip() for row in rows) if text]


def find_differences(stored: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[str]:
    """What differs between two lists of answers, in words."""
    differences = []
    for number, (before, now) in enumerate(zip(stored, answers, strict=True), start=1):
        for name in sorted(before.keys() | now.keys()):
            first = before.get(name)
            second = now.get(name)
            is_same = first == second
            if name == "logits":
                tolerance = SUMMARY_TOLERANCE * max(first["std"], 1e-6)
                is_same = all(abs(first[key] - second[key]) <= tolerance for key in second)
            if not is_same:
                differences.append(f"{name} of input {number} was {first} and is {second}")
    return differences
