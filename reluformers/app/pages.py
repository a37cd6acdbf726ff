"""The page of a translation model and that of an image classifier."""

import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from view import image_view, text_view

from models import (
    MAX_BEAMS,
    MAX_CHARACTERS,
    Classifier,
    Translation,
    Translator,
    find_examples,
    load_model,
    open_image,
    open_sketch,
)

logger = logging.getLogger(__name__)

MAX_WAITING = 20
CACHE_SECONDS = (600, 3600)  # how often uploaded files are looked through, and how old they get
TOP_CLASSES = 5
BEAMS = 4
# white in the dark, too: it is the picture that the model gets
PAD = """<canvas width="280" height="280" role="img" aria-label="Draw here with the mouse or a finger"
style="touch-action: none; cursor: crosshair; border: 1px solid var(--border-color-primary); max-width: 100%"></canvas>
<br><button type="button">Clear</button>"""
SITES = {
    "cross (target to source)": "cross",
    "encoder (source to source)": "encoder",
    "decoder (target to target)": "decoder",
}
# one request at a time has the model, whatever is asked
QUEUE = {"concurrency_id": "model", "concurrency_limit": 1}
# of events that the page has for itself: what it is for others has a name of its own
OWN = {**QUEUE, "api_visibility": "private"}
LAUNCH = {
    # fonts of the visitor's own computer: nothing is fetched from elsewhere
    "theme": gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
    "max_file_size": "10mb",
    "state_session_capacity": 200,
    "ssr_mode": False,
    "footer_links": [],
}
FOLDER = Path(__file__).parent


