"""Translates a sentence or classifies an image, and shows the attention that did it.

It is the app of a Space and runs at home as well: `python app.py MODEL`, with the folder or the Hub id of a model. The
code that lies beside the model's weights is executed, so name a model that you trust; a Space pins its revision.
"""

import argparse
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from drawing import draw_attention, draw_patches
from matplotlib.figure import Figure
from models import MAX_BEAMS, MAX_CHARACTERS, MEAN, Classifier, Translation, Translator, load_model

logger = logging.getLogger(__name__)

# filled in when the Space is pushed; the command line and the environment come first
MODEL_ID = ""
MODEL_REVISION = ""

MAX_FILE_SIZE = "10mb"
MAX_WAITING = 20
MAX_SESSIONS = 200
CACHE_SECONDS = (600, 3600)  # how often uploaded files are looked through, and how old they get
TOP_CLASSES = 5
SITES = {
    "cross (target to source)": "cross",
    "encoder (source to source)": "encoder",
    "decoder (target to target)": "decoder",
}
# one request at a time has the model, whatever is asked
QUEUE = {"concurrency_id": "model", "concurrency_limit": 1}
# fonts of the visitor's own computer: nothing is fetched from elsewhere
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])


def choose_model(
    model: str | None, revision: str | None, environment: Mapping[str, str]
) -> tuple[str | None, str | None]:
    """The model to open and its revision: of the command line, else of MODEL_ID and MODEL_REVISION, else as pushed."""
    if model:
        return model, revision
    for name, pinned in (
        (environment.get("MODEL_ID"), environment.get("MODEL_REVISION")),
        (MODEL_ID, MODEL_REVISION),
    ):
        if name:
            return name, revision or pinned or None
    return None, None


