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
    describe_training,
    find_examples,
    load_model,
)

logger = logging.getLogger(__name__)

MAX_WAITING = 20
CACHE_SECONDS = (600, 3600)  # Uploads are looked through every 10 minutes and deleted after an hour.
TOP_CLASSES = 5
BEAMS = 4
# The pad is white in dark mode too, as the model gets what it shows.
PAD = """<canvas width="280" height="280" role="img" aria-label="Draw here with the mouse or a finger"
style="touch-action: none; cursor: crosshair; border: 1px solid var(--border-color-primary); width: 216px"></canvas>
<br><button type="button">Clear</button>"""
SITES = {
    "cross (target to source)": "cross",
    "encoder (source to source)": "encoder",
    "decoder (target to target)": "decoder",
}
WHOLE_LABEL = 260  # In pixels; a narrower dropdown would cut names of SITES.
# One request at a time has the model.
QUEUE = {"concurrency_id": "model", "concurrency_limit": 1}
# Events for the page alone are not in the API; what programs may call has a name of its own.
OWN = {**QUEUE, "api_visibility": "private"}
LAUNCH = {
    # Fonts of the visitor's computer, so that nothing is fetched from elsewhere.
    "theme": gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
    "max_file_size": "10mb",
    "state_session_capacity": 200,
    "ssr_mode": False,
    "footer_links": [],
    "css": ".tiny img { width: 100%; object-fit: contain; image-rendering: pixelated }",
    # Gradio fits a box of text to its lines only when the text changes; a narrower window would cut the last line.
    "js": """() => new ResizeObserver(() =>
        document.querySelectorAll("textarea").forEach((box) => box.dispatchEvent(new Event("input")))
    ).observe(document.body)""",
    "quiet": True,
    # Gradio's check would give up on a busy computer that takes more than 3 seconds for the page. Before that it has
    # asked the server, and waited for the answer as long as it takes.
    "_frontend": False,
}
BLOCKS = {"analytics_enabled": False, "delete_cache": CACHE_SECONDS}
FOLDER = Path(__file__).parent


