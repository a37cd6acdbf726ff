"""Chooses the files of a folder that make a release, and copies them with names in place of local paths."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_import_files

from reluformers.data.names import is_hub_id
from reluformers.evaluation.results import EVALUATION_FILE
from reluformers.families import config_class_of
from reluformers.files import read_json, write_json
from reluformers.saved_code.payload import payload_names
from reluformers.saved_code.registry import auto_map, code_of, custom_pipelines
from reluformers.saved_models import INDEX, RESULTS_FILE, TOKENIZER_FILES, WEIGHTS
from reluformers.tasks import task_of_model_type
from reluformers.training.run_files import LOG_FILE, RECIPE_FILE, UNFINISHED_MODEL
from reluformers.training.yaml_files import read_yaml, to_yaml
from reluformers.translation.tokenization import TARGET_FOLDER

from .card import CARD_FILE

CHECK_FILE = "check.json"
PICTURES = (".png", ".jpg", ".jpeg")
# A run writes these about itself; paths in them become names.
RECORDS = (RECIPE_FILE, LOG_FILE, RESULTS_FILE, EVALUATION_FILE)
# Values of these keys are no paths and stay as they are.
_VERBATIM = ("examples", "classes")
_SHARDS = "model-*-of-*.safetensors"
_TOKENIZERS = (*TOKENIZER_FILES, *(f"{TARGET_FOLDER}/{name}" for name in TOKENIZER_FILES))
# Beside code and pictures, a release holds these files alone.
_ALLOWED = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    *(WEIGHTS, INDEX, _SHARDS),
    *_TOKENIZERS,
    *RECORDS,
    CHECK_FILE,
    CARD_FILE,
)
# A release removes these files of the one before, which may have a notebook. All other files are the owner's.
REMOVED = (WEIGHTS, INDEX, _SHARDS, *_TOKENIZERS, *RECORDS, CHECK_FILE, "notebook.ipynb", *payload_names())
_TRAINERS_MARKS = (
    "\n- generated_from_trainer\n",
    "This is the model card of a 🤗 transformers model that has been pushed on the Hub.",
)
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_\w{36,}|github_pat_\w{36,}|glpat-[\w-]{20,}|A[KS]IA[A-Z2-7]{16}\b"
    r"|sk-(?=[\w-]*\d)[\w-]{32,}|AIza[\w-]{35}|xox[abeoprs]-[\w-]{20,}|npm_\w{36}|pypi-AgE[\w-]{50,})"
    r"|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY"
)


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json; a ValueError where the model is not of this library, or its training has not ended."""
    is_run = (folder / RECIPE_FILE).is_file() and not (folder / RESULTS_FILE).is_file()
    if is_run or (folder / UNFINISHED_MODEL).is_dir():
        raise ValueError(f"{folder}: its training has not finished; wait for it, or go on with --resume")
    config = read_json(folder / "config.json")
    task_of_model_type(config.get("model_type"))  # It refuses models that are not of this library.
    return config


class SavedModel(NamedTuple):
    """A saved model's folder, read once.

    Args:
        path: of the folder.
        config: content of config.json.
        files: what makes a release, sorted paths within the folder; all others stay at home.
    """

    path: Path
    config: dict[str, Any]
    files: list[str]

    @property
    def family(self) -> type[PreTrainedConfig]:
        """Its configuration class."""
        return config_class_of(self.config["model_type"])


def read_saved_model(folder: Path) -> SavedModel:
    """Read config.json and choose the files of a release; raises what `read_config` raises."""
    config = read_config(folder)
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = {name for name in files if any(fnmatchcase(name, pattern) for pattern in _ALLOWED)}
    card = (folder / CARD_FILE).read_text(encoding="utf-8") if CARD_FILE in names else ""
    if any(mark in card for mark in _TRAINERS_MARKS):
        names.remove(CARD_FILE)
    else:  # The card shows these pictures, in its text or as examples of the widget.
        names |= {path.name for path in folder.iterdir() if path.suffix.lower() in PICTURES and path.name in card}
    code = {*code_of(config_class_of(config["model_type"])), *_named_code(folder, config)}
    return SavedModel(folder, config, sorted(names | code))


