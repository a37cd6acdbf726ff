"""Examples of a card with what this very model answers, since the Hub runs no inference on models with own code."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError
from transformers import pipeline

from reluformers.errors import UserError
from reluformers.files import atomic_write
from reluformers.images.scoring import load_image_model
from reluformers.translation.decoding import load_translation_model, translate

LARGEST_SIDE = 512
SHOWN_CLASSES = 5


@dataclass(frozen=True)
class Example:
    """An input of the model and its answer.

    Args:
        input: a text, or the name of a picture beside the card.
        output: the translation, or `[{"label": …, "score": …}, …]`, most likely first.
        title: what the example is called.
    """

    input: str
    output: Any
    title: str

    def widget(self) -> dict[str, Any]:
        """The example as the metadata of a card hold it."""
        if isinstance(self.output, str):
            return {"text": self.input, "example_title": self.title, "output": {"text": self.output}}
        return {"src": self.input, "example_title": self.title, "output": self.output}


def translation_examples(folder: str | Path, texts: Sequence[str]) -> list[Example]:
    """Translate texts as the saved model does by default.

    Args:
        folder: of the model.
        texts: what to translate.

    Returns:
        An example of each.

    Raises:
        UserError: the model cannot be loaded, or a text is empty.
    """
    if not texts:
        return []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise UserError(f"example {number} is empty; give a text")
    model, tokenizers = load_translation_model(folder)
    defaults = model.generation_config
    options = {"num_beams": defaults.num_beams or 1, "length_penalty": defaults.length_penalty or 1.0}
    answers = translate(model, tokenizers, texts, **options)
    return [
        Example(text, answer, f"Example {number}")
        for number, (text, answer) in enumerate(zip(texts, answers, strict=True), start=1)
    ]


def image_examples(folder: str | Path, images: Sequence[str | Path], output: str | Path) -> list[Example]:
    """Classify pictures, and keep them as PNG beside the card.

    Args:
        folder: of the model.
        images: files that Pillow opens.
        output: where the card goes; gets `example_1.png`, …, at most 512 pixels wide and high.

    Returns:
        An example of each, with the five most likely classes.

    Raises:
        UserError: the model cannot be loaded, or a file is no picture.
    """
    if not images:
        return []
    pictures = [_open(path) for path in images]
    model, processor = load_image_model(folder)
    classify = pipeline("image-classification", model=model, image_processor=processor)
    examples = []
    for number, (path, picture) in enumerate(zip(images, pictures, strict=True), start=1):
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
