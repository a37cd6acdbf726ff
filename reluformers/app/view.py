"""The picture of attention as HTML: exact zeros have no colour, whatever is not zero has one, null rows are amber.

Every head is an image of one pixel for each weight, so that the page's own background shows through the zeros.
`view.css` sizes the images, `view.js` lights up words and changes the head.
"""

import base64
import json
from collections.abc import Sequence
from html import escape
from io import BytesIO

import numpy as np
from PIL import Image

from models import AttentionMap, PatchMap, Word, Zeros

# RGB in 0..255; of patches: to be seen on black, on white and on most photos
POSITIVE, NEGATIVE, NULL, MASKED, PATCH = (66, 135, 245), (220, 38, 38), (217, 119, 6), (128, 128, 128), (255, 110, 0)
FAINTEST = 0.2  # opacity of the smallest weight that is not zero
LARGEST_CODE = 32_767
TINY_SIDE = 64  # pixels: smaller pictures are enlarged as they are, larger ones smoothly


def text_view(maps: Sequence[tuple[str, AttentionMap]]) -> str:
    """The attention of one model, or of some beside each other, over the words of a sentence.

    Args:
        maps: names of the models with their weights.
    """
    return _columns([_text_map(name if len(maps) > 1 else "", attention) for name, attention in maps])


def image_view(maps: Sequence[tuple[str, PatchMap]]) -> str:
    """The attention of one model, or of some beside each other, laid over the image; arguments as `text_view`."""
    return _columns([_patch_map(name if len(maps) > 1 else "", patches) for name, patches in maps])


def paint(
    weights: np.ndarray, visible: np.ndarray | None = None, colour: tuple[int, int, int] = POSITIVE
) -> Image.Image:
    """Weights [rows, columns] as an RGBA image of one pixel each: zeros are transparent.

    Args:
        weights: of one head.
        visible: bool of the same shape, what is not masked; None for all, and then no row is marked as null.
        colour: of positive weights.
    """
    largest = np.abs(weights).max() or 1
    opacity = np.where(weights == 0, 0, FAINTEST + (1 - FAINTEST) * np.abs(weights) / largest)
    colours = np.where((weights < 0)[..., None], NEGATIVE, colour)
    pixels = np.concatenate([colours, 255 * opacity[..., None]], axis=-1).round().astype(np.uint8)
    if visible is not None:
        pixels[null_rows(weights)] = (*NULL, 110)
        pixels[~visible] = (*MASKED, 64)
    return Image.fromarray(pixels)


def null_rows(weights: np.ndarray) -> np.ndarray:
    """Which rows [rows] have no weight but zeros."""
    return (weights == 0).all(-1)


def percent(share: float) -> str:
    """A share in percent; only what is none or all is written as 0 or 100 %."""
    if 0 < share < 0.01:
        return "under 1\u00a0%"
    return "over 99\u00a0%" if 0.99 < share < 1 else f"{share:.0%}".replace("%", "\u00a0%")


def sharpest(weights: np.ndarray) -> int:
    """The head whose rows give the largest share to one word: the one to begin with."""
    sums = np.abs(weights).sum(-1)
    return int((np.abs(weights).max(-1) / np.where(sums == 0, 1, sums)).mean(-1).argmax())


def _columns(maps: list[str]) -> str:
    return f'<div class="models">{"".join(maps)}</div>'


def _text_map(name: str, attention: AttentionMap) -> str:
    head, (query, key) = sharpest(attention.weights), attention.axis_names
    pictures = [_source(paint(weights, attention.visible)) for weights in attention.weights]
    largest = np.abs(attention.weights).max() or 1
    # a zero stays a zero and nothing else becomes one
    codes = np.sign(attention.weights) * np.maximum(np.abs(attention.weights) / largest * LARGEST_CODE, 1)
    data = {
        "weights": base64.b64encode(codes.round().astype("<i2").tobytes()).decode(),
        "unit": float(largest) / LARGEST_CODE,
        "queries": [word.text for word in attention.queries],
        "keys": [word.text for word in attention.keys],
    }
    lines = [
        f'<div class="line" role="group" aria-label="{label}"><b>{label}</b><span>{_words(words, kind)}</span></div>'
        for label, words, kind in (
            (f"{key}, looked at", attention.keys, "k"),
            (f"{query}, looking", attention.queries, "q"),
        )
    ]
    titles = [f"head {number + 1}, {key} across, {query} down" for number in range(len(pictures))]
    return f"""<section class="map" data-head="{head}" data-map="{escape(json.dumps(data))}">
<div class="looks">{_figures(name, attention.zeros)}
{_heads(pictures, attention.zeros, head, titles, attention.weights.shape[1:])}
<div class="shown"><div class="scroll" tabindex="0" role="group" aria-label="weights of the chosen head, word by word">
<div class="matrix" style="--rows:{len(attention.queries)};--columns:{len(attention.keys)}">
<div class="across">{_words(attention.keys, "k", focusable=False)}</div>
<div class="down">{_words(attention.queries, "q", focusable=False)}</div>
<img class="large" src="{pictures[head]}" alt="Weights of {titles[head]}: {_share(attention.zeros, head)}">
</div></div>
{_legend(bool(max(attention.zeros.nulls)), not attention.visible.all(), ",".join(map(str, POSITIVE)))}
<p class="hint">Point at a word, or step to it with Tab.</p>
<output aria-live="polite"></output></div></div>
{"".join(lines)}{_alignment(attention.alignment)}
</section>"""


