"""Loads saved models whole, or not at all."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard
from safetensors import safe_open
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import CONFIG_NAME, cached_file, find_adapter_config_file

from reluformers_kernels import is_quantized, quantize_int8

from .files import read_json

logger = logging.getLogger(__name__)

CARD_FILE = "README.md"
WEIGHTS = "model.safetensors"
RESULTS_FILE = "results.json"  # Training writes it beside its model.
EXPORT_RECORD = "export.json"  # `reluformers export` writes it into its folder.
DTYPES = ("float32", "bfloat16", "int8")  # Models can compute in these.
INDEX = "model.safetensors.index.json"
_INDICES = (INDEX, "pytorch_model.bin.index.json")
# Fields that count layers, and what the names of these layers' weights begin with.
_LAYERS = {
    "encoder_layers": r"(?:model\.)?encoder\.layers",
    "decoder_layers": r"(?:model\.)?decoder\.layers",
    "num_hidden_layers": r"(?:(?:vit|model)\.)?layers",
}

# Tokenizers of all kinds save these files.
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


def model_files(name_or_path: str | Path) -> list[Path]:
    """Files of a saved model, which no result may replace; none of a Hub id."""
    patterns = (*TOKENIZER_FILES, "*config.json", "*.safetensors*", "*.bin*", "*.onnx*", "*.py")
    return [path for pattern in patterns for path in Path(name_or_path).rglob(pattern)]


def load_config(name_or_path: str | Path, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Load the configuration of a saved model.

    Args:
        name_or_path: folder of a saved model, or a Hub id.
        trust_remote_code: whether to run code of the repository, for models that are not in this library.
    """
    check_is_one_model(name_or_path)
    return AutoConfig.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)


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
        ValueError: the weights do not fit the configuration, or are not finite.
    """
    check_is_one_model(name_or_path, kwargs.get("revision"))
    model, info = auto_class.from_pretrained(
        name_or_path,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # `check_weights` reports them in one line.
        **kwargs,
    )
    check_weights(name_or_path, model, info)
    model.config.return_dict = True  # This library reads outputs by their names.
    return model.eval()


def to_accelerator(model: PreTrainedModel) -> PreTrainedModel:
    """Move a model to the accelerator, if there is one."""
    return model.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")


def set_precision(model: PreTrainedModel, dtype: str | None) -> PreTrainedModel:
    """Let a model compute in one of `DTYPES`, in place.

    None is what it was loaded in, and int8 for weights of torchao on a CPU.

    Raises:
        ValueError: int8 is asked for off the CPU, a model in int8 for another, or graphs of ONNX for any.
    """
    if dtype is not None and next(model.parameters(), None) is None:
        raise ValueError(f"dtype is {dtype!r}, but graphs of ONNX compute in what they were exported in: leave it out")
    is_int8 = is_quantized(model)
    if is_int8 and dtype not in (None, "int8"):
        raise ValueError(f"the model is saved in int8, and cannot compute in {dtype}")
    if dtype == "int8" or (is_int8 and model.device.type == "cpu"):
        return quantize_int8(model.float() if not is_int8 else model)
    if dtype is None:
        return model
    return model.to(getattr(torch, dtype))


def read_index(index: str | Path) -> list[str]:
    """Read the names of the files that an index of weights names."""
    return sorted(set(read_json(index)["weight_map"].values()))


def check_is_one_model(name_or_path: str | Path, revision: str | None = None) -> None:
    """Refuse an adapter of PEFT, and a folder with the weights of two models, or of one with fewer layers.

    With an adapter, transformers would open the model that it names, which may be anybody's. Parts that were saved
    over a whole file leave it, and that is read.

    Args:
        name_or_path: folder or Hub id.
        revision: of a Hub id.
    """
    if find_adapter_config_file(str(name_or_path), revision=revision):
        raise ValueError(
            f"{name_or_path}: holds an adapter, adapter_config.json: save its model by PEFT's merge_and_unload"
        )
    for index in (Path(name_or_path, name) for name in _INDICES):
        whole = index.with_name(index.name.removesuffix(".index.json"))
        if index.is_file() and whole.is_file() and all((index.parent / name).is_file() for name in read_index(index)):
            raise ValueError(
                f"{name_or_path}: holds weights twice, in {whole.name} and by {index.name}; delete the older"
            )
    _check_depth(Path(name_or_path))


def _check_depth(folder: Path) -> None:
    """Refuse more layers than the weights have: building these before would take minutes and gigabytes."""
    if not (folder / CONFIG_NAME).is_file() or not (names := _names_of_weights(folder)):
        return
    config = read_json(folder / CONFIG_NAME)
    for field, layers in _LAYERS.items():
        numbers = [int(match[1]) for name in names if (match := re.match(rf"{layers}\.(\d+)\.", name))]
        wanted = config.get(field)
        if numbers and isinstance(wanted, int) and wanted > max(numbers) + 1:
            raise ValueError(f"{folder}: {field} is {wanted}, but there are weights of {max(numbers) + 1} layers")


def _names_of_weights(folder: Path) -> list[str]:
    """Read the names of a folder's weights in safetensors; none if it has no such file."""
    if (folder / WEIGHTS).is_file():
        with safe_open(folder / WEIGHTS, "pt") as file:
            return list(file.keys())
    if (folder / INDEX).is_file():
        return list(read_json(folder / INDEX)["weight_map"])
    return []


def check_weights(name_or_path: str | Path, model: PreTrainedModel, info: dict) -> None:
    """Refuse a model of which some weights were made up while loading, or are not finite.

    Args:
        name_or_path: folder or Hub id, for the error.
        model: as it was loaded.
        info: what `from_pretrained` says of the loading.
    """
    wrong = [f"lack {name}" for name in sorted(info["missing_keys"])]
    wrong += [
        f"have {name} of shape {[*own]}, not {[*wanted]}" for name, own, wanted in sorted(info["mismatched_keys"])
    ]
    if wrong:
        raise ValueError(f"{name_or_path}: the weights {wrong[0]}; of {len(wrong)} tensors that do not fit")
    if unused := sorted(info["unexpected_keys"]):
        logger.warning(
            "%s: the model does not use %d of the weights, such as %s", name_or_path, len(unused), unused[0]
        )
    check_finite(model.state_dict(), name_or_path)


def check_finite(weights: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise a ValueError for the first weights, by name, that are not finite; it names where they come from.

    With them a model answers nonsense, or nothing at all, without an error.
    """
    for name, weight in weights.items():
        # A weight that is quantised has its numbers in several tensors.
        is_wrapper = is_traceable_wrapper_subclass(weight)
        parts = [getattr(weight, part) for part in weight.__tensor_flatten__()[0]] if is_wrapper else [weight]
        for part in parts:
            # NaN passes through `aminmax`, which reads weights much faster than `isfinite` does.
            if part.numel() and part.dtype.itemsize > 1 and not torch.stack(part.aminmax()).isfinite().all():
                raise ValueError(f"{source}: {name} holds weights that are not finite")


def read_results(folder: str | Path) -> dict[str, Any]:
    """Content of the `results.json` of a folder; empty if there is no such file."""
    path = Path(folder, RESULTS_FILE)
    return read_json(path) if path.is_file() else {}


def card_metadata(name_or_path: str) -> dict[str, Any]:
    """Metadata of the README.md of a source, as far as there are any."""
    try:
        card = cached_file(name_or_path, CARD_FILE, _raise_exceptions_for_missing_entries=False)
        if card:
            return ModelCard.load(card, ignore_metadata_errors=True).data.to_dict()
        return {}
    except Exception:  # Somebody else wrote this file, and it may be damaged.
        return {}
