"""What the app asks of a model: a translation or classes, and the attention weights that led to them."""

import json
import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import ModelCard, hf_hub_download
from PIL import Image
from transformers import AutoConfig, AutoModelForImageClassification, pipeline

# Imported from its module, as older releases of transformers hide the name without torchvision.
from transformers.models.auto.image_processing_auto import AutoImageProcessor

try:
    from image_input import read_images  # It lies beside this file in a Space.
except ImportError:
    from reluformers.modeling.image_input import read_images

MAX_CHARACTERS = 2_000
MAX_BEAMS = 8
MAX_EXAMPLES = 5
SKETCH_SIDE = 32  # A visitor can draw an image of at most so many pixels a side.

AXIS_NAMES = {  # Each site has a name for its queries and its keys.
    "cross": ("words being written", "source words"),
    "encoder": ("source words", "source words"),
    "decoder": ("words being written", "words already written"),
}


@dataclass(frozen=True)
class Translation:
    """A text, its translation and the tokens of both [length], the target's with the start token.

    Args:
        unknown: characters of the text that the tokenizer does not know.
    """

    source: str
    text: str
    source_ids: list[int]
    target_ids: list[int]
    alignment: Sequence[tuple[str, str | None]] = ()
    unknown: Sequence[str] = ()


@dataclass(frozen=True)
class Zeros:
    """Shares of the weights that are exactly zero, and of the queries whose weights all are (null rows).

    Args:
        by_head: zeros of each head.
        nulls: null rows of each head.
        in_mean: zeros that are left in the mean of the heads.
    """

    by_head: list[float]
    nulls: list[float]
    in_mean: float

    @classmethod
    def count(cls, weights: np.ndarray, visible: np.ndarray) -> "Zeros":
        """Count in weights [heads, queries, keys] where `visible`, bool [queries, keys]."""
        zero = (weights == 0) | ~visible
        shares = zero[:, visible].mean(-1)
        return cls(shares.tolist(), zero.all(-1).mean(-1).tolist(), float(zero.all(0)[visible].mean()))


@dataclass(frozen=True)
class Word:
    """A word, whether a blank comes before it, and its first token."""

    text: str
    blank: bool
    start: int


@dataclass(frozen=True)
class AttentionMap:
    """Weights [heads, queries, keys] of words; `visible`, bool [queries, keys], tells a zero from what is masked.

    Of cross-attention with the word alignment, which comes from one layer, whichever is shown.
    """

    weights: np.ndarray
    visible: np.ndarray
    queries: list[Word]
    keys: list[Word]
    axis_names: tuple[str, str]
    zeros: Zeros
    alignment: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True)
class PatchMap:
    """Weights [heads, rows, columns] over a picture [height, width, channels] in 0..1, and what they are."""

    weights: np.ndarray
    picture: np.ndarray
    title: str
    zeros: Zeros


