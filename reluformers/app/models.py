"""What the app asks of a model: a translation or classes, and the attention weights that led to them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.utils import HFValidationError, validate_repo_id
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
)
from transformers.image_utils import load_image

# by its module: older releases of transformers hide the name where there is no torchvision
from transformers.models.auto.image_processing_auto import AutoImageProcessor

MAX_CHARACTERS = 2_000
MAX_BEAMS = 8
MAX_PIXELS = 50_000_000
EXTRA_TOKENS = 50  # a translation may be so many tokens longer than its source

MEAN = -1  # the choice "mean of all heads"
AXIS_NAMES = {  # site → query, key
    "cross": ("token being written", "source token"),
    "encoder": ("source token", "source token"),
    "decoder": ("token being written", "token already written"),
}


@dataclass(frozen=True)
class Translation:
    """A text, its translation and the tokens of both [length], the target's with the start token."""

    text: str
    source_ids: list[int]
    target_ids: list[int]


@dataclass(frozen=True)
class AttentionMap:
    """Weights [queries, keys] of one site, layer and head; `visible`, bool, tells a zero from what is masked."""

    weights: np.ndarray
    visible: np.ndarray
    queries: list[str]
    keys: list[str]
    axis_names: tuple[str, str]


@dataclass(frozen=True)
class PatchMap:
    """Weights [rows, columns] over the patches of a picture [height, width, channels] in 0..1, and what they are."""

    weights: np.ndarray
    picture: np.ndarray
    title: str


class Translator:
    """A translation model with its tokenizers.

    Args:
        name: folder or Hub id.
        config: of the model.
        options: for every `from_pretrained`.
    """

    def __init__(self, name: str, config: Any, options: dict[str, Any]):
        self.config = config
        self.model = AutoModelForSeq2SeqLM.from_pretrained(name, **options).eval()
        self.tokenizer = self.target_tokenizer = AutoTokenizer.from_pretrained(name, **options)
        if config.decoder_vocab_size is not None:
            self.target_tokenizer = AutoTokenizer.from_pretrained(name, subfolder="target_tokenizer", **options)

    def shape(self, site: str) -> tuple[int, int]:
        """Number of layers and of heads of a site."""
        side = "encoder" if site == "encoder" else "decoder"
        return getattr(self.config, f"{side}_layers"), getattr(self.config, f"{side}_attention_heads")

    @torch.inference_mode()
    def translate(self, text: str, num_beams: int) -> Translation:
        """Translate one text.

        Args:
            text: at most `MAX_CHARACTERS`.
            num_beams: from 1 to `MAX_BEAMS`.

        Returns:
            The translation.

        Raises:
            ValueError: the text is empty, no Unicode or too long, or the number of beams out of its bounds.
        """
        text, num_beams = check_text(text), check_beams(num_beams)
        inputs = self.tokenizer(text, return_tensors="pt")
        length, limit = inputs["input_ids"].shape[1], self.config.max_position_embeddings
        if length > limit:
            raise ValueError(f"The text has {length} tokens, the model takes {limit}: translate it in parts.")
        longest = min(length + EXTRA_TOKENS, limit - 1)
        target = self.model.generate(**inputs, num_beams=num_beams, max_length=longest + 1, max_new_tokens=None)[0]
        translated = self.target_tokenizer.decode(target, skip_special_tokens=True)
        return Translation(translated, inputs["input_ids"][0].tolist(), target.tolist())

    @torch.inference_mode()
    def attend(self, translation: Translation, site: str, layer: int, head: int) -> AttentionMap:
        """Weights of a pass that is given the translation; row t is the query that writes token t.

        Args:
            translation: what `translate` has returned.
            site: a key of `AXIS_NAMES`.
            layer: from 0.
            head: from 0, or `MEAN`.

        Raises:
            ValueError: there is no such site, layer or head.
        """
        if site not in AXIS_NAMES:
            raise ValueError(f"The site {site!r} is none of {list(AXIS_NAMES)}.")
        given, written = translation.target_ids[:-1], translation.target_ids[1:]
        outputs = self.model(
            input_ids=torch.tensor([translation.source_ids]),
            decoder_input_ids=torch.tensor([given]),
            use_cache=False,
            output_attentions=True,
        )
        layers = getattr(outputs, f"{site}_attentions")
        weights = select_weights([weights[0].float().numpy() for weights in layers], layer, head)
        visible = np.ones_like(weights, dtype=bool)
        source = self.tokenizer.convert_ids_to_tokens(translation.source_ids)
        given, written = (self.target_tokenizer.convert_ids_to_tokens(ids) for ids in (given, written))
        queries = source if site == "encoder" else written
        keys = given if site == "decoder" else source
        return AttentionMap(
            weights, np.tril(visible) if site == "decoder" else visible, queries, keys, AXIS_NAMES[site]
        )


