"""What an export has to know of each task: one record each.

Not in `reluformers.tasks`, as it needs the packages of the extra `onnx`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers import ImageClassificationPipeline, Pipeline, PreTrainedConfig, PreTrainedModel

# It is imported from its module: some supported versions ask for torchvision behind the short name.
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from reluformers.conversion.sources import SOURCES
from reluformers.images import onnx_model as images
from reluformers.images.scoring import load_image_model
from reluformers.modeling.pipeline_translation import TranslationPipeline
from reluformers.onnx.sessions import OnnxModel
from reluformers.translation import onnx_graphs, onnx_runtime
from reluformers.translation.decoding import ONE_BEST, saved_languages
from reluformers.translation.tokenization import load_tokenizers, save_tokenizers

_ALIGNMENT = ("layer", "head", "shifted")


@dataclass(frozen=True)
class Exporter:
    """How models of a task are exported, opened again and compared.

    Args:
        graphs: exports a model, as `onnx_graphs.export_translation_graphs` does.
        save_companions: writes what a model needs beside configuration and graphs, from a folder or Hub id to another
            folder.
        runner: class that opens the folder.
        languages: of a model, the source's and the target's, where it says them.
        has_image_examples: whether the inputs that a model is shown with are files of images.
        pipeline: opens the folder, in one of its precisions or the finest, as a pipeline of transformers.
        searches: name → options of the scorer by which answers are compared.
        tokens: answers of a model to the task's example inputs by those searches, to compare without data.
        differing: number of rows of which two answers of a scorer differ.
    """

    graphs: Callable[..., Any]
    save_companions: Callable[[str | Path, Path], None]
    runner: type[OnnxModel]
    languages: Callable[[str | Path], Sequence[str | None]]
    has_image_examples: bool
    pipeline: Callable[[str | Path, str | None], Pipeline]
    searches: Mapping[str, Mapping[str, Any]]
    tokens: Callable[[PreTrainedModel, Mapping[str, Tensor]], list[Tensor]]
    differing: Callable[[Any, Any], int]


def stock_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """A stock configuration of the same sizes, tokens and classes: transformers.js does not know our types."""
    is_translation = hasattr(config, "d_model")
    source = SOURCES["marian" if is_translation else "vit"]
    names = (*source.copied, "decoder_vocab_size", "patch_size", *(f"alignment_{name}" for name in _ALIGNMENT))
    fields = {name: getattr(config, name) for name in names if getattr(config, name, None) is not None}
    if is_translation:  # Marian's configuration would force token 0 at the end of a longest answer; ours does not.
        fields["forced_eos_token_id"] = None
    return source.config_class(**fields, architectures=[source.architecture])


def _search_tokens(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    given = {name: inputs[name] for name in ("input_ids", "attention_mask")} | ONE_BEST
    length = min(24, model.config.max_position_embeddings)
    return [model.generate(**given, **search, max_length=length) for search in TRANSLATION.searches.values()]


def _translation_pipeline(folder: str | Path, precision: str | None) -> Pipeline:
    model, tokenizers = onnx_runtime.load_onnx_translator(folder, precision)
    return TranslationPipeline(model, *tokenizers)


def _image_pipeline(folder: str | Path, precision: str | None) -> Pipeline:
    model = images.OnnxClassifier.from_folder(folder, precision)
    return _OnnxImages(model=model, image_processor=AutoImageProcessor.from_pretrained(folder))


class _OnnxImages(ImageClassificationPipeline):
    def check_model_type(self, supported_models: Any) -> None:
        """Pass over the list of models of transformers, which is of those in PyTorch."""


TRANSLATION = Exporter(
    graphs=onnx_graphs.export_translation_graphs,
    save_companions=lambda model, folder: save_tokenizers(folder, *load_tokenizers(model)),
    runner=onnx_runtime.OnnxTranslator,
    languages=saved_languages,
    has_image_examples=False,
    pipeline=_translation_pipeline,
    searches={"greedy": {"num_beams": 1}, "5 beams": {"num_beams": 5}},
    tokens=_search_tokens,
    differing=lambda one, other: sum(a != b for a, b in zip(one, other, strict=True)),
)
IMAGES = Exporter(
    graphs=images.export_image_graphs,
    save_companions=lambda model, folder: load_image_model(model)[1].save_pretrained(folder),
    runner=images.OnnxClassifier,
    languages=lambda model: (),
    has_image_examples=True,
    pipeline=_image_pipeline,
    searches={"class": {}},
    tokens=lambda model, inputs: [model(**inputs).logits.argmax(-1)],
    differing=lambda one, other: int((one.top[:, 0] != other.top[:, 0]).sum()),
)
EXPORTERS = {"translation": TRANSLATION, "image-classification": IMAGES}


def differing_rows(one: Tensor, other: Tensor) -> int:
    """Number of rows of which two tensors differ, in their lengths too."""
    one, other = (tensor.reshape(len(tensor), -1) for tensor in (one, other))
    width = max(one.shape[1], other.shape[1])
    one, other = (functional.pad(tensor, (0, width - tensor.shape[1]), value=-1) for tensor in (one, other))
    return int((one != other).any(-1).sum())
