"""What a model card says of an image classifier."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError
from transformers import PreTrainedConfig, pipeline

from reluformers.errors import UserError
from reluformers.examples import Example
from reluformers.files import atomic_write

from .scoring import load_image_model

LARGEST_SIDE = 512
SHOWN_CLASSES = 5


def template_values(config: PreTrainedConfig, languages: Sequence[str]) -> dict[str, Any]:
    """What the card's template asks for beside what it asks of every model.

    Args:
        config: of the model.
        languages: none.
    """
    return {
        "classes": [config.id2label[label] for label in range(config.num_labels)],
        "image_size": _size_text(config.image_size),
    }


def describe_shape(config: PreTrainedConfig) -> str:
    """Sizes of the model in a line."""
    return (
        f"{_size_text(config.image_size)} pixels, patches of {_size_text(config.patch_size)}, "
        f"width {config.hidden_size}, {config.num_hidden_layers} layers, {config.num_attention_heads} heads, "
        f"MLP {config.intermediate_size}, {config.norm_position}-norm, pooling {config.pooling}"
    )


def describe_inputs(config: PreTrainedConfig, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the card's training table on what goes into the model: none beside the shape."""
    return {}


def _size_text(size: int | Sequence[int]) -> str:
    """Height and width of images or patches."""
    height, width = (size, size) if isinstance(size, int) else size
    return f"{height} × {width}"


def answer_examples(folder: str | Path, inputs: Sequence[str | Path], output: str | Path) -> list[Example]:
    """Classify pictures, and keep them as PNG beside the card.

    Args:
        folder: of the model.
        inputs: files that Pillow opens.
        output: where the card goes; gets `example_1.png`, …, at most 512 pixels wide and high.

    Returns:
        An example of each, with the five most likely classes.

    Raises:
        UserError: the model cannot be loaded, or a file is no picture.
    """
    if not inputs:
        return []
    pictures = [_open(path) for path in inputs]
    model, processor = load_image_model(folder)
    classify = pipeline("image-classification", model=model, image_processor=processor)
    examples = []
    for number, (path, picture) in enumerate(zip(inputs, pictures, strict=True), start=1):
        name = f"example_{number}.png"
        with atomic_write(Path(output) / name) as temporary:
            picture.save(temporary)
        answers = classify(picture, top_k=min(SHOWN_CLASSES, model.config.num_labels))
        answers = [{"label": answer["label"], "score": round(answer["score"], 4)} for answer in answers]
        examples.append(Example(name, answers, Path(path).stem))
    return examples


def _open(path: str | Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            picture = image.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: is no picture that can be opened; give a PNG or JPEG file") from error
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return picture
