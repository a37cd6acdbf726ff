"""No command runs code of a folder, or asks whether it may, unless it is told to."""

import json

import pytest

from builders.commands import run_command
from builders.pictures import picture
from builders.saved_models import save_classifier, save_translator

EVIL = {
    "AutoConfig": "evil.Evil",
    "AutoModelForSeq2SeqLM": "evil.Evil",
    "AutoModelForImageClassification": "evil.Evil",
    "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    "AutoImageProcessor": "evil.Evil",
}
STRANGE = {"auto_map": EVIL, "tokenizer_class": "Evil", "image_processor_type": "Evil"}
# folder → who saves it, the file that names code, and what in it
FOLDERS = {
    "config": (save_translator, "config.json", {"auto_map": EVIL, "model_type": "evil"}),
    "tokenizer": (save_translator, "tokenizer_config.json", STRANGE),
    "processor": (save_classifier, "preprocessor_config.json", STRANGE),
}
COMMANDS = [
    "card {folder} --repo_id a/b --example {example} --output {place}/card",
    "push {folder} a/b",
    "evaluate {folder} --data {place}/pairs.jsonl --source_lang en --target_lang de",
    "evaluate {folder} --data {place}/images",
    "analyse {folder} {place}/pairs.jsonl --source_lang en --target_lang de --output {place}/analysis.json",
    "align {folder} {place}/pairs.jsonl --source_lang en --target_lang de",
    "filter {folder} {place}/pairs.jsonl --source_lang en --target_lang de --output {place}/kept.jsonl",
    "convert {folder} {place}/converted",
    "convert {folder} {place}/converted --back",
    "compare {folder}",
    "average {folder} --output {place}/mean",
    "merge {folder} --output {place}/merged",
    "train {place}/recipe.yaml model.start={folder} --output_dir {place}/run",
    "train {place}/recipe.yaml tokenizer.path={folder} --output_dir {place}/run",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", FOLDERS)
def test_no_command_runs_code_or_asks_for_it(tmp_path, monkeypatch, name, command):
    asked, (save, file, content) = [], FOLDERS[name]
    monkeypatch.setattr("builtins.input", lambda *_: asked.append("y") or "y")
    folder = save(tmp_path / name)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **content}))
    picture(8, 12).save(tmp_path / "picture.png")
    (tmp_path / "images" / "cat").mkdir(parents=True)
    picture(8, 12).save(tmp_path / "images" / "cat" / "1.png")
    (tmp_path / "pairs.jsonl").write_text('{"translation": {"en": "a", "de": "b"}}\n')
    data = f"{{train: {tmp_path}/pairs.jsonl, validation: {tmp_path}/pairs.jsonl, source_lang: en, target_lang: de}}"
    (tmp_path / "recipe.yaml").write_text(f"task: translation\ndata: {data}\ntraining: {{max_steps: 1}}\n")
    example, codes = tmp_path / "picture.png" if save is save_classifier else "a", [0]
    try:
        run_command(*command.format(folder=folder, place=tmp_path, example=example).split())
    except SystemExit as ended:
        codes.append(ended.code)
    assert not asked
    assert not (tmp_path / "ran").exists()
    assert codes[-1] in (0, 2)