class Translator:
    """A translation model with its tokenizers.

    Args:
        name: folder or Hub id.
        config: of the model.
        options: for every `from_pretrained`.
    """

    def __init__(self, name: str, config: Any, options: dict[str, Any]):
        self.config = config
        self.pipeline = pipeline("translation", model=name, device="cpu", **options)
        self.model = self.pipeline.model
        self.tokenizer = self.pipeline.tokenizer
        self.target_tokenizer = self.pipeline.target_tokenizer

    def site_to_open(self) -> str:
        """The first site whose weights can be zero, else cross-attention."""
        return next((site for site in AXIS_NAMES if self.config.attention_for(site).activation != "softmax"), "cross")

    def layers(self, site: str) -> int:
        """Number of layers of a site."""
        if site == "encoder":
            return self.config.encoder_layers
        return self.config.decoder_layers

    @torch.inference_mode()
    def translate(self, text: str, num_beams: int) -> Translation:
        """Translate one text of at most `MAX_CHARACTERS` with 1 to `MAX_BEAMS` beams."""
        text = str(text or "").strip()
        if len(text) > MAX_CHARACTERS or num_beams not in range(1, MAX_BEAMS + 1):
            raise ValueError(f"At most {MAX_CHARACTERS:,} characters and 1 to {MAX_BEAMS} beams are allowed.")
        inputs = self.pipeline.preprocess(text, truncation=False)
        # `generate` stops at the model's longest translation, so no limit is set here.
        target = self.pipeline.forward(inputs, num_beams=int(num_beams))["tokens"][0, 0]
        translated = self.target_tokenizer.decode(target, skip_special_tokens=True)
        return self._aligned(Translation(text, translated, inputs["input_ids"][0].tolist(), target.tolist()))

    def read(self, text: str, translated: str) -> Translation:
        """A translation that is given, in the tokens of this model, as many as it takes."""
        source = self.tokenizer(text.strip())["input_ids"]
        target = self.target_tokenizer(text_target=translated)["input_ids"]
        start = self.model.generation_config.decoder_start_token_id
        limit = self.config.max_position_embeddings
        return self._aligned(Translation(text, translated, source[:limit], [start, *target][:limit]))

    def _aligned(self, translation: Translation) -> Translation:
        """A translation with its word alignment and its unknown characters, which no layer that is shown changes."""
        unknown = unknown_characters(self.tokenizer, translation.source)
        links = self.pipeline.align(translation.source, translation.target_ids)
        return replace(translation, alignment=[(link["target"], link["source"]) for link in links], unknown=unknown)

    @torch.inference_mode()
    def attend(self, translation: Translation, site: str, layer: int) -> AttentionMap:
        """Weights of a pass that is given the translation; row t is the query that writes word t.

        Sub-words are merged: a word gets the sum of what its tokens get and gives the mean of what its tokens give.
        Zeros and null rows are counted before that.

        Args:
            translation: what `translate` or `read` has returned.
            site: a key of `AXIS_NAMES`.
            layer: from 0.
        """
        given = translation.target_ids[:-1]
        written = translation.target_ids[1:]
        outputs = self.model(
            input_ids=torch.tensor([translation.source_ids]),
            decoder_input_ids=torch.tensor([given]),
            use_cache=False,
            output_attentions=True,
        )
        weights = choose_layer(getattr(outputs, f"{site}_attentions"), layer)
        visible = np.ones(weights.shape[1:], dtype=bool)
        if site == "decoder":
            visible = np.tril(visible)
        source = split_words(self.tokenizer, translation.source_ids)
        given, written = (split_words(self.target_tokenizer, ids) for ids in (given, written))
        queries = source if site == "encoder" else written
        keys = given if site == "decoder" else source
        merged = merge_words(np.where(visible, weights, 0), queries, keys)
        seen = merge_words(visible[None], queries, keys)[0] > 0
        zeros = Zeros.count(weights, visible)
        alignment = translation.alignment if site == "cross" else ()
        return AttentionMap(merged, seen, queries, keys, AXIS_NAMES[site], zeros, alignment)


