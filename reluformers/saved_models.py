"""Loads saved models, and says in one line what is wrong with those that cannot be."""

import logging
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from .errors import UserError, describe_error
from .files import check_name

logger = logging.getLogger(__name__)

# what tokenizers of all kinds save
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "sentencepiece.bpe.model",
)


def load_config(name_or_path: str | Path, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Load the configuration of a saved model.

    Args:
        name_or_path: folder of a saved model, or a Hub id.
        trust_remote_code: whether to run code of the repository, for models that are not in this library.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    path = _checked_place(name_or_path)
    what = "its config.json" if path.exists() else "there is no such folder, and as a Hub model it"
    try:
        return AutoConfig.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(f"{name_or_path}: {what} cannot be loaded: {describe_error(error)}") from error


def can_open(auto_class: type, config: PreTrainedConfig) -> bool:
    """Whether an auto class, such as `AutoModelForSeq2SeqLM`, opens models of a configuration, maybe by their code."""
    remote = getattr(config, "auto_map", None) or {}
    return auto_class.__name__ in remote or type(config) in auto_class._model_mapping


def load_model(
    auto_class: type, name_or_path: str | Path, *, trust_remote_code: bool = False, **kwargs
) -> PreTrainedModel:
    """Load a model with all of its weights.

    Args:
        auto_class: such as `AutoModelForSeq2SeqLM`.
        name_or_path: folder of a saved model, or a Hub id.
        trust_remote_code: whether to run code of the repository, for models that are not in this library.
        kwargs: passed to `from_pretrained` (dtype, revision, …).

    Returns:
        The model in evaluation mode.

    Raises:
        UserError: the folder or its weights are missing or damaged, or do not fit each other.
    """
    path = _checked_place(name_or_path)
    what = "the model" if path.exists() else "there is no such folder, and as a Hub model it"
    try:
        model, info = auto_class.from_pretrained(
            name_or_path,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, in one line
            **kwargs,
        )
    except SafetensorError as error:
        raise UserError(
            f"{name_or_path}: a file of weights is damaged or cut short ({error}); copy it again."
        ) from error
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"{name_or_path}: {what} cannot be loaded: {describe_error(error)}") from error
    _check_weights(name_or_path, info)
    return model.eval()


def _checked_place(name_or_path: str | Path) -> Path:
    """The path, unless it can only be that of a folder and is none of a model."""
    path = Path(check_name(name_or_path))
    if path.exists() and not (path / "config.json").is_file():
        raise UserError(f"{path}: is not the folder of a saved model, it has no config.json.")
    if not path.exists() and (path.is_absolute() or str(name_or_path).startswith(".")):
        raise UserError(f"{name_or_path}: no such folder.")
    return path


def _check_weights(name_or_path: str | Path, info: dict) -> None:
    """Refuse a model of which some weights were made up while loading."""
    if missing := sorted(info["missing_keys"]):
        raise UserError(f"{name_or_path}: the weights lack {len(missing)} tensors, for example {missing[0]}.")
    if mismatched := sorted(info["mismatched_keys"]):
        key, stored, wanted = mismatched[0]
        raise UserError(
            f"{name_or_path}: {len(mismatched)} weights do not fit config.json, for example {key} has the shape "
            f"{list(stored)} instead of {list(wanted)}."
        )
    if unused := sorted(info["unexpected_keys"]):
        logger.warning(
            "%s: the model does not use %d of the weights, such as %s", name_or_path, len(unused), unused[0]
        )
