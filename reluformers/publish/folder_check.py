"""Opens a folder as a stranger will, before strangers do."""

import json
import logging
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save

from reluformers.evaluation.examples import read_examples
from reluformers.files import check_text, read_json, write_json
from reluformers.saved_models import load_model, opening
from reluformers.tasks import Task, task_of_model_type
from reluformers.training.checkpoints import check_finite

from .card import CARD_FILE
from .card_check import check_card
from .clean_process import answer_in_clean_process
from .finished_run import read_results
from .release import CHECK_FILE, read_config, select_files

logger = logging.getLogger(__name__)

LOGIT_TOLERANCE = 1e-5
# of a summary of logits, in parts of their spread: other processors add up in another order
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


def check_folder(folder: str | Path) -> FolderCheck:
    """Make sure that a folder can be published: complete, with a valid card, and the same model for everybody.

    Args:
        folder: of a saved model with its README.md.

    Returns:
        What was found.

    Raises:
        ValueError: a file is missing, the card lacks something, or as `compare_in_clean_process`.
    """
    folder = Path(folder)
    if CARD_FILE not in select_files(folder):
        raise ValueError(f"{folder}: {CARD_FILE} is missing; write it with `reluformers card {folder} …`")
    task = task_of_model_type(read_config(folder)["model_type"])
    if (tag := check_card(folder / CARD_FILE).data.pipeline_tag) != task.name:
        raise ValueError(f"{folder / CARD_FILE}: pipeline_tag is {tag!r}, but the model is one for {task.name}")
    return compare_in_clean_process(folder, task)


def compare_in_clean_process(folder: Path, task: Task, renew: bool = False) -> FolderCheck:
    """Compare the installed classes, and the answers stored in a folder, with a process that has only the folder.

    Args:
        folder: of a saved model.
        task: what it does.
        renew: leave the stored answers out, which are to be written anew.

    Raises:
        ValueError: its weights are not finite, it does not open there, the logits differ by more than
            `LOGIT_TOLERANCE`, `generate` of the installed transformers does not give what the model computes, or the
            answers are not the stored ones.
    """
    stored = [] if renew else read_answers(folder)
    model = load_model(task.auto_class, folder, dtype=torch.float32)
    check_finite(model.state_dict(), folder)
    inputs = task.example_inputs(model.config)
    of_texts = "input_ids" in inputs
    if stored and (of_texts != ("text" in stored[0]) or not (of_texts or len(stored) == NUM_STORED)):
        raise ValueError(f"{folder / CHECK_FILE}: holds answers of another model; delete it")
    with torch.no_grad():
        inputs["logits"] = model(**inputs).logits.contiguous()
    if of_texts:
        texts = [answer["text"] for answer in stored] if stored else _texts(folder, inputs["input_ids"])
        inputs["texts"] = torch.tensor(list(json.dumps(texts).encode()), dtype=torch.uint8)
    try:
        answer = answer_in_clean_process("compare", folder, save(inputs))
    except RuntimeError as error:
        logger.debug("the clean process in full", exc_info=True)
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(f"{folder}: does not open where reluformers is not installed: {reason}") from error
    if not answer["difference"] <= LOGIT_TOLERANCE:  # also where it is not a number
        raise ValueError(
            f"{folder}: the code in it computes other logits than reluformers, by {answer['difference']:.1e}; "
            "load the model with reluformers and save it again"
        )
    if answer["generation_fault"]:
        fault = answer["generation_fault"]
        raise ValueError(f"{folder}: transformers {transformers.__version__} does not fit the code in it: {fault}")
    if stored and (differences := find_differences(stored, answer["answers"])):
        raise ValueError(
            f"{folder}: answers otherwise than {CHECK_FILE} says: {'; '.join(differences)}. If the model was changed "
            f"on purpose, renew the file with `reluformers check {folder} --write`"
        )
    return FolderCheck(task.name, answer["model_class"], answer["difference"], answer["answers"], bool(stored))


def _texts(folder: Path, tokens: torch.Tensor) -> list[str]:
    """Source texts for a translation model: examples of its run, or else what its tokenizer makes of tokens."""
    texts = [example["source"] for example in read_examples(read_results(folder), "source")][:NUM_STORED]
    if texts:
        return texts
    with opening(folder, "its tokenizer"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    rows = [*tokens, *tokens.flip(1)][:NUM_STORED]
    return [text for text in (tokenizer.decode(row, skip_special_tokens=True).strip() for row in rows) if text]


def read_answers(folder: Path) -> list[dict[str, Any]]:
    """The answers that a folder holds; none if it has no `CHECK_FILE`.

    Raises:
        ValueError: the file is not one of this version.
    """
    path = folder / CHECK_FILE
    if not path.is_file():
        return []
    try:
        content = read_json(path)
        if content["format_version"] != CHECK_VERSION:
            raise ValueError(f"format_version is {content['format_version']!r}, but must be {CHECK_VERSION}")
        answers = content["answers"]
        for answer in answers:
            numbers = [answer["logits"][name] for name in ("mean", "std", "max")]
            if not all(type(number) in (int, float) and isfinite(number) for number in numbers):
                raise ValueError(f"an answer is {answer!r:.200}")
            check_text(answer.get("text", ""), "text", "answers")
        if len(answers) > NUM_STORED or len({"text" in answer for answer in answers}) > 1:
            raise ValueError(f"there are {len(answers)} answers, of {NUM_STORED} inputs at most and of one kind")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: holds no stored answers ({type(error).__name__}: {error}); delete it") from error
    return answers


def write_answers(folder: Path, answers: list[dict[str, Any]]) -> None:
    """Store what a model answers, so that anybody can see later that it still does."""
    write_json(folder / CHECK_FILE, {"format_version": CHECK_VERSION, "answers": answers})


def find_differences(stored: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[str]:
    """What differs between two lists of answers, in words."""
    differences = []
    for number, (before, now) in enumerate(zip(stored, answers, strict=True), start=1):
        for name in sorted(before.keys() | now.keys()):
            first, second = before.get(name), now.get(name)
            if name == "logits":
                tolerance = SUMMARY_TOLERANCE * max(first["std"], 1e-6)
                is_same = all(abs(first[key] - second[key]) <= tolerance for key in second)
            else:
                is_same = first == second
            if not is_same:
                differences.append(f"{name} of input {number} was {first} and is {second}")
    return differences