class Classifier:
    """An image classifier with its image processor; arguments as for `Translator`."""

    def __init__(self, name: str, config: Any, options: dict[str, Any]):
        self.config = config
        # A hook sees the weights of the pooling query, which are no output, so the model must be eager throughout.
        model = AutoModelForImageClassification.from_pretrained(name, attn_implementation="eager", **options)
        self.model = model.eval()
        self.processor = AutoImageProcessor.from_pretrained(name, **options)

    def open_image(self, content: bytes | str) -> Image.Image:
        """The RGB image, upright, of a file's content or of a drawing in a data address, in an endpoint's bounds."""
        return read_images([content])[0]

    def open_file(self, path: str | None, folder: str) -> Image.Image:
        """The image of an ordinary file below a folder; raises `ValueError` like `open_image`."""
        if not path or not is_file_below(path, folder):
            raise ValueError("There is no image: choose one.")
        return self.open_image(Path(path).read_bytes())

    def layer_names(self) -> list[str]:
        """Where there is attention, in the order of `attend`."""
        layers = [str(number + 1) for number in range(self.config.num_hidden_layers)]
        if self.config.pooling == "attention":
            return [*layers, "pooling query"]
        return layers

    def takes_sketches(self) -> bool:
        """Whether its images are so small that a visitor can draw one."""
        return bool(np.max(self.config.image_size) <= SKETCH_SIDE)

    @torch.inference_mode()
    def classify(self, image: Image.Image) -> tuple[dict[str, float], torch.Tensor]:
        """Class probabilities of an RGB image, and its pixels [1, channels, height, width] as the model takes them."""
        pixels = self.processor(image, return_tensors="pt")["pixel_values"]
        logits = self.model(pixels).logits[0].float()
        several = self.config.problem_type == "multi_label_classification"
        scores = logits.sigmoid() if several else logits.softmax(-1)
        return {self.config.id2label[number]: score for number, score in enumerate(scores.tolist())}, pixels

    @torch.inference_mode()
    def attend(self, pixels: torch.Tensor, layer: int) -> PatchMap:
        """What the patches get: from the class token or the pooling query, else on average from all patches.

        Args:
            pixels: as `classify` has returned them.
            layer: index in `layer_names`.
        """
        layers = []
        if self.config.pooling == "attention":
            attention = self.model.vit.pooler.attention
            hook = attention.register_forward_hook(lambda _module, _inputs, outputs: layers.append(outputs[1]))
        try:
            layers = [*self.model(pixels, output_attentions=True).attentions, *layers]
        finally:
            if self.config.pooling == "attention":
                hook.remove()
        weights = choose_layer(layers, layer)
        before = self.config.num_prefix_tokens
        is_pooling = layer == self.config.num_hidden_layers  # The pooling query sees patches alone.
        if self.config.pooling == "cls":
            weights = weights[:, :1]
            title = "What the class token attends to"
        elif is_pooling:
            title = "What the pooling query attends to"
        else:
            weights = weights[:, before:]
            title = f"What {weights.shape[1]} patches attend to, on average"
        grid = [side // self.config.patch_size for side in pixels.shape[2:]]
        # A row may also have weight on tokens before the patches, so count zeros first.
        nulls = (weights == 0).all(-1).mean(-1).tolist()
        if not is_pooling:
            weights = weights[..., before:]  # The picture shows patches alone.
        zeros = replace(Zeros.count(weights, np.ones(weights.shape[1:], dtype=bool)), nulls=nulls)
        return PatchMap(weights.mean(1).reshape(-1, *grid), self._picture(pixels[0]), title, zeros)

    def _picture(self, pixels: torch.Tensor) -> np.ndarray:
        """The image [height, width, channels] that was normalised into the pixels [channels, height, width]."""
        picture = pixels.permute(1, 2, 0).numpy()
        if getattr(self.processor, "do_normalize", False):
            picture = picture * np.array(self.processor.image_std) + np.array(self.processor.image_mean)
        picture = picture.clip(0, 1)
        if picture.shape[-1] == 1:
            return picture.repeat(3, -1)
        return picture


def find_file(name: str, file: str, revision: str | None = None) -> str | None:
    """Where a file of a model's folder or Hub repository lies, None if there is none."""
    path = os.path.join(name, file)
    if Path(name).is_dir():
        return path if is_file_below(path, name) else None
    if os.path.isabs(file) or ".." in Path(file).parts:
        return None
    try:
        return hf_hub_download(name, file, revision=revision)
    except OSError:  # There is no such file, or no network.
        return None


def describe_training(name: str, revision: str | None = None) -> str:
    """What a model was trained on, in a short sentence of its card; empty if that does not say it."""
    card = find_file(name, "README.md", revision) or os.devnull
    match = re.search(
        r"^The data are ([^;\n]{1,300}?)(?:;|\.$)", Path(card).read_text("utf-8", "replace"), re.MULTILINE
    )
    return f"Trained on {match[1]}." if match else ""


def find_examples(name: str, revision: str | None = None, *, are_files: bool = False) -> list[str]:
    """At most `MAX_EXAMPLES` inputs to begin with, texts or image files, of the model's results.json or its card."""
    try:
        results = find_file(name, "results.json", revision)
        rows = json.loads(Path(results).read_text(encoding="utf-8")).get("examples") if results else None
        if not rows and (card := find_file(name, "README.md", revision)):
            rows = ModelCard.load(card, ignore_metadata_errors=True).data.to_dict().get("widget")
        inputs = [row.get("src") if are_files else row.get("source") or row.get("text") for row in rows or []]
        inputs = [text for text in inputs if isinstance(text, str) and 0 < len(text.strip()) <= MAX_CHARACTERS]
        if are_files:
            inputs = [path for text in inputs if (path := find_file(name, text, revision))]
        return inputs[:MAX_EXAMPLES]
    except Exception:  # Somebody else wrote this file: if it is damaged, the page opens without examples.
        return []


def load_model(name: str, revision: str | None = None) -> Translator | Classifier:
    """Open a model by its folder or Hub id."""
    options = {"trust_remote_code": True, **({"revision": revision} if revision else {})}
    config = AutoConfig.from_pretrained(name, **options)
    translates = "AutoModelForSeq2SeqLM" in (getattr(config, "auto_map", None) or {})
    if translates:
        return Translator(name, config, options)
    return Classifier(name, config, options)


def unknown_characters(tokenizer: Any, text: str) -> list[str]:
    """Characters of a text that a tokenizer does not know, each once; those that cannot be seen by their numbers."""
    if not tokenizer.is_fast:  # A slow tokenizer does not say where its tokens come from.
        return []
    encoding = tokenizer(text, return_offsets_mapping=True, verbose=False)
    pairs = zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
    unknown = "".join(text[slice(*span)] for token, span in pairs if token == tokenizer.unk_token_id)
    return [one if one.isprintable() else f"U+{ord(one):04X}" for one in dict.fromkeys(unknown) if not one.isspace()]


def is_file_below(path: str, folder: str) -> bool:
    """Whether a path is, with its links resolved, that of an ordinary file below a folder: no FIFO and no device."""
    real_path = os.path.realpath(path)
    return os.path.isfile(real_path) and Path(real_path).is_relative_to(os.path.realpath(folder))


def choose_layer(layers: Sequence[torch.Tensor], layer: Any) -> np.ndarray:
    """Weights [heads, queries, keys] of one layer out of [1, heads, queries, keys] of each."""
    if layer not in range(len(layers)):
        raise ValueError(f"There is no such layer: choose one of the {len(layers)}.")
    return layers[int(layer)][0].float().numpy()


def split_words(tokenizer: Any, ids: Sequence[int]) -> list[Word]:
    """Group tokens to words; punctuation, special tokens and ideographs stand alone.

    Args:
        tokenizer: whose pieces mark a blank before them by ▁ or Ġ, or the lack of one by ##.
        ids: of the tokens [length].
    """
    special = set(tokenizer.all_special_ids)
    words = []
    kind = None
    for index, (number, piece) in enumerate(zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)):
        begins = piece.startswith(("▁", "Ġ"))
        text = piece.removeprefix("##").lstrip("▁Ġ")
        alone = number in special or any(unicodedata.east_asian_width(character) in "WF" for character in text)
        is_word = any(character.isalnum() for character in text)
        previous = kind
        kind = None
        if alone:
            kind = index
        elif text:
            kind = str(is_word)
        # A blank that is a token of its own has no kind: whatever follows joins its word.
        if not words or begins or (previous is not None and kind != previous):
            words.append((index, begins or number in special, []))
        words[-1][2].append(number)
    return [Word(tokenizer.decode(members).strip() or "▁", blank, index) for index, blank, members in words]


def merge_words(weights: np.ndarray, queries: list[Word], keys: list[Word]) -> np.ndarray:
    """Weights [heads, words, words] out of those of tokens: summed over a key's, averaged over a query's."""
    starts = [word.start for word in queries]
    lengths = np.diff([*starts, weights.shape[1]])
    weights = np.add.reduceat(weights.astype(np.float64), [word.start for word in keys], axis=2)
    return np.add.reduceat(weights, starts, axis=1) / lengths[:, None]
