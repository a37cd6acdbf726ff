"""Loads saved models, and says in one line what is wrong with those that cannot be."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file

from reluformers_kernels import is_quantized, quantize_int8

from .errors import describe_error
from .files import check_name, read_json

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
EXPORT_RECORD = "export.json"  # of a folder of `reluformers export`
DTYPES = ("float32", "bfloat16", "int8")  # that models compute in
INDEX = "model.safetensors.index.json"
_INDICES = (INDEX, "pytorch_model.bin.index.json")
_SHARD = re.compile(r"[\w-][\w.-]*\.(?:safetensors|bin)")
_DEPTHS = ("encoder_layers", "decoder_layers", "num_hidden_layers")
# A model may have more parameters than its files hold numbers, where these are packed, tied or for another head; what
# goes beyond both bounds would take memory that nothing fills.
_MOST_PER_STORED = 10
_FEW_PARAMETERS = 2**24

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

# of a folder that opens as a model: what it is opened with, and what says how it came about
_FILES = (
    *TOKENIZER_FILES,
    *("*config.json", "*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.py", "*.onnx*"),
    *("vocab.txt", "manifest.json", "recipe.yaml", "results.json", "log_history.json", "check.json", EXPORT_RECORD),
)


def model_files(name_or_path: str | Path | None) -> list[Path]:
    """Files of a saved model that a command which reads it must not write over; none of a Hub id."""
    if name_or_path is None or not Path(name_or_path).is_dir():
        return []
    paths = [path for path in Path(name_or_path).rglob("*") if path.is_file()]
    return [path for path in paths if any(fnmatchcase(path.name, pattern) for pattern in _FILES)]


def load_config(name_or_path: str | Path, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Load the configuration of a saved model.

    Args:
        name_or_path: folder of a saved model, or a Hub id.
        trust_remote_code: whether to run code of the repository, for models that are not in this library.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    path = _checked_place(name_or_path)
    what = "its config.json" if path.exists() else "there is no such folder, and as a Hub model it"
    with opening(name_or_path, what):
        return AutoConfig.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)


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
        ValueError: the folder or its weights are missing or damaged, or do not fit each other.
    """
    path = _checked_place(name_or_path)
    what = "the model" if path.exists() else "there is no such folder, and as a Hub model it"
    if path.exists():
        if (path / EXPORT_RECORD).is_file():
            raise ValueError(
                f"{name_or_path}: holds graphs of `reluformers export`, which `reluformers translate --runtime onnx` "
                "and `reluformers serve` run"
            )
        config = load_config(name_or_path, trust_remote_code=trust_remote_code)
        if not can_open(auto_class, config):
            raise ValueError(
                f"{name_or_path}: is a model of type {config.model_type!r}, which {auto_class.__name__} does not open"
            )
        with opening(name_or_path, what):
            _check_stored_size(auto_class, config, path)
    with opening(name_or_path, what):
        check_no_adapter(name_or_path, kwargs.get("revision"))
        model, info = auto_class.from_pretrained(
            name_or_path,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, in one line
            **kwargs,
        )
    check_weights(name_or_path, info)
    model.config.return_dict = True  # outputs are read by their names here
    return model.eval()


def to_accelerator(model: PreTrainedModel) -> PreTrainedModel:
    """Move a model to the accelerator, if there is one."""
    return model.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")


def set_precision(model: PreTrainedModel, dtype: str | None) -> PreTrainedModel:
    """Let a model compute in one of `DTYPES`, in place.

    None is what it was loaded in, and int8 for weights of torchao on a CPU.

    Raises:
        ValueError: the name is none of them, int8 is asked for off the CPU, a model in int8 for another, or graphs of
            ONNX for any.
    """
    if dtype not in (None, *DTYPES):
        raise ValueError(f"dtype is {dtype!r}, but must be one of {', '.join(DTYPES)}")
    if dtype is not None and next(model.parameters(), None) is None:
        raise ValueError(f"dtype is {dtype!r}, but graphs of ONNX compute in what they were exported in: leave it out")
    if dtype == "int8" and model.device.type != "cpu":
        raise ValueError(f"dtype int8 is for CPUs, but the model is on {model.device}: take bfloat16 there")
    is_int8 = is_quantized(model)
    if is_int8 and dtype not in (None, "int8"):
        raise ValueError(f"the model is saved in int8, and cannot compute in {dtype}")
    if dtype == "int8" or (is_int8 and model.device.type == "cpu"):
        return quantize_int8(model.float() if not is_int8 else model)
    return model if dtype is None else model.to(getattr(torch, dtype))


@contextmanager
def opening(place: str | Path, what: str) -> Iterator[None]:
    """Say in one line, with the place, why something of a saved model cannot be loaded.

    Args:
        place: folder or Hub id.
        what: is loaded in the block.

    Raises:
        ValueError: in place of any error: on broken files, each library has errors of its own.
    """
    try:
        yield
    except ValueError as error:
        raise error if str(place) in str(error) else ValueError(f"{place}: {error}") from error
    except SafetensorError as error:
        raise ValueError(f"{place}: a file of weights is damaged or cut short ({error}); copy it again.") from error
    except Exception as error:
        says_all = isinstance(error, OSError | ValueError | RuntimeError | ImportError)
        reason = describe_error(error) if says_all else f"{type(error).__name__}: {describe_error(error)}"
        raise ValueError(f"{place}: {what} cannot be loaded: {reason}") from error


