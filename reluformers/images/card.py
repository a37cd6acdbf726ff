"""What a model card says of an image classifier."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image
from transformers import PreTrainedConfig, pipeline

from reluformers.evaluation.results import Example
from reluformers.files import atomic_write

from .loading import class_names, load_image_split
from .processing import IMAGE, LABEL, decode_image, image_file
from .scoring import load_image_model, model_classes

logger = logging.getLogger(__name__)

LARGEST_SIDE = 512
SHOWN_CLASSES = 5
SHOWN_EXAMPLES = 3


def template_values(config: PreTrainedConfig, languages: Sequence[str]) -> dict[str, Any]:
    """What the card's template asks for beside what it asks of every model."""
    return {
        "classes": [config.id2label[label] for label in range(config.num_labels)],
        "image_size": _size_text(config.image_sides),
    }


def describe_shape(config: PreTrainedConfig, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the card's training table on the sizes of the model."""
    patch = [config.patch_size] * 2
    return {
        "shape": f"{_size_text(config.image_sides)} pixels, patches of {_size_text(patch)}, "
        f"width {config.hidden_size}, {config.num_hidden_layers} layers, {config.num_attention_heads} heads, "
        f"MLP {config.intermediate_size}, {config.norm_position}-norm, pooling {config.pooling}"
    }


def _size_text(sides: Sequence[int]) -> str:
    """Height and width of images or patches."""
    return " × ".join(map(str, sides))


def answer_examples(folder: str | Path, inputs: Sequence[str | Path], output: str | Path) -> list[Example]:
    """Give the five most likely classes of image files; the images go beside the card, at most 512 pixels a side.

    Args:
        folder: of the model.
        inputs: files that Pillow opens.
        output: where the card goes; gets `example_1.png`, ….
    """
    pictures = [(Path(path).stem, decode_image(Path(path).read_bytes(), path)) for path in inputs]
    return _classify(folder, pictures, output)


def held_out_examples(folder: str | Path, run: Any, output: str | Path) -> list[Example]:
    """Images of three classes of the test set, else of the validation set, as `answer_examples`.

    There are none where they do not lie on this machine or cannot be read. `run` is the `FinishedRun` of the folder.
    """
    data = run.section("data")
    path = data.get("path")
    split = next((name for name in ("test", "validation") if data.get(name)), None)
    if split is None or (path and not Path(path).exists()):  # Writing a card fetches nothing.
        return []
    where = (path, data[split]) if path else ({split: data[split]}, split)
    columns = {name: data.get(name) for name in ("image_column", "label_column")}
    try:
        images = load_image_split(*where, classes=model_classes(run.config), **columns)
    except ValueError as error:
        logger.info("no examples of %s: %s", split, error)
        return []
    chosen: dict[int, int] = {}
    for row, label in enumerate(images[LABEL]):
        if len(chosen) < SHOWN_EXAMPLES:
            chosen.setdefault(label, row)
    names = class_names(images)
    pictures = [(names[label], decode_image(image_file(images[row][IMAGE]))) for label, row in chosen.items()]
    return [replace(answer, reference=answer.title) for answer in _classify(folder, pictures, output)]


def _classify(folder: str | Path, pictures: Sequence[tuple[str, Image.Image]], output: str | Path) -> list[Example]:
    """Answers to images with their titles; the images are kept as PNG, without the metadata of their files."""
    if not pictures:
        return []
    model, processor = load_image_model(folder)
    classify = pipeline("image-classification", model=model, image_processor=processor, trust_remote_code=False)
    examples = []
    for number, (title, picture) in enumerate(pictures, start=1):
        picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        name = f"example_{number}.png"
        with atomic_write(Path(output) / name) as temporary:
            picture.save(temporary)
        answers = classify(picture, top_k=min(SHOWN_CLASSES, model.config.num_labels))
        answers = [{"label": answer["label"], "score": round(answer["score"], 4)} for answer in answers]
        examples.append(Example(name, answers, title))
    return examples
