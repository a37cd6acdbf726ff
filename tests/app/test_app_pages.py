"""The app's pages, endpoints and command, without a browser."""

import json
import os
import re
import subprocess
import sys
import uuid
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement
from transformers import pipeline

from builders.attention_maps import data_of
from builders.pictures import picture
from builders.saved_models import SPACE, TEXTS, save_classifier, save_translator
from reluformers import seq2seq_config, vision_config
from reluformers.app import FILES, space_files

gr = pytest.importorskip("gradio")
import pages  # noqa: E402
import view  # noqa: E402
from gradio_client import Client, exceptions, handle_file  # noqa: E402

import app  # noqa: E402
import models  # noqa: E402

TEXT = TEXTS[1]


@pytest.fixture(scope="module")
def serve():
    """Start a page in this process and give a client of it."""
    pages = []

    def start(page: gr.Blocks) -> Client:
        pages.append(page)
        _, address, _ = page.queue().launch(prevent_thread_lock=True, quiet=True, ssr_mode=False)
        return Client(address, verbose=False, analytics_enabled=False)

    yield start
    for page in pages:
        page.close(verbose=False)


@pytest.fixture(scope="module")
def translation_client(serve, translator) -> Client:
    return serve(pages.translation_app({"one": translator}, "# Title", [TEXT]))


@pytest.fixture(scope="module")
def classification_client(serve, classifier) -> Client:
    return serve(pages.classification_app({"one": classifier}, "# Title"))


def test_models_of_two_vocabularies_stand_on_one_page(translator, tmp_path):
    other = models.load_model(str(save_translator(tmp_path, separate=True)))
    page = pages.translation_app({"one": translator, "two": other}, "# Title", [TEXT])
    [html] = [block.value for block in page.blocks.values() if isinstance(block, gr.HTML)]
    assert re.findall("<h3>(.*?)</h3>", html) == ["one", "two"]


def test_model_of_the_command_line_comes_first(monkeypatch):
    environment = {"MODEL_ID": "env/model", "MODEL_REVISION": "v2"}
    monkeypatch.setattr(app, "MODEL_ID", "pushed/model")
    monkeypatch.setattr(app, "MODEL_REVISION", "v3")
    # a revision belongs to its model
    assert app.choose_model("my/model", None, environment) == ("my/model", None)
    assert app.choose_model(None, None, environment) == ("env/model", "v2")
    assert app.choose_model(None, "v9", environment) == ("env/model", "v9")
    assert app.choose_model(None, None, {}) == ("pushed/model", "v3")