def read_index(index: str | Path) -> list[str]:
    """Names of the files that an index of weights names, all of them in its folder.

    A file there may be a link, as in the Hub's cache or to a bigger disk; a push takes none that leads elsewhere.

    Raises:
        ValueError: it is none, or names something elsewhere.
    """
    index = Path(index)
    content = read_json(index)
    names, metadata = content.get("weight_map"), content.get("metadata", {})
    if not isinstance(names, dict) or not names or not isinstance(metadata, dict):
        raise ValueError(f"{index}: is no index of weights; save the model again")
    for name in names.values():
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise ValueError(f"{index}: names {name!r}, which is no file of weights in the folder")
    return sorted(set(names.values()))


def check_no_adapter(place: str | Path, revision: str | None = None) -> None:
    """Refuse an adapter of PEFT: transformers would open the model that it names, which may be anybody's.

    Args:
        place: folder or Hub id.
        revision: of a Hub id.

    Raises:
        ValueError: there is one.
    """
    if find_adapter_config_file(str(place), revision=revision):
        raise ValueError(
            f"{place}: holds an adapter, adapter_config.json, and not a model alone; merge it into its model by "
            "`merge_and_unload` of PEFT, and save that into another folder."
        )


def check_indices(folder: str | Path) -> None:
    """Refuse a folder with an index of weights that `read_index` refuses, or with the weights of two models."""
    for index in (Path(folder, name) for name in _INDICES):
        if not index.is_file():
            continue
        whole = index.with_name(index.name.removesuffix(".index.json"))
        # parts saved over a whole file leave it, and transformers would read that
        if all((index.parent / name).is_file() for name in read_index(index)) and whole.is_file():
            raise ValueError(
                f"{folder}: holds weights twice, in {whole.name} and by {index.name}; delete the older ones"
            )


def check_size(
    place: str | Path, config: PreTrainedConfig, build: Callable[[], torch.nn.Module], stored: Iterable[int]
) -> None:
    """Refuse a configuration of a far bigger model than its weights are, before it takes memory and time.

    Args:
        place: of the model, for errors.
        config: of the model.
        build: makes it, here without memory.
        stored: numbers in each of the stored tensors.

    Raises:
        ValueError: there are fewer tensors than layers, or far fewer numbers than parameters.
    """
    stored = list(stored)
    for name in _DEPTHS:
        if (depth := getattr(config, name, 0) or 0) > len(stored):
            raise ValueError(f"{place}: {name} of config.json is {depth}, but the weights are {len(stored)} tensors.")
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in build().parameters())
    if count > max(_MOST_PER_STORED * sum(stored), _FEW_PARAMETERS):
        raise ValueError(
            f"{place}: by config.json the model has {count} parameters, but the weights hold {sum(stored)} numbers."
        )


def _check_stored_size(auto_class: type, config: PreTrainedConfig, folder: Path) -> None:
    """`check_size` by the headers of safetensors, of models whose code is installed."""
    is_whole, is_split = (folder / WEIGHTS).is_file(), (folder / INDEX).is_file()
    files = [WEIGHTS] if is_whole else read_index(folder / INDEX) if is_split else []
    if not files or type(config) not in auto_class._model_mapping:
        return
    stored = []
    for file in files:
        with safe_open(folder / file, framework="pt") as tensors:
            stored += [prod(tensors.get_slice(name).get_shape()) for name in tensors.keys()]  # noqa: SIM118 (no dict)
    check_size(folder, config, lambda: auto_class.from_config(config), stored)


def _checked_place(name_or_path: str | Path) -> Path:
    """The path, unless it can only be that of a folder and is none of a model."""
    path = Path(check_name(name_or_path))
    if path.exists():
        check_no_adapter(path)
    if path.exists() and not (path / "config.json").is_file():
        raise ValueError(f"{path}: is not the folder of a saved model, it has no config.json.")
    if not path.exists() and (path.is_absolute() or str(name_or_path).startswith(".")):
        raise ValueError(f"{name_or_path}: no such folder.")
    check_indices(path)
    return path


def check_weights(name_or_path: str | Path, info: dict) -> None:
    """Refuse a model of which some weights were made up while loading, by what `from_pretrained` says of that."""
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"{name_or_path}: the weights lack {len(missing)} tensors, for example {missing[0]}.")
    if mismatched := sorted(info["mismatched_keys"]):
        key, stored, wanted = mismatched[0]
        raise ValueError(
            f"{name_or_path}: {len(mismatched)} weights do not fit config.json, for example {key} has the shape "
            f"{list(stored)} instead of {list(wanted)}."
        )
    if unused := sorted(info["unexpected_keys"]):
        logger.warning(
            "%s: the model does not use %d of the weights, such as %s", name_or_path, len(unused), unused[0]
        )