class Classifier:
    """An image classifier with its image processor; arguments as for `Translator`."""

    def __init__(self, name: str, config: Any, options: dict[str, Any]):
        self.config = config
        # eager throughout: the weights of the pooling query are no output of the model, but seen by a hook
        model = AutoModelForImageClassification.from_pretrained(name, attn_implementation="eager", **options)
        self.model = model.eval()
        self.processor = AutoImageProcessor.from_pretrained(name, **options)

    def layer_names(self) -> list[str]:
        """Where there is attention, in the order of `attend`."""
        layers = [str(number + 1) for number in range(self.config.num_hidden_layers)]
        return [*layers, "pooling query"] if self.config.pooling == "attention" else layers

    @torch.inference_mode()
    def classify(self, path: str | None) -> tuple[dict[str, float], torch.Tensor]:
        """Class probabilities of an image file, and its pixels [1, channels, height, width] as the model takes them.

        Raises:
            ValueError: there is no image, it is broken or too large.
        """
        pixels = self.processor(open_image(path), return_tensors="pt")["pixel_values"]
        logits = self.model(pixels).logits[0].float()
        several = self.config.problem_type == "multi_label_classification"
        scores = logits.sigmoid() if several else logits.softmax(-1)
        return {self.config.id2label[number]: score for number, score in enumerate(scores.tolist())}, pixels

    @torch.inference_mode()
    def attend(self, pixels: torch.Tensor, layer: int, head: int) -> PatchMap:
        """What the patches get: from the class token or the pooling query, else on average from all patches.

        Args:
            pixels: as `classify` has returned them.
            layer: place in `layer_names`.
            head: from 0, or `MEAN`.

        Raises:
            ValueError: there is no such layer or head.
        """
        layers = []
        if self.config.pooling == "attention":
            module = self.model.vit.pooler.attention
            hook = module.register_forward_hook(lambda _module, _inputs, outputs: layers.append(outputs[1]))
        try:
            layers = [*self.model(pixels, output_attentions=True).attentions, *layers]
        finally:
            if self.config.pooling == "attention":
                hook.remove()
        weights = select_weights([weights[0].float().numpy() for weights in layers], layer, head)
        null_rows = int((weights == 0).all(-1).sum())
        title = f"mean over {len(weights)} queries, {null_rows} of them null"
        if self.config.pooling == "cls":
            weights, title = weights[:1, 1:], "from the class token"  # no picture for what it gives itself
        elif len(weights) == 1:
            title = "from the pooling query"
        grid = [side // self.config.patch_size for side in pixels.shape[2:]]
        return PatchMap(weights.mean(0).reshape(grid), self._picture(pixels[0]), title)

    def _picture(self, pixels: torch.Tensor) -> np.ndarray:
        """The image [height, width, channels] that was normalised into the pixels [channels, height, width]."""
        picture = pixels.permute(1, 2, 0).numpy()
        if getattr(self.processor, "do_normalize", False):
            picture = picture * np.array(self.processor.image_std) + np.array(self.processor.image_mean)
        picture = picture.clip(0, 1)
        return picture.repeat(3, -1) if picture.shape[-1] == 1 else picture


def load_model(name: str, revision: str | None = None) -> Translator | Classifier:
    """Open a model by its folder or Hub id.

    Raises:
        ValueError: there is no such folder, or it is neither a translation model nor an image classifier.
        OSError: there is no such model on the Hub.
    """
    if not Path(name).is_dir():
        try:
            validate_repo_id(name)
        except HFValidationError:
            raise ValueError(f"{name}: there is no such folder") from None
    options = {"trust_remote_code": True, **({"revision": revision} if revision else {})}
    config = AutoConfig.from_pretrained(name, **options)
    tasks = getattr(config, "auto_map", None) or {}
    if "AutoModelForSeq2SeqLM" in tasks:
        return Translator(name, config, options)
    if "AutoModelForImageClassification" in tasks:
        return Classifier(name, config, options)
    raise ValueError(f"{name}: neither a translation model nor an image classifier of reluformers")


def check_text(text: Any) -> str:
    """A text to translate, without white space around it.

    Raises:
        ValueError: it is no text, empty, not valid Unicode or too long.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError("There is nothing to translate: type a sentence.")
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"The text has {len(text):,} characters, at most {MAX_CHARACTERS:,} are allowed.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("The text is not valid Unicode: type it again.")
    return text


def check_beams(num_beams: Any) -> int:
    """A number of beams within its bounds, else a `ValueError`."""
    if not isinstance(num_beams, int | float) or num_beams not in range(1, MAX_BEAMS + 1):
        raise ValueError(f"The number of beams is {num_beams}, but must be a whole number from 1 to {MAX_BEAMS}.")
    return int(num_beams)


def open_image(path: str | None) -> Image.Image:
    """The RGB image of a file, upright.

    Raises:
        ValueError: there is none, it cannot be read or is too large.
    """
    if not path:
        raise ValueError("There is no image: choose one.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own bound is tighter
            image = Image.open(path)
            width, height = image.size
            if width * height <= MAX_PIXELS:
                return load_image(image)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError):
        raise ValueError("The file is no image that can be read, is broken or far too large.") from None
    raise ValueError(f"The image has {width} × {height} pixels, at most {MAX_PIXELS:,} are allowed.")


def select_weights(layers: Sequence[np.ndarray], layer: int, head: int) -> np.ndarray:
    """Weights [queries, keys] of one head, or the mean of all heads, out of [heads, queries, keys] of each layer.

    Raises:
        ValueError: there is no such layer or head.
    """
    if layer not in range(len(layers)):
        raise ValueError(f"Layer {layer + 1} is none of the {len(layers)}.")
    weights = layers[layer]
    if head == MEAN:
        return weights.mean(0)
    if head not in range(len(weights)):
        raise ValueError(f"Head {head + 1} is none of the {len(weights)}.")
    return weights[head]