def test_heading_names_a_folder_without_its_place(tmp_path, translator):
    folder = tmp_path / "my_model"
    folder.mkdir()
    text = pages.heading(str(folder), None, translator.config)
    assert "`my_model`" in text
    assert str(tmp_path) not in text
    assert "[org/name](https://huggingface.co/org/name), revision `v1`" in pages.heading(
        "org/name", "v1", translator.config
    )


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (seq2seq_config("qknorm"), "qknorm"),
        (seq2seq_config("reluformer", attention={"activation": "relu2"}), "relu2"),
        (
            seq2seq_config("reluformer", cross_attention={"preset": "rela-g", "activation": "relu2"}),
            "encoder reluformer, decoder reluformer, cross relu2",
        ),
        (vision_config("relu-vit", size="S/16"), "relu-vit"),
        (
            vision_config("relu-vit", size="S/16", pooling="attention", pooling_attention="softmax"),
            "encoder relu-vit, pooling softmax",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_heading_names_the_attention_of_every_site(config, named):
    assert pages.heading("org/name", None, config).endswith(f"Preset: **{named}**")


def test_programs_translate_and_get_the_weights(translation_client, translator):
    assert translation_client.predict(TEXT, 2, api_name="/translate") == translator.translate(TEXT, 2).text
    answer = translation_client.predict(TEXT, "encoder", 1, api_name="/attention")
    shown = translator.attend(translator.translate(TEXT, pages.BEAMS), "encoder", 0)
    np.testing.assert_allclose(answer["weights"], shown.weights, rtol=1e-6)
    assert answer["zeros"] == shown.zeros.by_head
    assert answer["keys"][:2] == ["Two", "dogs"]
    assert answer["alignment"] == []  # of cross-attention alone


@pytest.mark.parametrize("separate", [False, True])
def test_words_are_aligned_as_by_the_pipeline(tmp_path, separate):
    folder = save_translator(tmp_path, separate=separate)
    model = models.load_model(str(folder))
    translation = model.translate(f" {TEXT}", 2)
    [expected] = pipeline("translation", model=folder, trust_remote_code=True)(
        TEXT, num_beams=2, return_alignments=True, max_new_tokens=len(translation.target_ids) - 1
    )
    shown = model.attend(translation, "cross", 0)
    assert shown.alignment == [(link["target"], link["source"]) for link in expected["alignments"]]
    html = view.text_view([("one", shown)])
    assert "word alignment" in html
    assert all(f"{target}\u00a0← {source or '∅'}" in unescape(html) for target, source in shown.alignment)
    assert "word alignment" not in view.text_view([("one", model.attend(translation, "encoder", 0))])
    assert not model.align(model.read(TEXT, ""))


def test_a_model_whose_code_cannot_align_is_shown_without(tmp_path, monkeypatch):
    model = models.load_model(str(save_translator(tmp_path)))
    monkeypatch.delattr(type(model.pipeline), "align")
    shown = model.attend(model.translate(TEXT, 1), "cross", 0)
    assert shown.weights.size
    assert not shown.alignment
    assert "word alignment" not in view.text_view([("one", shown)])


def test_programs_see_named_endpoints_alone(translation_client, classification_client):
    for client, names in ((translation_client, {"/translate", "/attention"}), (classification_client, {"/classify"})):
        endpoints = client.view_api(return_format="dict")["named_endpoints"]
        assert set(endpoints) == names
        assert all(endpoint["description"] for endpoint in endpoints.values())


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("/translate", ("", 2), "nothing to translate"),
        ("/translate", ("a" * 2_001, 2), "at most 2,000"),
        ("/translate", (TEXT, 500), "500"),
        ("/attention", (TEXT, "cross", 77), "77"),
        ("/attention", (TEXT, "middle", 1), "middle"),
        ("/attention", (TEXT, ["cross"], 1), "cross"),
        ("/attention", (TEXT, {}, 1), "site"),
        ("/attention", (TEXT, "cross", "first"), "first"),
        ("/attention", (TEXT, "cross", [1]), "1"),
        ("/attention", (TEXT, "cross", None), "None"),
    ],
)
def test_programs_are_told_what_is_wrong(translation_client, name, arguments, message):
    with pytest.raises(exceptions.AppError, match=message) as caught:
        translation_client.predict(*arguments, api_name=name)
    assert "Traceback" not in str(caught.value)


def test_programs_classify(classification_client, image_file, tmp_path):
    answer = classification_client.predict(handle_file(image_file), api_name="/classify")
    assert {row["label"] for row in answer["confidences"]} == {"cat", "dog", "horse"}
    (tmp_path / "text.png").write_text("no image")
    for image in (handle_file(str(tmp_path / "text.png")), None):
        with pytest.raises(exceptions.AppError, match="no image"):
            classification_client.predict(image, api_name="/classify")


def test_page_opens_with_its_first_example(translator):
    page = pages.translation_app({"one": translator}, "# Title", TEXTS[:2])
    values = {block.elem_id: block.value for block in page.blocks.values() if hasattr(block, "value")}
    translation = translator.translate(TEXTS[0], pages.BEAMS)
    assert (values["text"], values["answer"]) == (TEXTS[0], translation.text)
    assert data_of(values["attention"])["queries"] == [
        word.text for word in translator.attend(translation, "cross", 1).queries
    ]
    buttons = [block.value for block in page.blocks.values() if isinstance(block, gr.Button)]
    assert buttons == ["Translate", *TEXTS[:2]]