def with_clear_errors(function: Callable) -> Callable:
    """Tell the visitor what was wrong with the input; anything else goes to the log."""

    @functools.wraps(function)
    def wrapped(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error
        except Exception as error:
            logger.exception("the model failed")
            raise gr.Error("The model failed; the log of the app says why.", print_exception=False) from error

    return wrapped


def heading(name: str, revision: str | None, config: Any) -> str:
    """Which model this is, in Markdown."""
    is_folder = Path(name).is_dir()
    title = f"`{Path(name).resolve().name}`" if is_folder else f"[{name}](https://huggingface.co/{name})"
    site = "cross" if "cross" in config.sites else "encoder"
    preset = config.attention_for(site).preset_name or "of its own"
    pinned = f", revision `{revision}`" if revision else ""
    return f"# Attention of {title}{pinned}\nPreset: **{preset}**. Exactly zero weights are white."


def uploaded_path(file: Any) -> str | None:
    """Where an uploaded file lies, None if there is none."""
    return file.path if file else None


def layer_choices(names: list[str]) -> gr.Dropdown:
    """A choice of layers, the last one chosen."""
    return gr.Dropdown([(name, number) for number, name in enumerate(names)], value=len(names) - 1, label="Layer")


def head_choices(heads: int) -> gr.Dropdown:
    """A choice of heads, their mean chosen."""
    choices = [("mean of all", MEAN), *((str(number + 1), number) for number in range(heads))]
    return gr.Dropdown(choices, value=MEAN, label="Head")


def site_choices(translator: Translator, site: str) -> tuple[gr.Dropdown, gr.Dropdown]:
    """The layers and heads of a site."""
    layers, heads = translator.shape(site)
    return layer_choices([str(number + 1) for number in range(layers)]), head_choices(heads)


def translation_app(translator: Translator, title: str) -> gr.Blocks:
    """The page of a translation model."""

    @with_clear_errors
    def translate(text: str, beams: float, site: str, layer: int, head: int) -> tuple[str, Translation, Figure]:
        translation = translator.translate(text, beams)
        return translation.text, translation, show(translation, site, layer, head)

    @with_clear_errors
    def show(translation: Translation | None, site: str, layer: int, head: int) -> Figure | None:
        return draw_attention(translator.attend(translation, site, layer, head)) if translation else None

    @with_clear_errors
    def change_site(translation: Translation | None, site: str) -> tuple[gr.Dropdown, gr.Dropdown, Figure | None]:
        last = translator.shape(site)[0] - 1
        return *site_choices(translator, site), show(translation, site, last, MEAN)

    with gr.Blocks(title="Attention", analytics_enabled=False, delete_cache=CACHE_SECONDS) as page:
        gr.Markdown(title)
        last_translation = gr.State(None)
        with gr.Row():
            with gr.Column():
                # the browser keeps to max_length, the model checks it
                text = gr.Textbox(label="Text", lines=3, max_length=MAX_CHARACTERS, elem_id="text")
                beams = gr.Slider(1, MAX_BEAMS, value=4, step=1, label="Beams")
                button = gr.Button("Translate", variant="primary", elem_id="run")
            translated = gr.Textbox(label="Translation", lines=3, interactive=False, elem_id="answer")
        with gr.Row():
            site = gr.Dropdown(list(SITES.items()), value="cross", label="Attention", elem_id="site")
            layer, head = site_choices(translator, "cross")
        plot = gr.Plot(show_label=False, format="png", elem_id="plot")
        chosen = [site, layer, head]
        gr.on(
            [button.click, text.submit],
            translate,
            [text, beams, *chosen],
            [translated, last_translation, plot],
            **QUEUE,
        )
        site.input(change_site, [last_translation, site], [layer, head, plot], **QUEUE)
        gr.on([layer.input, head.input], show, [last_translation, *chosen], plot, **QUEUE)
    return page


def classification_app(classifier: Classifier, title: str) -> gr.Blocks:
    """The page of an image classifier."""

    @with_clear_errors
    def classify(path: str | None, layer: int, head: int) -> tuple[dict[str, float], Any, Figure]:
        scores, pixels = classifier.classify(path)
        return scores, pixels, show(pixels, layer, head)

    @with_clear_errors
    def show(pixels: Any, layer: int, head: int) -> Figure | None:
        return None if pixels is None else draw_patches(classifier.attend(pixels, layer, head))

    with gr.Blocks(title="Attention", analytics_enabled=False, delete_cache=CACHE_SECONDS) as page:
        gr.Markdown(title)
        last_pixels = gr.State(None)
        with gr.Row():
            with gr.Column():
                image = gr.Image(label="Image", sources=["upload", "clipboard"], height=280, elem_id="image")
                # the file as it is: `models.open_image` is to say what is wrong with it, not Gradio
                image.preprocess = uploaded_path
                button = gr.Button("Classify", variant="primary", elem_id="run")
            classes = gr.Label(label="Classes", num_top_classes=TOP_CLASSES, elem_id="answer")
        with gr.Row():
            layer = layer_choices(classifier.layer_names())
            head = head_choices(classifier.config.num_attention_heads)
        plot = gr.Plot(show_label=False, format="png", elem_id="plot")
        button.click(classify, [image, layer, head], [classes, last_pixels, plot], **QUEUE)
        gr.on([layer.input, head.input], show, [last_pixels, layer, head], plot, **QUEUE)
    return page


def build_app(name: str, revision: str | None = None) -> gr.Blocks:
    """The page of a model, with its queue.

    Args:
        name: folder or Hub id.
        revision: branch, tag or commit of a Hub id.

    Raises:
        ValueError: there is no such folder, or it is neither a translation model nor an image classifier.
        OSError: there is no such model on the Hub.
    """
    model = load_model(name, revision)
    build = translation_app if isinstance(model, Translator) else classification_app
    return build(model, heading(name, revision, model.config)).queue(max_size=MAX_WAITING)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the attention of a model; the code in its folder is executed.")
    parser.add_argument("model", nargs="?", help="folder or Hub id; else the environment variable MODEL_ID")
    parser.add_argument("--revision", help="branch, tag or commit; else the environment variable MODEL_REVISION")
    parser.add_argument("--port", type=int, help="port of the page; else the first free one from 7860 on")
    arguments = parser.parse_args()
    name, revision = choose_model(arguments.model, arguments.revision, os.environ)
    if name is None:
        parser.error("name a model: its folder or Hub id")
    try:
        page = build_app(name, revision)
        page.launch(
            server_port=arguments.port,
            theme=THEME,
            max_file_size=MAX_FILE_SIZE,
            state_session_capacity=MAX_SESSIONS,
            ssr_mode=False,
            footer_links=[],
        )
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
