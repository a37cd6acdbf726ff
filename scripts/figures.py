"""Draw the figures of docs/exact-zeros.md that follow from the models of models/.

Example:
    python scripts/figures.py docs/figures
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.models.auto.image_processing_auto import AutoImageProcessor

import reluformers  # noqa: F401  # registers the classes, so that no code of a folder runs

MODELS = Path(__file__).resolve().parents[1] / "models"
SENTENCE = "I don't know where he lives."
AMBER = "#f5a623"
BLUE = "#3465a4"
# letters stay text, which a reader can search for; the same model gives the same file
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "reluformers", "font.size": 9, "font.family": "sans-serif"}


def draw_exact_zeros() -> Figure:
    """Draw the first encoder layer's weights by softmax and by ReLU, from the same scores."""
    folder = MODELS / "tatoeba-en-de"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    words = [word.replace("▁", "") for word in tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])]
    figure, panels = plt.subplots(1, 2, figsize=(7.5, 3.8), layout="constrained")
    # only the first layer gets the same inputs from both models
    for axes, attention in zip(panels, ("softmax", "reluformer"), strict=True):
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32, attention=attention)
        with torch.no_grad():
            weights = model.get_encoder()(**inputs, output_attentions=True).attentions[0][0]
        _draw_weights(axes, weights[0].numpy())
        axes.set_xticks(range(len(words)), words, rotation=90)
        axes.set_yticks(range(len(words)), words)
        axes.set_title(f"{attention}: {(weights[0] == 0).float().mean():.0%} exact zeros")
    panels[0].set(xlabel="key", ylabel="query")
    return figure


def draw_null_rows() -> Figure:
    """Draw an image of a digit, and one head's weights over its patches with the null rows in amber."""
    folder = MODELS / "digits-relu-vit"
    model = AutoModelForImageClassification.from_pretrained(folder)
    picture = Image.open(folder / "example_1.png").convert("RGB")
    pixels = AutoImageProcessor.from_pretrained(folder)(picture, return_tensors="pt")
    with torch.no_grad():
        layers = model(**pixels, output_attentions=True).attentions
    heads = torch.cat(layers, dim=1)[0]  # of all layers: [layers · heads, queries, keys]
    null_rows = (heads.sum(-1) == 0).sum(-1)
    head = heads[null_rows.argmax()].numpy()
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.4), width_ratios=(1, 1.3), layout="constrained")
    left.imshow(picture)
    left.axis("off")
    left.set_title("the image")
    _draw_weights(right, head)
    for row in np.flatnonzero(head.sum(axis=1) == 0):
        right.axhspan(row - 0.5, row + 0.5, color=AMBER)
    right.set(xticks=range(0, 16, 4), yticks=range(0, 16, 4), xlabel="key (patch)", ylabel="query (patch)")
    right.set_title(f"{null_rows.max()} null rows, amber")
    return figure


def draw_row_sums() -> Figure:
    """Draw how the sums of rows are spread at each site of a translation model."""
    folder = MODELS / "tatoeba-en-de"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    readme = (MODELS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", readme.partition("| English |")[2].partition("\nAnd")[0], re.MULTILINE)
    sums: dict[str, list[torch.Tensor]] = {"encoder": [], "decoder": [], "cross": []}
    for source, translation in rows[1:]:  # behind the line below the head of the table
        inputs = tokenizer(source, text_target=translation, return_tensors="pt")
        with torch.no_grad():
            output = model(**inputs, output_attentions=True)
        for site, row_sums in sums.items():
            row_sums += [weights.sum(-1).flatten() for weights in getattr(output, f"{site}_attentions")]
    figure, panels = plt.subplots(1, 3, figsize=(7.5, 2.2), sharey=True, layout="constrained")
    for axes, (site, row_sums) in zip(panels, sums.items(), strict=True):
        values = torch.cat(row_sums).numpy()
        axes.hist(values, bins=np.linspace(0, 4, 33), weights=np.full(len(values), 1 / len(values)), color=BLUE)
        axes.axvline(1, color="black", linestyle=":")
        axes.set(xlabel="row sum", title=f"{site}, mean {values.mean():.2f}")
    panels[0].set_ylabel("share of the rows")
    return figure


def _draw_weights(axes: Axes, weights: np.ndarray) -> None:
    shown = np.where(weights > 0, weights, np.nan) ** 0.5  # the root lets small weights be seen
    axes.imshow(shown, cmap="Blues", vmin=-0.25 * np.nanmax(shown), interpolation="none")


FIGURES: dict[str, Callable[[], Figure]] = {
    "exact_zeros": draw_exact_zeros,
    "null_rows": draw_null_rows,
    "row_sums": draw_row_sums,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the figures of the documentation.")
    parser.add_argument("folder", type=Path, help="where the SVG files go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, draw in FIGURES.items():
            draw().savefig(folder / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