def _patch_map(name: str, patches: PatchMap) -> str:
    head = sharpest(patches.weights.reshape(len(patches.weights), 1, -1))
    overlays = [_source(paint(weights, colour=PATCH)) for weights in patches.weights]
    picture = _source(Image.fromarray((patches.picture * 255).round().astype(np.uint8)))
    size = "tiny" if max(patches.picture.shape[:2]) <= TINY_SIDE else ""
    ratio = f"--ratio:{patches.picture.shape[1]}/{patches.picture.shape[0]}"
    titles = [f"head {number + 1} over the image" for number in range(len(overlays))]
    behind = f'<img class="{size}" src="{picture}" alt="">'
    return f"""<section class="map patches" data-head="{head}" style="{ratio}">
<div class="looks">{_figures(name, patches.zeros)}
{_heads(overlays, patches.zeros, head, titles, patches.weights.shape[1:], behind)}
<div class="shown"><div class="pair"><figure><div class="stack"><img class="{size}" src="{picture}"
alt="The image as the model sees it"></div>
<figcaption>as the model sees it</figcaption></figure>
<figure><div class="stack">{behind}<img class="large"
src="{overlays[head]}" alt="Weights of {titles[head]}: {_share(patches.zeros, head)}"></div>
<figcaption>{escape(patches.title)}</figcaption></figure></div>
{_legend(False, False, ",".join(map(str, PATCH)))}</div></div>
</section>"""


def _figures(name: str, zeros: Zeros) -> str:
    """The large figure and what zeros and null rows are, in a sentence each."""
    share, nulls = (float(np.mean(values)) for values in (zeros.by_head, zeros.nulls))
    if share:
        note = "What has weight zero is not looked at, at all; softmax gives everything at least a little."
        if len(zeros.by_head) > 1:
            note += f" In the mean of the heads {percent(zeros.in_mean)} are left."
    else:
        note = "Everything counts at least a little: that is how softmax gives weights."
    row = f"<p>{percent(nulls)} of the rows are null rows, all zeros: there a head adds nothing.</p>" if nulls else ""
    title = f"<h3>{escape(name)}</h3>" if name else ""
    figure = f'<p class="figure"><b>{percent(share)}</b> of these weights are exactly zero</p>'
    return f'<div class="figures">{title}{figure}<p>{note}</p>{row}</div>'


def _heads(
    pictures: list[str], zeros: Zeros, chosen: int, titles: list[str], shape: tuple[int, ...], behind: str = ""
) -> str:
    """All heads as small pictures that are buttons."""
    buttons = [
        f'<button type="button" data-head="{number}" aria-pressed="{str(number == chosen).lower()}">'
        f'<span class="stack" style="--ratio:{shape[1]}/{shape[0]}">{behind}<img src="{picture}" '
        f'alt="Weights of {titles[number]}: {_share(zeros, number)}"></span>'
        f"<span>head {number + 1}<br>{_share(zeros, number)}</span></button>"
        for number, picture in enumerate(pictures)
    ]
    return f'<div class="heads" role="group" aria-label="Heads">{"".join(buttons)}</div>'


def _share(zeros: Zeros, head: int) -> str:
    nulls = f", {percent(zeros.nulls[head])} null rows" if zeros.nulls[head] else ""
    return f"{percent(zeros.by_head[head])} zeros{nulls}"


def _words(words: Sequence[Word], kind: str, *, focusable: bool = True) -> str:
    """Words that light up: of the queries, "q", or of the keys, "k"."""
    focus = ' tabindex="0"' if focusable else ""
    return "".join(
        f'{" " if word.blank else ""}<span class="word" data-{kind}="{number}"{focus}>{escape(word.text)}</span>'
        for number, word in enumerate(words)
    )


def _alignment(links: Sequence[tuple[str, str | None]]) -> str:
    """Which source word each word of the translation is aligned with."""
    pairs = (f"<span>{escape(target)}\u00a0← {escape(source or '∅')}</span>" for target, source in links)
    return f'<div class="line aligned"><b>word alignment</b>{" ".join(pairs)}</div>' if links else ""


def _legend(has_nulls: bool, is_masked: bool, colour: str) -> str:
    names = [("zero", "exactly zero"), ("weight", "small to large")]
    names += [("null", "∅ null row")] * has_nulls + [("masked", "not visible, yet to come")] * is_masked
    swatches = "".join(f'<span><i class="{kind}"></i>{text}</span>' for kind, text in names)
    return f'<p class="legend" style="--weight:{colour}">{swatches}</p>'


def _source(picture: Image.Image) -> str:
    """A picture as an address that holds it."""
    file = BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