def test_examples_are_those_of_the_run_else_of_the_card(tmp_path):
    def widget(*examples):
        (tmp_path / "README.md").write_text(f"---\nwidget: {json.dumps(examples)}\n---\n")
        return models.find_examples(str(tmp_path))

    assert models.find_examples(str(tmp_path)) == []
    (tmp_path / "results.json").write_text("{}")
    assert models.find_examples(str(tmp_path)) == []
    assert widget({"text": "a", "output": {"text": "b"}}, {"text": "c"}) == ["a", "c"]
    picture(4, 4).save(tmp_path / "one.png")
    assert widget({"src": "one.png"}, {"text": 3}, {}) == []  # of images
    rows = [{"source": str(number), "reference": "r", "output": "o"} for number in range(9)]
    (tmp_path / "results.json").write_text(json.dumps({"examples": rows}))
    assert models.find_examples(str(tmp_path)) == ["0", "1", "2", "3", "4"]
    for damaged in ("{", "[1]", '{"examples": ["a"]}', '{"examples": 3}'):
        (tmp_path / "results.json").write_text(damaged)
        assert models.find_examples(str(tmp_path)) == []


def test_examples_of_images_lie_in_the_folder_of_the_model(tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "secret.png"
    (folder / "more").mkdir(parents=True)
    for path in (outside, folder / "one.png", folder / "more/two.png"):
        picture(4, 4).save(path)
    (folder / "link.png").symlink_to(outside)
    os.mkfifo(folder / "pipe.png")
    sources = ["one.png", "../secret.png", str(outside), "link.png", "pipe.png", "more/two.png", "none.png", 3, "\0"]
    rows = [{"src": source} for source in sources] + [{"text": str(outside)}, {}]
    (folder / "README.md").write_text(f"---\nwidget: {json.dumps(rows)}\n---\n")
    found = [str(folder / name) for name in ("one.png", "more/two.png")]
    assert models.find_examples(str(folder), are_files=True) in (found, [])
    (folder / "README.md").write_text(f"---\nwidget: {json.dumps(rows[:-3])}\n---\n")
    assert models.find_examples(str(folder), are_files=True) == found
    (folder / "results.json").write_text(json.dumps({"examples": [{"source": str(outside)}]}))
    assert models.find_examples(str(folder), are_files=True) == []
    (folder / "results.json").unlink()
    (folder / "README.md").rename(tmp_path / "README.md")
    (folder / "README.md").symlink_to(tmp_path / "README.md")
    assert models.find_examples(str(folder), are_files=True) == []


def test_examples_of_a_hub_model_are_files_of_its_repository(monkeypatch, image_file):
    asked = []
    monkeypatch.setattr(
        models,
        "hf_hub_download",
        lambda name, file, **_: asked.append(file) or (image_file if file == "one.png" else __file__),
    )
    rows = {"widget": [{"src": "../secret.png"}, {"src": "/etc/passwd"}, {"src": "one.png"}]}
    monkeypatch.setattr(
        models.ModelCard, "load", lambda *_, **__: SimpleNamespace(data=SimpleNamespace(to_dict=lambda: rows))
    )
    monkeypatch.setattr(models.json, "loads", lambda text: {})
    assert models.find_examples("org/name", are_files=True) == [image_file]
    assert asked == ["results.json", "README.md", "one.png"]


@pytest.mark.parametrize("meta", [{}, {"meta": {"_type": "gradio.FileData"}}, {"is_stream": True, "url": "x"}])
def test_programs_open_no_file_of_the_server(classification_client, image_file, meta):
    cache = Path(gr.Image().GRADIO_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    link = cache / f"{uuid.uuid4()}.png"  # a folder that all processes of this user share
    link.symlink_to(image_file)
    try:
        for path in (image_file, f"{cache}/../{Path(image_file).relative_to('/')}", str(link), "/dev/stdin"):
            status, events = call(classification_client, "classify", {"path": path, **meta})
            assert "confidences" not in events
            assert "error" in events or status != 200
    finally:
        link.unlink()


def call(client: Client, name: str, *values) -> tuple[int, str]:
    """Status and events of a call as any program can make it, past what Gradio's client does to files."""
    address = f"{client.src.rstrip('/')}/gradio_api/call/{name}"
    posted = httpx.post(address, json={"data": list(values)})
    if posted.status_code != 200:
        return posted.status_code, posted.text
    return 200, httpx.get(f"{address}/{posted.json()['event_id']}", timeout=60).text


def test_programs_open_what_they_have_uploaded(classification_client, image_file):
    files = {"files": Path(image_file).read_bytes()}
    [path] = httpx.post(f"{classification_client.src.rstrip('/')}/gradio_api/upload", files=files).json()
    status, events = call(classification_client, "classify", {"path": path, "meta": {"_type": "gradio.FileData"}})
    assert (status, "confidences" in events) == (200, True)


def test_image_page_opens_with_its_first_example(classifier, image_file):
    page = pages.classification_app({"one": classifier}, "# Title", [image_file])
    values = {block.elem_id: block.value for block in page.blocks.values() if hasattr(block, "value")}
    assert values["classes"]["label"] in {"cat", "dog", "horse"}
    assert "over the image" in values["patches"]
    [tabs] = [block for block in page.blocks.values() if isinstance(block, gr.Tabs)]
    assert tabs.selected == "image"


def test_small_images_can_be_drawn(classifier, tmp_path):
    def has_pad(model):
        page = pages.classification_app({"one": model}, "# Title")
        return any(getattr(block, "elem_id", None) == "pad" for block in page.blocks.values())

    assert has_pad(classifier)
    classifier_of_photos = models.load_model(str(save_classifier(tmp_path)))
    classifier_of_photos.config.image_size = [33, 12]
    assert not has_pad(classifier_of_photos)


@pytest.mark.parametrize(
    "data", [None, True, 3, "x", [], {}, {"picture": 3}, {"picture": "data:image/png;base64,AAAA"}]
)
def test_a_drawing_that_is_none_is_refused(classifier, caplog, monkeypatch, data):
    said = []
    monkeypatch.setattr(gr, "Warning", lambda message, **options: said.append(message))
    page = pages.classification_app({"one": classifier}, "# Title")
    (sketch,) = [event.fn for event in page.fns.values() if event.api_name == "sketch"]
    _, *answer = sketch(0, gr.EventData(None, data))
    assert answer == [None, None, None]
    assert not caplog.records
    assert len(said) == 1


def event_of(page: gr.Blocks, name: str):
    """What an event of a page runs."""
    return next(event.fn for event in page.fns.values() if event.api_name == name)


@pytest.mark.parametrize("text", ["", " ", "a" * 2_001, "é " * 40])
def test_a_refused_text_leaves_no_old_answer_beside_it(translator, monkeypatch, text):
    said = []
    monkeypatch.setattr(gr, "Warning", lambda message, **options: said.append(message))
    answer = event_of(pages.translation_app({"one": translator}, "# Title", TEXTS[:1]), "answer")
    typed, translated, last, picture = answer(text, 1, "cross", 0)
    assert "value" not in typed  # the text stays, to be mended
    assert (translated["value"], last, picture) == ("", None, None)
    assert len(said) == 1


def test_a_refused_image_leaves_no_old_answer_beside_it(classifier, monkeypatch, image_file):
    monkeypatch.setattr(gr, "Warning", lambda *_, **__: None)
    page = pages.classification_app({"one": classifier}, "# Title", [image_file])
    assert event_of(page, "answer")("/none.png", 0) == (None, None, None)


def test_characters_that_the_model_does_not_know_are_named(translator):
    translation = translator.translate("A man 漢字 rides\u200b 漢 & ☃", 1)
    assert translation.unknown == ["漢", "字", "U+200B", "☃"]
    assert all(one in pages.answer_box(translation).info for one in translation.unknown)
    assert pages.answer_box(translator.translate(TEXTS[0], 1)).info is None
    page = pages.translation_app({"one": translator}, "# Title", TEXTS[:1])
    assert event_of(page, "attention")("Ж", "cross", 1)["unknown"] == ["Ж"]


@pytest.mark.parametrize(
    ("attention", "site"),
    [
        ({}, "cross"),
        ({"cross_attention": {"preset": "softmax"}}, "encoder"),
        ({"attention": {"preset": "softmax"}}, "cross"),
    ],
)
def test_page_opens_with_a_site_that_has_zeros(tmp_path, attention, site):
    model = models.load_model(str(save_translator(tmp_path, **attention)))
    page = pages.translation_app({"one": model}, "# Title", TEXTS[:1])
    values = {block.elem_id: block.value for block in page.blocks.values() if hasattr(block, "value")}
    assert values["site"] == site
    zeros = model.attend(model.translate(TEXTS[0], pages.BEAMS), site, model.layers(site) - 1).zeros
    assert f"<b>{view.percent(np.mean(zeros.by_head))}</b>" in values["attention"]


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ("# A\n\nThe data are Pairs (2018): short ones; 2,000 each.\n", "Trained on Pairs (2018): short ones."),
        ("The data are 3.5 digits.\n\nMore.", "Trained on 3.5 digits."),
        ("No word.", ""),
        (b"\xff", ""),
        (None, ""),
    ],
)
def test_training_is_told_as_by_the_card(tmp_path, card, said):
    if card:
        (tmp_path / "README.md").write_bytes(card if isinstance(card, bytes) else card.encode())
    assert models.describe_training(str(tmp_path)) == said