def explain(function: Callable, *cleared: Any, fails: bool = False) -> Callable:
    """Tell the visitor what was wrong with the input; anything else goes to the log.

    Args:
        function: an event's.
        cleared: what the event's outputs become, so that no old answer stands beside a new input.
        fails: as a program that called expects.
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
        if fails:
            raise gr.Error(message, print_exception=False)
        gr.Warning(message, title="No answer")
        return cleared if len(cleared) > 1 else cleared[0]

    return wrapped


fail = functools.partial(explain, fails=True)


def display_name(name: str) -> str:
    """The name of a model without the path of its folder."""
    if Path(name).is_dir():
        return Path(os.path.abspath(name)).name
    return name


def preset_name(config: Any) -> str:
    """The attention of a model by its preset, or by its activation if it has no name; site by site if they differ."""
    attentions = {site: config.attention_for(site) for site in config.sites}
    names = {site: attention.preset_name or attention.activation for site, attention in attentions.items()}
    if len(set(names.values())) == 1:
        return names[config.sites[0]]
    return ", ".join(f"{site} {name}" for site, name in names.items())


def heading(name: str, revision: str | None, config: Any) -> str:
    """Which model this is, in Markdown."""
    title = f"`{display_name(name)}`" if Path(name).is_dir() else f"[{name}](https://huggingface.co/{name})"
    pinned = f", revision `{revision}`" if revision else ""
    return f"## Attention of {title}{pinned}\nPreset: **{preset_name(config)}**"


def layer_choices(names: Sequence[Any]) -> gr.Dropdown:
    """A choice of layers, the last one chosen."""
    return gr.Dropdown([(str(name), number) for number, name in enumerate(names)], value=len(names) - 1, label="Layer")


def answer_box(translation: Translation | None) -> gr.Textbox:
    """A translation, and which characters of its text the model does not know."""
    text, unknown = (translation.text, ", ".join(translation.unknown)) if translation else (None, "")
    info = f"The model does not know {unknown}: what it writes for that is invented." if unknown else None
    return gr.Textbox(text, label="Translation", info=info, interactive=False, elem_id="answer")


def attention_html(value: str | None, elem_id: str) -> gr.HTML:
    """The component that holds `text_view` or `image_view`."""
    css, js = ((FOLDER / name).read_text(encoding="utf-8") for name in ("view.css", "view.js"))
    return gr.HTML(value, css_template=css, js_on_load=js, elem_id=elem_id, label="Attention")


class TranslationEvents:
    """What a page of a translation model does.

    Args:
        models: by their names, the one whose page it is first; those after it are shown the same translation.
    """

    def __init__(self, models: dict[str, Translator]):
        self.models = models
        self.translator, *self.others = models.values()

    def translate(self, text: str, beams: float) -> list[Translation]:
        first = self.translator.translate(text, beams)
        return [first, *(other.read(text, first.text) for other in self.others)]

    def answer(self, text: str, beams: float, site: str, layer: int) -> tuple[str, gr.Textbox, list[Translation], str]:
        translations = self.translate(text, beams)
        return text, answer_box(translations[0]), translations, self.draw(translations, site, layer)

    def draw(self, translations: list[Translation] | None, site: str, layer: int) -> str | None:
        """The picture; a model of fewer layers shows its last."""
        if not translations:
            return None
        layers = [layer, *(min(layer, other.layers(site) - 1) for other in self.others)]
        rows = zip(self.models.items(), translations, layers, strict=True)
        return text_view(
            [(name, model.attend(translation, site, shown)) for (name, model), translation, shown in rows]
        )

    def layers(self, site: str) -> gr.Dropdown:
        return layer_choices(range(1, self.translator.layers(site) + 1))

    def change_site(self, translations: list[Translation] | None, site: str) -> tuple[gr.Dropdown, str | None]:
        return self.layers(site), self.draw(translations, site, self.translator.layers(site) - 1)

    def translate_text(self, text: str, num_beams: int = BEAMS) -> str:
        """Translate a text of at most 2,000 characters with 1 to 8 beams."""
        return self.translator.translate(text, num_beams).text

    def attention(self, text: str, site: str = "cross", layer: int = 1) -> dict:
        """Translate a text and give the attention weights behind it.

        `site` is "cross", "encoder" or "decoder", `layer` counts from 1. The answer holds the translation, the words
        of both sides, weights[head][query][key] and, by head, the shares of weights that are exactly zero and of null
        rows; of "cross" also the word alignment, pairs of a target word and its source word or null. "unknown" are
        the characters of the text that the model does not know.
        """
        translation = self.translator.translate(text, BEAMS)
        shown = self.translator.attend(translation, site, layer - 1)
        return {
            "translation": translation.text,
            "queries": [word.text for word in shown.queries],
            "keys": [word.text for word in shown.keys],
            "weights": shown.weights.tolist(),
            "zeros": shown.zeros.by_head,
            "null_rows": shown.zeros.nulls,
            "alignment": shown.alignment,
            "unknown": translation.unknown,
        }


def translation_app(models: dict[str, Translator], title: str, examples: Sequence[str] = ()) -> gr.Blocks:
    """The page of a translation model.

    Args:
        models: as in `TranslationEvents`.
        title: in Markdown.
        examples: texts to begin with; the first one is translated at once.
    """
    events = TranslationEvents(models)
    first_site = events.translator.site_to_open()
    opened = events.translate(examples[0], BEAMS) if examples else None
    with gr.Blocks(**BLOCKS) as page:
        gr.Markdown(title)
        last = gr.State(opened)
        with gr.Row():
            with gr.Column():
                # The browser keeps to max_length, and the model checks it. In a box of one line Enter submits.
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
                translated = answer_box(opened[0] if opened else None)
                with gr.Row(elem_id="examples"):
                    buttons = [gr.Button(example, size="sm", min_width=140) for example in examples]
        with gr.Row():
            site = gr.Dropdown(
                list(SITES.items()), value=first_site, label="Attention", elem_id="site", min_width=WHOLE_LABEL
            )
            layer = events.layers(first_site)
            beams = gr.Slider(1, MAX_BEAMS, value=BEAMS, step=1, label="Beams")
        last_layer = events.translator.layers(first_site) - 1
        picture = attention_html(events.draw(opened, first_site, last_layer), "attention")
        outputs = [text, translated, last, picture]
        answer = explain(events.answer, gr.skip(), gr.update(value="", info=None), None, None)
        gr.on([button.click, text.submit], answer, [text, beams, site, layer], outputs, **OWN)
        for example in buttons:
            example.click(answer, [example, beams, site, layer], outputs, **OWN)
        site.input(explain(events.change_site, gr.skip(), None), [last, site], [layer, picture], **OWN)
        layer.input(explain(events.draw, None), [last, site, layer], picture, **OWN)
        gr.api(fail(events.translate_text), api_name="translate", **QUEUE)
        gr.api(fail(events.attention), api_name="attention", **QUEUE)
    return page


class ClassificationEvents:
    """What a page of an image classifier does; arguments as for `TranslationEvents`."""

    def __init__(self, models: dict[str, Classifier]):
        self.models = models
        self.classifier, *self.others = models.values()
        self.uploads = gr.Image().GRADIO_CACHE  # A visitor may name files of this folder alone.

    def look(self, image: Any, layer: int) -> tuple[dict[str, float], list[Any], str]:
        answers = [model.classify(image) for model in self.models.values()]
        seen = [pixels for _, pixels in answers]
        return answers[0][0], seen, self.draw(seen, layer)

    def draw(self, seen: list[Any] | None, layer: int) -> str | None:
        """The picture; a model of fewer layers shows its last."""
        if not seen:
            return None
        layers = [layer, *(min(layer, len(other.layer_names()) - 1) for other in self.others)]
        rows = zip(self.models.items(), seen, layers, strict=True)
        return image_view([(name, model.attend(pixels, shown)) for (name, model), pixels, shown in rows])

    def answer(self, path: str | None, layer: int) -> tuple[dict[str, float], list[Any], str]:
        return self.look(self.classifier.open_file(path, self.uploads), layer)

    def classify_image(self, path: str | None) -> dict[str, float]:
        """Classify an image: classes with their probabilities."""
        return self.classifier.classify(self.classifier.open_file(path, self.uploads))[0]

    def sketch(self, layer: int, drawing: gr.EventData) -> tuple[None, dict[str, float], list[Any], str]:
        sent = drawing._data  # A client may send anything, so there may be no picture in it.
        return None, *self.look(
            self.classifier.open_image(sent.get("picture") if isinstance(sent, dict) else ""), layer
        )


def classification_app(models: dict[str, Classifier], title: str, examples: Sequence[str] = ()) -> gr.Blocks:
    """The page of an image classifier; arguments as for `translation_app`, the examples are files."""
    events = ClassificationEvents(models)
    nothing = (None, None, None)
    classifier = events.classifier
    names = events.classifier.layer_names()
    scores, seen, opened = nothing
    if examples:
        first = classifier.open_file(examples[0], os.path.dirname(os.path.realpath(examples[0])))
        scores, seen, opened = events.look(first, len(names) - 1)
    with gr.Blocks(**BLOCKS) as page:
        gr.Markdown(title)
        last = gr.State(seen)
        with gr.Row():
            # The page first shows what has been classified.
            with gr.Column(), gr.Tabs(selected="image" if examples else None) as tabs:
                if classifier.takes_sketches():
                    with gr.Tab("Draw"):
                        pad = gr.HTML(PAD, js_on_load=(FOLDER / "pad.js").read_text(encoding="utf-8"), elem_id="pad")
                with gr.Tab("Image", id="image"):
                    image = gr.Image(
                        examples[0] if examples else None,
                        show_label=False,
                        sources=["upload", "clipboard"],
                        height=216,
                        elem_id="image",
                        elem_classes="tiny" if classifier.takes_sketches() else None,
                    )
                    # Gradio passes the path alone: `open_file` checks where the file lies and what is wrong with it.
                    image.preprocess = lambda file: file.path if file else None
            with gr.Column():
                classes = gr.Label(scores, label="Classes", num_top_classes=TOP_CLASSES, elem_id="classes")
                with gr.Row(elem_id="images"):
                    buttons = [gr.Button(Path(example).stem, icon=example, size="sm") for example in examples]
        layer = layer_choices(names)
        outputs = [classes, last, attention_html(opened, "patches")]
        answer = explain(events.answer, *nothing)
        image.upload(answer, [image, layer], outputs, **OWN)
        for example, path in zip(buttons, examples, strict=True):
            show = functools.partial(lambda path: (path, gr.Tabs(selected="image")), path)
            example.click(show, None, [image, tabs], **OWN).then(answer, [image, layer], outputs, **OWN)
        if classifier.takes_sketches():
            pad.submit(explain(events.sketch, gr.skip(), *nothing), layer, [image, *outputs], **OWN)
            pad.clear(lambda: nothing, None, outputs, **OWN)
        image.clear(lambda: nothing, None, outputs, **OWN)
        layer.input(explain(events.draw, None), [last, layer], outputs[-1], **OWN)
        # This event is for programs, which get an error where the page keeps its last answer.
        gr.Button(visible=False).click(fail(events.classify_image), image, classes, api_name="classify", **QUEUE)
    return page


def build_app(
    name: str, revision: str | None = None, *, compare: str | None = None, examples: Sequence[str] | None = None
) -> gr.Blocks:
    """The page of a model, with its queue.

    Args:
        name: folder or Hub id.
        revision: branch, tag or commit of a Hub id.
        compare: folder or Hub id of a model of the same kind to show beside it.
        examples: inputs to begin with; None for those that the model brings.
    """
    model = load_model(name, revision)
    models = {f"{display_name(name)}, {preset_name(model.config)}": model}
    if compare:
        twin = load_model(compare)
        models[f"{display_name(compare)}, {preset_name(twin.config)}"] = twin
    build = translation_app if isinstance(model, Translator) else classification_app
    if examples is None:
        examples = find_examples(name, revision, are_files=isinstance(model, Classifier))
    title = f"{heading(name, revision, model.config)}. {describe_training(name, revision)}"
    page = build(models, title, examples)
    page.title = f"Attention of {' and '.join(map(display_name, filter(None, [name, compare])))}"
    return page.queue(max_size=MAX_WAITING)


def build_tabs(names: Sequence[str]) -> gr.Blocks:
    """The pages of several models, a tab each, with one queue."""
    apps = {display_name(name): build_app(name) for name in names}
    with gr.Blocks(title=f"Attention of {', '.join(apps)}", **BLOCKS) as page, gr.Tabs():
        for label, app in apps.items():
            with gr.Tab(label):
                app.render()
    return page.queue(max_size=MAX_WAITING)


def serve(page: gr.Blocks, port: int | None) -> None:
    """Serve a page until interrupted, and say on the terminal when it is there; without a port by Gradio's choice."""
    print("Starting the page and waiting until it answers", flush=True)
    page.launch(server_port=port, prevent_thread_lock=True, **LAUNCH)
    print(f"The page is at {page.local_url}; Ctrl+C ends it", flush=True)
    page.block_thread()
