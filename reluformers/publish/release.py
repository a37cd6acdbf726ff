"""Chooses the files of a folder that make a release, and copies them without secrets and local paths."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files

from reluformers.data.names import is_hub_id
from reluformers.errors import describe_error
from reluformers.evaluation.examples import read_examples
from reluformers.evaluation.results import EVALUATION_FILE
from reluformers.families import config_class_of
from reluformers.files import parse_yaml, read_json, stamp, write_json
from reluformers.saved_code.payload import payload_names
from reluformers.saved_code.registry import auto_map, code_of, custom_pipelines
from reluformers.saved_models import INDEX, TOKENIZER_FILES, WEIGHTS, check_indices, check_no_adapter, read_index
from reluformers.tasks import task_of_model_type
from reluformers.training.recipe import to_yaml
from reluformers.training.run import LOG_FILE, RECIPE_FILE, RESULTS_FILE, UNFINISHED_MODEL
from reluformers.translation.tokenization import TARGET_FOLDER

from .card import CARD_FILE
from .card_check import check_card, pictures
from .leaks import BINARY, PICTURES, check_files
from .notebook import NOTEBOOK

HANDLER = "handler.py"
CHECK_FILE = "check.json"
# what a run writes about itself: paths in it become names
RECORDS = (RECIPE_FILE, LOG_FILE, RESULTS_FILE, EVALUATION_FILE)
# a tokenizer of SentencePiece files has no other one
_IN_PLACE_OF = {"tokenizer.json": "source.spm"}
# what transformers runs besides the code that config.json names; a release holds none of it
_RUN_TOO = ("custom_generate/generate.py",)
# what else belongs to a saved model and is taken if it is there
_OPTIONAL = (
    CHECK_FILE,
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    *TOKENIZER_FILES,
)
_TRAINERS_MARKS = (
    "\n- generated_from_trainer\n",
    "This is the model card of a 🤗 transformers model that has been pushed on the Hub.",
)
_LOCAL_VALUE = re.compile(r"(?:file://|~?/|\.\.?/|[A-Za-z]:[\\/]|\\\\)[^\n]+")
# in records, what names no place and is said word by word
_VERBATIM = ("examples", "classes")


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a finished model of this library.

    Raises:
        ValueError: there is none, or the folder is the checkpoint of a run or a run that has not ended.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    _check_finished(folder)
    check_no_adapter(folder)
    check_indices(folder)
    config = read_json(folder / "config.json")
    if task_of_model_type(config.get("model_type")) is None:
        raise ValueError(f"{folder}: model_type {config.get('model_type')!r} is none of reluformers' models")
    return config


def select_files(folder: Path) -> list[str]:
    """Names of the files that make a release; whatever is not listed here stays at home.

    Args:
        folder: of a saved model.

    Returns:
        Sorted paths within the folder, with README.md and the pictures it shows if there is one.

    Raises:
        ValueError: a file is missing, or the folder holds no finished model.
    """
    config = read_config(folder)
    required = task_of_model_type(config["model_type"]).required_files(config)
    required = [_IN_PLACE_OF[name] if _is_replaced(folder, name) else name for name in required]
    names = {"config.json", HANDLER, *required, *_weights(folder), *_code(folder, config)}
    for name in sorted(names):
        if not (folder / name).is_file():
            raise ValueError(f"{folder}: {name} is missing; load the model with reluformers and save it again")
    card = [] if is_made_by_trainer(folder / CARD_FILE) else [CARD_FILE]
    optional = [*_OPTIONAL, *RECORDS, *card, *(f"{TARGET_FOLDER}/{name}" for name in TOKENIZER_FILES)]
    names |= {name for name in optional if (folder / name).is_file()}
    return sorted(names | set(_card_files(folder)))


def _is_replaced(folder: Path, name: str) -> bool:
    return not (folder / name).is_file() and (folder / _IN_PLACE_OF.get(name, name)).is_file()


def is_made_by_trainer(card: Path) -> bool:
    """Whether a README.md is the one that transformers or its trainer writes, which says next to nothing."""
    try:
        text = card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False  # whoever reads it says what is wrong with it
    return any(mark in text for mark in _TRAINERS_MARKS)


def is_ours(name: str, *, is_released: bool = False) -> bool:
    """Whether a file of a repository is one that a release removes where it has it no more; never the owner's.

    Args:
        name: of the file.
        is_released: whether the repository has a release, whose records and notebook were of the weights before.
    """
    if is_released and name in (*RECORDS, NOTEBOOK, CHECK_FILE):
        return True
    in_target = name.removeprefix(f"{TARGET_FOLDER}/")
    is_weights = re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", name)
    return bool(is_weights) or in_target in TOKENIZER_FILES or name in payload_names()


def refuse_foreign_code(folder: Path, trust_code: bool, report: Callable[[str], None], shown_as: Path | str) -> None:
    """Let only the code of this library be run without being trusted by name.

    Args:
        folder: of a saved model.
        trust_code: whether the user trusts other code too.
        report: is told which files have other code.
        shown_as: how to call the folder.

    Raises:
        ValueError: there is other code, and it is not trusted.
    """
    if not (foreign := foreign_code(folder)):
        return
    differing = f"{shown_as}: {', '.join(foreign)}: not as this version of reluformers writes it"
    if not trust_code:
        raise ValueError(
            f"{differing}, and its code would be run; load the model with reluformers and save it again, or read the "
            "code and give --trust_code"
        )
    report(f"{differing}; run because you trust it")


def foreign_code(folder: Path) -> list[str]:
    """Files of a folder that bring other code than this library writes: code, what names some, and what is run too."""
    config = read_config(folder)
    family = config_class_of(config["model_type"])
    ours, classes, pipelines = code_of(family), auto_map(family), custom_pipelines(family)
    names = select_files(folder)
    foreign = [name for name in names if name.endswith(".py") and _read(folder / name) != ours.get(name)]
    named = {task: pipeline["impl"] for task, pipeline in (config.get("custom_pipelines") or {}).items()}
    if config["auto_map"] != classes or named != {task: pipeline["impl"] for task, pipeline in pipelines.items()}:
        foreign.append("config.json")
    foreign += [name for name in names if name.endswith("_config.json") and _names_code(folder / name)]
    return foreign + [name for name in _RUN_TOO if (folder / name).exists()]


def _names_code(path: Path) -> bool:
    """Whether a file of settings, of a tokenizer or an image processor, names code at any depth."""
    return '"auto_map": ' in json.dumps(read_json(path))


def stage_files(folder: Path, staging: Path) -> dict[Path, tuple[int, ...] | None]:
    """Bring the files of a release into an empty folder: weights and pictures as links, texts as clean copies.

    Args:
        folder: of a saved model.
        staging: where to.

    Returns:
        The links with the `stamp` that was checked: what is behind them may change until it is uploaded.

    Raises:
        ValueError: a file is missing, lies elsewhere, is not what its name says, holds a token or names a place of
            this machine.
    """
    names = select_files(folder)
    for name in names:
        _check_inside(folder, name)
    stamps = {}
    for name in names:
        source, target = folder / name, staging / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix.lower() in BINARY:
            target.symlink_to(source.resolve())
            stamps[target] = stamp(target)
        elif name in RECORDS:
            _copy_record(source, target)
        else:
            shutil.copyfile(source, target)
    check_files(staging, names, shown_as=folder)
    return stamps


def leave_out_examples(staging: Path) -> None:
    """Take the rows of the validation set that a run kept out of a staged release, and stored answers to them."""
    results, answers = staging / RESULTS_FILE, staging / CHECK_FILE
    content = read_json(results) if results.is_file() else {}
    texts = [json.dumps(example["source"], ensure_ascii=False) for example in read_examples(content, "source")]
    if content.pop("examples", None) is not None:
        write_json(results, content)
    if answers.is_file() and any(text in answers.read_text(encoding="utf-8") for text in texts):
        answers.unlink()  # others are written in its place


def _check_finished(folder: Path) -> None:
    """Refuse what a run has left or is writing."""
    checkpoint = re.fullmatch(r"checkpoint-\d+", folder.resolve().name) and (folder / "trainer_state.json").is_file()
    if checkpoint or any((folder / name).is_file() for name in ("optimizer.pt", "optimizer.bin")):
        raise ValueError(f"{folder}: is a checkpoint of a training run; push the folder of the finished run")
    has_checkpoints = any(folder.glob("checkpoint-*"))
    is_run = (folder / RECIPE_FILE).is_file() and not (folder / RESULTS_FILE).is_file()
    if (folder / UNFINISHED_MODEL).is_dir() or is_run or (has_checkpoints and not (folder / "config.json").is_file()):
        raise ValueError(f"{folder}: its training has not finished; wait for it, or go on with --resume")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder}: holds no model, it has no config.json")


def _check_inside(folder: Path, name: str) -> None:
    """Refuse a link out of the folder, behind which may be anything."""
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{folder / name}: is a link to a place outside of the folder; put the file itself there")


def _weights(folder: Path) -> list[str]:
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return [WEIGHTS]
    return [INDEX, *read_index(folder / INDEX)]


def _code(folder: Path, config: dict[str, Any]) -> list[str]:
    """The files that config.json names and what they import, as transformers follows it."""
    classes, pipelines = config.get("auto_map"), config.get("custom_pipelines") or {}
    needed = custom_pipelines(config_class_of(config["model_type"]))
    if not classes or not isinstance(pipelines, dict) or not needed.keys() <= pipelines.keys():
        raise ValueError(
            f"{folder}: config.json names no code, or no pipeline; load the model with reluformers and save it again"
        )
    try:
        entries = {*classes.values(), *(pipeline["impl"] for pipeline in pipelines.values())}
        modules = sorted(entry.rpartition("--")[2].partition(".")[0] for entry in entries)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder}: auto_map or custom_pipelines of config.json is not as transformers writes it; load the model "
            "with reluformers and save it again"
        ) from error
    names = []
    for module in dict.fromkeys(modules):
        if not module.isidentifier():
            raise ValueError(f"{folder}: config.json names {module!r}, which is no module in the folder")
        name = f"{module}.py"
        names.append(name)
        try:
            names += [Path(path).name for path in get_relative_import_files(folder / name)]
        except FileNotFoundError as error:
            names.append(Path(error.filename).name)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{folder}: {name}, or what it imports, is no UTF-8 text; save the model again"
            ) from error
    return names


def _card_files(folder: Path) -> Iterator[str]:
    """The pictures that the card shows, in the text or as a widget's example."""
    if not (folder / CARD_FILE).is_file() or is_made_by_trainer(folder / CARD_FILE):
        return
    card = check_card(folder / CARD_FILE)
    sources = [example.get("src", "") for example in card.data.get("widget") or []]
    for name in sorted({*pictures(card.text), *filter(None, sources)}):
        if "://" in name:
            continue
        if Path(name).suffix.lower() not in PICTURES or Path(name).is_absolute() or ".." in Path(name).parts:
            kinds = ", ".join(PICTURES)
            raise ValueError(f"{folder / CARD_FILE}: shows {name}, which is no picture ({kinds}) of the folder")
        yield name.removeprefix("./")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text ({error}); write it again") from error


def _copy_record(source: Path, target: Path) -> None:
    """Copy what a run says of itself, with names instead of paths."""
    text = _read(source)
    is_yaml = source.suffix == ".yaml"
    try:
        content = parse_yaml(text) if is_yaml else read_json(source, object)
    except ValueError as error:
        raise ValueError(f"{source}: cannot be read ({describe_error(error)}); write it again") from error
    reduced = _without_paths(content)
    if reduced != content:
        dump = to_yaml(reduced)
        text = dump if is_yaml else json.dumps(reduced, indent=1, ensure_ascii=False) + "\n"
    target.write_text(text, encoding="utf-8")


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: part if key in _VERBATIM else _without_paths(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_paths(part) for part in value]
    if isinstance(value, str) and _is_path(value):
        return re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    return value


def _is_path(value: str) -> bool:
    """Whether a value of a record is a path, absolute or relative, and not the id of something on the Hub."""
    if _LOCAL_VALUE.fullmatch(value):
        return True
    if not re.search(r"[\\/]", value) or "://" in value or is_hub_id(value):
        return False
    # a sentence may have a slash; a name with spaces and an ending is that of a file
    return not re.search(r"\s", value) or bool(re.fullmatch(r"[^\n]*\.\w{1,8}", value))