def test_cards_of_the_repository_tell_the_training():
    folders = [folder for folder in app.CLONED_MODELS if os.path.isdir(folder)]
    assert all(10 < len(models.describe_training(folder)) < 200 for folder in folders)


@pytest.fixture
def clone(tmp_path, monkeypatch) -> list[str]:
    """Folders that are opened where no model is named."""
    folders = [str(save_translator(tmp_path / "text")), str(save_classifier(tmp_path / "image"))]
    monkeypatch.setattr(app, "CLONED_MODELS", [*folders, str(tmp_path / "none")])
    monkeypatch.delenv("MODEL_ID", raising=False)
    return folders


def test_models_of_a_clone_are_opened_where_none_is_named(serve, clone, image_file):
    assert app.cloned_models() == clone
    Path(clone[0], "README.md").write_text("The data are short pairs.\n")
    page = pages.build_tabs(clone)
    assert any("short pairs" in block.value for block in page.blocks.values() if isinstance(block, gr.Markdown))
    client = serve(page)
    endpoints = client.view_api(return_format="dict")["named_endpoints"]
    assert set(endpoints) == {"/translate", "/attention", "/classify"}
    assert client.predict(TEXT, 2, api_name="/translate")
    answer = client.predict(handle_file(image_file), api_name="/classify")
    assert {row["label"] for row in answer["confidences"]} == {"cat", "dog", "horse"}