def explain(function: Callable, *, keep: bool) -> Callable:
    """Tell the visitor what was wrong with the input; anything else goes to the log.

    Args:
        function: an event's.
        keep: say it in passing and leave the old answer where it is, else fail, as a program that called expects.
    """

    @functools.wraps(function)
    def wrapped(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ValueError as error:
            message = str(error)
        except Exception:
            logger.exception("the model failed")
            message = "The model failed; the log of the app says why."
        if not keep:
            raise gr.Error(message, print_exception=False)
        gr.Warning(message, title="Nothing changed")
        return gr.skip()

    return wrapped


keep_answer = functools.partial(explain, keep=True)
fail = functools.partial(explain, keep=False)


def display_name(name: str) -> str:
    """The name of a model without the place of its folder."""
    return Path(os.path.abspath(name)).name if Path(name).is_dir() else name


def preset_name(config: Any) -> str:
    """The attention of a model by its preset, or by its activation if it has no name; site by site if they differ."""
    sites = [site for site in config.sites if site != "pooling" or config.pooling == "attention"]
    attentions = {site: config.attention_for(site) for site in sites}
    names = {site: attention.preset_name or attention.activation for site, attention in attentions.items()}
    if len(set(names.values())) == 1:
        return names[sites[0]]
    return ", ".join(f"{site} {name}" for site, name in names.items())


def heading(name: str, revision: str | None, config: Any) -> str:
    """Which model this is, in Markdown."""
    title = f"`{display_name(name)}`" if Path(name).is_dir() else f"[{name}](https://huggingface.co/{name})"
    pinned = f", revision `{revision}`" if revision else ""
    return f"# Attention of {title}{pinned}\nPreset: **{preset_name(config)}**"


def uploaded_path(file: Any) -> str | None:
    """Where an uploaded file lies, None if there is none."""
    return file.path if file else None


def layer_choices(names: Sequence[str]) -> gr.Dropdown:
    """A choice of layers, the last one chosen."""
    return gr.Dropdown([(name, number) for number, name in enumerate(names)], value=len(names) - 1, label="Layer")


def site_layers(translator: Translator, site: str) -> gr.Dropdown:
    """A choice of the layers of a site."""
    return layer_choices([str(number + 1) for number in range(translator.layers(site))])


def attention_html(value: str | None) -> gr.HTML:
    """The place of `text_view` or `image_view`."""
    css, js = ((FOLDER / name).read_text(encoding="utf-8") for name in ("view.css", "view.js"))
    return gr.HTML(value, css_template=css, js_on_load=js, elem_id="attention", label="Attention")


def translation_app(models: dict[str, Translator], title: str, examples: Sequence[str] = ()) -> gr.Blocks:
    """The page of a translation model.

    Args:
        models: by their names, the one whose page it is first; those after it are shown the same translation.
        title: in Markdown.
        examples: texts to begin with; the first one is translated at once.
    """
    translator, *others = models.values()

    def tell(text: str, beams: float) -> list[Translation]:
        first = translator.translate(text, beams)
        return [first, *(other.read(text, first.text) for other in others)]

    @keep_answer
    def answer(text: str, beams: float, site: str, layer: int) -> tuple[str, str, list[Translation], str]:
        translations = tell(text, beams)
        return text, translations[0].text, translations, draw(translations, site, layer)

    def draw(translations: list[Translation] | None, site: str, layer: int) -> str | None:
        """The picture; a model of fewer layers shows its last."""
        return (
            text_view(
                [
                    (
                        name,
                        model.attend(
                            translation, site, layer if model is translator else min(layer, model.layers(site) - 1)
                        ),
                    )
                    for (name, model), translation in zip(models.items(), translations, strict=True)
                ]
            )
            if translations
            else None
        )

    @keep_answer
    def change_site(translations: list[Translation] | None, site: str) -> tuple[gr.Dropdown, str | None]:
        return site_layers(translator, site), draw(translations, site, translator.layers(site) - 1)

    def translate_text(text: str, num_beams: int = BEAMS) -> str:
        """Translate a text of at most 2,000 characters with 1 to 8 beams."""
        return translator.translate(text, num_beams).text

    def attention(text: str, site: str = "cross", layer: int = 1) -> dict:
        """Translate a text and give the attention weights behind it.

        `site` is "cross", "encoder" or "decoder", `layer` counts from 1. The answer holds the translation, the words
        of both sides, weights[head][query][key] and, by head, the shares of weights that are exactly zero and of null
        rows; of "cross" also the word alignment, pairs of a target word and its source word or null.
        """
        translation = translator.translate(text, BEAMS)
        shown = translator.attend(translation, site, layer - 1 if isinstance(layer, int | float) else layer)
        return {
            "translation": translation.text,
            "queries": [word.text for word in shown.queries],
            "keys": [word.text for word in shown.keys],
            "weights": shown.weights.tolist(),
            "zeros": shown.zeros.by_head,
            "null_rows": shown.zeros.nulls,
            "alignment": shown.alignment,
        }

    opened = tell(examples[0], BEAMS) if examples else None
    with gr.Blocks(title="Attention", analytics_enabled=False, delete_cache=CACHE_SECONDS) as page:
        gr.Markdown(title)
        last = gr.State(opened)
        with gr.Row():
            with gr.Column():
                # the browser keeps to max_length, the model checks it; in a box of one line at first, Enter submits
                text = gr.Textbox(
                    examples[0] if examples else None,
                    label="Text",
                    placeholder="Type a sentence, then Enter",
                    max_lines=6,
                    max_length=MAX_CHARACTERS,
                    elem_id="text",
                )
                button = gr.Button("Translate", variant="primary", elem_id="run")
            with gr.Column():
                translated = gr.Textbox(
                    opened[0].text if opened else None, label="Translation", interactive=False, elem_id="answer"
                )
                with gr.Row(elem_id="examples"):
                    buttons = [gr.Button(example, size="sm", min_width=140) for example in examples]
        with gr.Row():
            site = gr.Dropdown(list(SITES.items()), value="cross", label="Attention", elem_id="site")
            layer = site_layers(translator, "cross")
            beams = gr.Slider(1, MAX_BEAMS, value=BEAMS, step=1, label="Beams")
        picture = attention_html(draw(opened, "cross", translator.layers("cross") - 1))
        outputs = [text, translated, last, picture]
        gr.on([button.click, text.submit], answer, [text, beams, site, layer], outputs, **OWN)
        for example in buttons:
            example.click(answer, [example, beams, site, layer], outputs, **OWN)
        site.input(change_site, [last, site], [layer, picture], **OWN)
        layer.input(keep_answer(draw), [last, site, layer], picture, **OWN)
        gr.api(fail(translate_text), api_name="translate", **QUEUE)
        gr.api(fail(attention), api_name="attention", **QUEUE)
    return page


def classification_app(models: dict[str, Classifier], title: str, examples: Sequence[str] = ()) -> gr.Blocks:
    """The page of an image classifier; arguments as for `translation_app`, the examples are files."""
    classifier = next(iter(models.values()))

    def look(image: Any, layer: int) -> tuple[dict[str, float], list[Any], str]:
        answers = [model.classify(image) for model in models.values()]
        seen = [pixels for _, pixels in answers]
        return answers[0][0], seen, draw(seen, layer)

    def draw(seen: list[Any] | None, layer: int) -> str | None:
        return (
            image_view(
                [
                    (
                        name,
                        model.attend(
                            pixels, layer if model is classifier else min(layer, len(model.layer_names()) - 1)
                        ),
                    )
                    for (name, model), pixels in zip(models.items(), seen, strict=True)
                ]
            )
            if seen
            else None
        )

    def answer(path: str | None, layer: int) -> tuple[dict[str, float], list[Any], str]:
        return look(open_image(path, image.GRADIO_CACHE), layer)

    def classify_image(path: str | None) -> dict[str, float]:
        """Classify an image: classes with their probabilities."""
        return classifier.classify(open_image(path, image.GRADIO_CACHE))[0]

    def sketch(layer: int, drawing: gr.EventData) -> tuple[dict[str, float], list[Any], str]:
        sent = drawing._data  # by whoever asks, so not always with a picture
        return look(open_sketch(sent.get("picture") if isinstance(sent, dict) else None), layer)

    last_layer = len(classifier.layer_names()) - 1
    scores, seen, opened = look(open_image(examples[0]), last_layer) if examples else (None, None, None)
    with gr.Blocks(title="Attention", analytics_enabled=False, delete_cache=CACHE_SECONDS) as page:
        gr.Markdown(title)
        last = gr.State(seen)
        with gr.Row():
            with gr.Column(), gr.Tabs():
                if classifier.takes_sketches():
                    with gr.Tab("Draw"):
                        pad = gr.HTML(PAD, js_on_load=(FOLDER / "pad.js").read_text(encoding="utf-8"), elem_id="pad")
                with gr.Tab("Upload"):
                    image = gr.Image(
                        examples[0] if examples else None,
                        show_label=False,
                        sources=["upload", "clipboard"],
                        height=280,
                        elem_id="image",
                    )
                    # the file as it is: `open_image` is to say what is wrong with it, and where it may lie, not Gradio
                    image.preprocess = uploaded_path
                    button = gr.Button("Classify", variant="primary", elem_id="run")
            with gr.Column():
                classes = gr.Label(scores, label="Classes", num_top_classes=TOP_CLASSES, elem_id="answer")
                with gr.Row(elem_id="examples"):
                    buttons = [gr.Button(Path(example).stem, icon=example, size="sm") for example in examples]
        layer = layer_choices(classifier.layer_names())
        picture = attention_html(opened)
        outputs = [classes, last, picture]
        button.click(keep_answer(answer), [image, layer], outputs, **OWN)
        for example, path in zip(buttons, examples, strict=True):
            example.click(functools.partial(str, path), None, image, **OWN).then(
                keep_answer(answer), [image, layer], outputs, **OWN
            )
        if classifier.takes_sketches():
            pad.submit(keep_answer(sketch), layer, outputs, **OWN)
        layer.input(keep_answer(draw), [last, layer], picture, **OWN)
        # not an event that a visitor sees: a program gets an error where the page keeps its answer
        gr.Button(visible=False).click(fail(classify_image), image, classes, api_name="classify", **QUEUE)
    return page


def build_app(
    name: str, revision: str | None = None, *, compare: str | None = None, examples: Sequence[str] | None = None
) -> gr.Blocks:
    """The page of a model, with its queue.

    Args:
        name: folder or Hub id.
        revision: branch, tag or commit of a Hub id.
        compare: folder or Hub id of a model to show beside it.
        examples: inputs to begin with; None for those that the model brings.

    Raises:
        ValueError: there is no such folder or model on the Hub, it neither translates nor classifies images, or the
            two models are not of one kind.
    """
    model = load_model(name, revision)
    models = {f"{display_name(name)}, {preset_name(model.config)}": model}
    if compare:
        twin = load_model(compare)
        if type(twin) is not type(model):
            raise ValueError(f"{compare}: of another kind than {name}, so they cannot be compared")
        models[f"{display_name(compare)}, {preset_name(twin.config)}"] = twin
    build = translation_app if isinstance(model, Translator) else classification_app
    if examples is None:
        examples = find_examples(name, revision, are_files=isinstance(model, Classifier))
    return build(models, heading(name, revision, model.config), examples).queue(max_size=MAX_WAITING)
