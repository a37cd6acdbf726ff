"""The files of a page, without a browser, of folders as `export_onnx` leaves them."""

import json
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from builders.pictures import picture
from reluformers.export.page import CDN, RUNTIME, export_page, integrity_of
from reluformers.files import read_json, write_json


def exported(folder: Path, **fields) -> Path:
    (folder / "onnx").mkdir(parents=True)
    for name in ("model.onnx", "model_quantized.onnx"):
        (folder / "onnx" / name).write_bytes(b"graph")
    (folder / "handler.py").write_text("")
    write_json(folder / "config.json", {})
    record = {
        "model": "tiny",
        "task": "image-classification",
        "attentions": True,
        "about": {"training": "Trained on <digits>.", "languages": [], "examples": []},
        "precisions": {"fp32": {"files": {"model.onnx": 5}}, "int8": {"files": {"model_quantized.onnx": 5}}},
    }
    write_json(folder / "export.json", record | fields)
    return folder


def test_a_page_has_one_precision_and_pinned_code(tmp_path):
    page = export_page([exported(tmp_path / "onnx")], tmp_path / "page")
    names = {
        path.relative_to(tmp_path / "page").as_posix() for path in (tmp_path / "page").rglob("*") if path.is_file()
    }
    assert {name for name in names if name.startswith("models/")} == {
        "models/tiny/config.json",
        "models/tiny/onnx/model_quantized.onnx",
    }
    assert page == json.loads((tmp_path / "page" / "page.json").read_text())
    worker = (tmp_path / "page" / "worker.js").read_text()
    for pinned in RUNTIME.values():
        assert f'["{CDN}/npm/{pinned.package}@{pinned.version}/{pinned.path}", "{pinned.integrity}"]' in worker
    assert not any("{{" in (tmp_path / "page" / name).read_text() for name in ("index.html", "README.md", "worker.js"))


def test_a_page_may_lie_in_the_folder_and_shows_nothing_else_of_it(tmp_path):
    folder = exported(tmp_path / "onnx")
    for name in (".env", "index.html", "custom.js", "notes/page.html", "onnx/other_quantized.onnx"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    (folder / "tokenizer.json").symlink_to(tmp_path / "nowhere.json")
    Image.new("RGB", (4, 4)).save(folder / "example.png")
    record = read_json(folder / "export.json")
    record["about"]["examples"] = ["example.png"]
    write_json(folder / "export.json", record)
    export_page([folder], folder / "page")
    shown = folder / "page" / "models"
    names = {path.relative_to(shown).as_posix() for path in shown.rglob("*") if path.is_file()}
    assert names == {f"tiny/{name}" for name in ("config.json", "example_1.png", "onnx/model_quantized.onnx")}


@pytest.mark.parametrize("name", ["page.html", "c.png"])
def test_examples_are_written_anew(tmp_path, name):
    folder, script = exported(tmp_path / "onnx"), "<html><script>alert(1)</script>"
    image, text = picture(6, 9), PngInfo()
    text.add_text("Comment", script)
    image.save(folder / name, format="PNG", pnginfo=text)
    record = read_json(folder / "export.json")
    record["about"]["examples"] = [name]
    write_json(folder / "export.json", record)
    page = export_page([folder], tmp_path / "page")
    assert page["models"][0]["examples"] == ["example_1.png"]
    written = [path for path in (tmp_path / "page").rglob("*") if path.is_file()]
    assert not [path for path in written if script.encode() in path.read_bytes()]
    with Image.open(tmp_path / "page/models/tiny/example_1.png") as shown:
        assert shown.tobytes() == image.tobytes()


EXAMPLES = ("../secret.png", "index.html", "linked.png")
FOREIGN = [{"about": {"training": "", "languages": [], "examples": [name]}} for name in EXAMPLES]


@pytest.mark.parametrize("fields", [{"model": "../../outside"}, *FOREIGN])
def test_a_foreign_record_names_no_other_files(tmp_path, fields):
    folder = exported(tmp_path / "one" / "onnx", **fields)
    (folder / "index.html").write_text("<script>")
    Image.new("RGB", (4, 4)).save(tmp_path / "one" / "secret.png")
    (folder / "linked.png").symlink_to(tmp_path / "one" / "secret.png")
    before = set(tmp_path.rglob("*"))
    with pytest.raises((KeyError, TypeError, ValueError)):
        export_page([folder], tmp_path / "page")
    assert set(tmp_path.rglob("*")) == before


def test_a_linked_file_is_not_copied(tmp_path):
    folder = exported(tmp_path / "onnx")
    (tmp_path / "secret").write_text("mine")
    (folder / "tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        export_page([folder], tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_other_code_than_the_pinned_is_not_bundled(tmp_path):
    folder, modules = exported(tmp_path / "onnx"), tmp_path / "node_modules"
    for pinned in RUNTIME.values():
        (modules / pinned.package / pinned.path).parent.mkdir(parents=True, exist_ok=True)
        (modules / pinned.package / pinned.path).write_bytes(b"other")
    with pytest.raises(ValueError, match="install this version"):
        export_page([folder], tmp_path / "page", bundle=modules)
    assert not (tmp_path / "page").exists()
    assert integrity_of(b"").startswith("sha384-OLBgp1GsljhM2TJ")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("preprocessor_config.json", {"do_center_crop": True}),
        ("preprocessor_config.json", {"resample": 0}),
        ("generation_config.json", {"forced_bos_token_id": 7}),
        ("generation_config.json", {"bad_words_ids": [[3]]}),
        ("tokenizer_config.json", {}),
    ],
)
def test_what_the_page_would_compute_otherwise_is_refused(tmp_path, name, content):
    folder = exported(tmp_path / "onnx")
    write_json(folder / name, content)
    with pytest.raises(ValueError, match="the page"):
        export_page([folder], tmp_path / "page")
    assert not (tmp_path / "page").exists()