@pytest.mark.parametrize("arguments", [("--revision", "v1"), ("--compare", "org/name"), ("--example", "a")])
def test_an_option_of_a_model_needs_the_model(clone, capsys, monkeypatch, arguments):
    monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
    with pytest.raises(SystemExit) as caught:
        app.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_slow_server_is_waited_for(monkeypatch, capsys):
    """As on a busy computer, where Gradio's own check would have given up."""
    monkeypatch.setattr("gradio.networking.url_ok", lambda address: False)
    with gr.Blocks() as page:
        gr.Markdown("text")
    monkeypatch.setattr(page, "block_thread", lambda: None)
    pages.serve(page, None, in_browser=False)
    try:
        assert httpx.get(page.local_url).status_code == 200
        assert page.local_url in capsys.readouterr().out
    finally:
        page.close(verbose=False)


def test_models_of_two_kinds_are_not_compared(tmp_path):
    one, two = str(save_translator(tmp_path / "one")), str(save_classifier(tmp_path / "two"))
    with pytest.raises(ValueError, match="of another kind"):
        pages.build_app(one, compare=two)


def test_unexpected_errors_are_not_shown():
    def break_down():
        raise RuntimeError("/secret/path")

    with pytest.raises(gr.Error, match="The model failed") as caught:
        pages.fail(break_down)()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "error: name a model: its folder or Hub id"),
        (("./none",), "error: ./none: there is no such folder"),
        (("{empty}",), "error: .+"),
    ],
)
def test_command_says_in_one_line_that_there_is_no_model(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["app.py", *(argument.format(empty=tmp_path) for argument in arguments)])
    monkeypatch.delenv("MODEL_ID", raising=False)
    monkeypatch.setattr(app, "CLONED_MODELS", [])
    with pytest.raises(SystemExit) as caught:
        app.main()
    assert caught.value.code == 2
    assert re.search(f"{message}\n$", capsys.readouterr().err)


SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "NVIDIA_API_KEY", "WANDB_API_KEY", "MY_OWN")


@pytest.mark.parametrize(
    ("names", "is_hidden"), [(["model"], True), (["model", "--compare", "model"], True), (["org/name"], False)]
)
def test_code_of_a_folder_gets_no_token(tmp_path, monkeypatch, names, is_hidden):
    """Not even in the block that the process began with, which no change of `os.environ` reaches."""
    (tmp_path / "model").mkdir()
    compared = names[-1] if len(names) > 1 else None
    for name in ("pages", "view", "models"):
        (tmp_path / f"{name}.py").write_text("print(open('/proc/self/environ').read()); raise SystemExit")
    environment = {**os.environ, **dict.fromkeys(SECRETS, "hf_secret"), "GRADIO_SERVER_PORT": "7999"}
    program = (
        f"import sys; sys.path.append({str(SPACE)!r}); import app; app.open_page({names[0]!r}, compare={compared!r})"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True).stdout
    block = dict(line.partition("=")[::2] for line in shown.splitlines()[-1].split("\0"))
    assert ("hf_secret" not in block.values()) == is_hidden
    assert (block.get("HF_TOKEN_PATH") == os.devnull) == is_hidden
    assert {"PATH", "HF_HUB_OFFLINE", "GRADIO_SERVER_PORT"} <= block.keys()


def test_command_names_the_model_before_it_loads_anything():
    # where no library is found, so that nothing can be imported before that line
    command = [
        sys.executable,
        "-S",
        "-c",
        "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
        "sys.argv[0] = 'app.py'; runpy.run_path(sys.path[0] + '/app.py', run_name='__main__')",
    ]
    done = subprocess.run([*command, str(SPACE), "./mine"], capture_output=True, text=True)
    assert done.stdout == "Loading ./mine: the page comes in some seconds\n"
    assert "No module named" in done.stderr


def test_space_is_filled_in_with_the_model():
    files = space_files("org/my-model", "v1", licence="mit")
    assert tuple(files) == FILES
    assert '\nMODEL_ID = "org/my-model"\nMODEL_REVISION = "v1"\n' in files["app.py"]
    assert "{{" not in files["README.md"]
    _, front, _ = files["README.md"].split("---\n", 2)
    values = yaml.safe_load(front)
    assert (values["sdk"], values["app_file"], values["license"]) == ("gradio", "app.py", "mit")
    assert values["models"] == ["org/my-model"]
    assert len(values["short_description"]) <= 60
    requirements = {line.name: line for line in map(Requirement, files["requirements.txt"].splitlines())}
    assert requirements["gradio"].specifier.contains(values["sdk_version"])
    assert requirements.keys() >= {"torch", "transformers", "gradio", "numpy", "pillow"}


def test_space_needs_nothing_of_this_library():
    for name in FILES:
        assert not re.search(
            r"^\s*(from|import) reluformers", (SPACE / name).read_text(encoding="utf-8"), re.MULTILINE
        )