def _named_code(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """The files that config.json names and what they import, as transformers follows it."""
    entries = [*(config.get("auto_map") or {}).values(), *_implementations(config).values()]
    for module in {entry.rpartition("--")[2].partition(".")[0] for entry in entries}:
        yield f"{module}.py"
        if (folder / f"{module}.py").is_file():
            yield from (Path(path).name for path in get_relative_import_files(folder / f"{module}.py"))


def _implementations(config: dict[str, Any]) -> dict[str, str]:
    return {task: pipeline["impl"] for task, pipeline in (config.get("custom_pipelines") or {}).items()}


def stage_files(saved: SavedModel, staging: Path, held_out: bool = True) -> SavedModel:
    """Bring the files of a release into an empty folder, which is returned: weights as links, others as copies.

    Args:
        saved: the model.
        staging: where to.
        held_out: whether the rows of the validation set that results.json holds go with it.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: one is a link out of the folder, behind which may be anything.
    """
    for name in saved.files:
        source = saved.path / name
        target = staging / name
        if not source.resolve().is_relative_to(saved.path.resolve()):
            raise ValueError(f"{source}: is a link to a path outside of the folder; put the file itself there")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".safetensors":
            try:
                target.symlink_to(source.resolve(strict=True))
            except OSError:  # Windows lets few users make links.
                shutil.copyfile(source, target)
        elif name in RECORDS:
            _copy_record(source, target)
        else:
            shutil.copyfile(source, target)
    if not held_out:
        _leave_out_examples(staging / RESULTS_FILE, staging / CHECK_FILE)
    return saved._replace(path=staging)


def _leave_out_examples(results: Path, answers: Path) -> None:
    """Take rows of the validation set out of a staged release, and stored answers to them."""
    content = read_json(results) if results.is_file() else {}
    if content.pop("examples", None) is not None:
        write_json(results, content)
        answers.unlink(missing_ok=True)  # `push` writes new answers.


def _copy_record(source: Path, target: Path) -> None:
    """Copy what a run says of itself, with names instead of paths."""
    if source.suffix == ".yaml":
        target.write_text(to_yaml(_without_paths(read_yaml(source))), encoding="utf-8")
    else:
        write_json(target, _without_paths(read_json(source)))


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: part if key in _VERBATIM else _without_paths(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_paths(part) for part in value]
    is_path = isinstance(value, str) and re.search(r"[\\/]", value) and "\n" not in value
    # A relative path with spaces may be a sentence with a slash in it, so it stays.
    if not is_path or is_hub_id(value) or re.match(r"(?!file:)\w+://", value) or re.match(r"[^/.~\\:]*\s", value):
        return value
    return re.split(r"[\\/]", value.rstrip("\\/"))[-1]


def refuse_tokens(staging: Path) -> None:
    """Refuse text files with a key or token of a well-known form; the ValueError names the file, and no token."""
    for path in sorted(path for path in staging.rglob("*") if path.is_file() and path.suffix != ".safetensors"):
        if _TOKEN.search(path.read_text(encoding="utf-8", errors="replace")):
            raise ValueError(f"{path}: holds a key or token; take it out, and revoke it if others saw it")


def refuse_foreign_code(
    saved: SavedModel, trust_code: bool, report: Callable[[str], None], shown_as: Path | str
) -> None:
    """Let only the code of this library be run without being trusted by name; other code is reported or refused."""
    foreign = foreign_code(saved)
    if not foreign:
        return
    differing = f"{shown_as}: {', '.join(foreign)}: not as this version of reluformers writes it"
    if not trust_code:
        raise ValueError(
            f"{differing}, and its code would be run; load the model with reluformers and save it again, or read the "
            "code and give --trust_code"
        )
    report(f"{differing}; run because you trust it")


def foreign_code(saved: SavedModel) -> list[str]:
    """List the files of a folder that bring other code than this library writes, be it that they name some."""
    folder, config, names = saved
    ours = code_of(saved.family)
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in names if name.endswith(".py")}
    foreign = [name for name, text in texts.items() if text != ours.get(name)]
    expected = {"custom_pipelines": custom_pipelines(saved.family)}
    if config.get("auto_map") != auto_map(saved.family) or _implementations(config) != _implementations(expected):
        foreign.append("config.json")
    settings = [name for name in names if name.endswith("_config.json")]
    # Written anew by json.dumps, the key is seen at any depth and however its letters were escaped.
    foreign += [name for name in settings if '"auto_map": ' in json.dumps(read_json(folder / name))]
    if (folder / "custom_generate/generate.py").exists():
        foreign.append("custom_generate/generate.py")
    return foreign
